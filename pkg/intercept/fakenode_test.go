// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/intercepttest"
)

func TestFake(t *testing.T) {
	runContract(t, func(t *testing.T) Node {
		t.Helper()
		return newFakeNode()
	})
}

// A fakeNode is a node with a fake kernel and its own clock.
type fakeNode struct {
	kernel *intercepttest.Fake

	mu  sync.Mutex // guards now
	now time.Time
}

func newFakeNode() *fakeNode {
	w := &fakeNode{now: time.Unix(1_800_000_000, 0)}
	w.kernel = intercepttest.NewFake(w.clock)
	return w
}

func (f *fakeNode) clock() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

func (f *fakeNode) Elapse(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
}

func (f *fakeNode) Open(testing.TB) intercept.Backend { return f.kernel.Open() }
func (f *fakeNode) Flush(testing.TB)                  { f.kernel.Flush() }

func (*fakeNode) AddCilium(testing.TB) {} // the fake has no other program

func (*fakeNode) AddToLink(testing.TB, []netip.Addr) {} // the rules decide before the routing
func (*fakeNode) MarkArriving(testing.TB)            {} // each Query says whether it has the mark

func (f *fakeNode) Layout() Layout {
	return Layout{
		Addresses: []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00:20::10")},
		Services:  []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")},
		Servers:   otherServers(),
		Fallbacks: []netip.AddrPort{
			netip.MustParseAddrPort("10.201.0.2:5301"), netip.MustParseAddrPort("10.201.0.2:5302"),
			netip.MustParseAddrPort("[fd00:201::2]:5301"), netip.MustParseAddrPort("[fd00:201::2]:5302"),
		},
		Port: 53, Admin: 9253, Lease: time.Second,
	}
}

// Tracked returns what the fake would track of a query now.
func (f *fakeNode) Tracked(_ testing.TB, to netip.AddrPort) int {
	for _, network := range []string{"udp", "tcp"} {
		if f.kernel.Route(intercepttest.Packet{Network: network, To: to}).Tracked && (network == "tcp" || to.Port() == f.Layout().Port) {
			return 1
		}
	}
	return 0
}

func (f *fakeNode) Dial(_ testing.TB, q Query) Conn {
	c := &fakeConn{node: f, packet: intercepttest.Packet{Network: q.Network, To: q.To, Marked: q.Marked, Test: q.Test, Arrives: q.From == Pod}}
	if q.Network == "tcp" {
		c.session = f.server(c.packet)
		c.packet.Established = true
		c.packet.Tracked = c.session != Agent && !strings.HasPrefix(c.session, "outside")
	}
	return c
}

// server returns the name of the server that a packet reaches.
func (f *fakeNode) server(p intercepttest.Packet) string {
	l := f.Layout()
	r := f.kernel.Route(p)
	switch i := slices.Index(l.Fallbacks, r.To); {
	case r.Decision == intercepttest.Rejected:
		return NoAnswer
	case i >= 0:
		return Fallback(i)
	case slices.Contains(l.Addresses, r.To.Addr()) && r.To.Port() == l.Admin:
		return Admin
	case slices.Contains(l.Addresses, r.To.Addr()):
		return Agent
	case slices.Contains(l.Services, r.To.Addr()):
		return Service
	}
	for i, s := range l.Servers {
		switch r.To.Addr() {
		case s.From:
			return Server(i)
		case s.To:
			return Outside(i)
		}
	}
	return NoAnswer
}

type fakeConn struct {
	node    *fakeNode
	packet  intercepttest.Packet
	session string // the server that has it
}

func (c *fakeConn) Ask() string {
	server := c.node.server(c.packet)
	if c.packet.Network == "udp" {
		return server
	}
	kept := c.node.kernel.Route(c.packet).Decision == intercepttest.SameAsFirst
	if server != c.session && !kept {
		c.session = NoAnswer // a server without the session resets it
	}
	return c.session
}

func (*fakeConn) Close() {}
