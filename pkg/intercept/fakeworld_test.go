// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/intercepttest"
)

func TestFake(t *testing.T) {
	intercepttest.Test(t, func(t *testing.T) intercepttest.World {
		t.Helper()
		return newFakeWorld()
	})
}

// A fakeWorld is a node on a modelled kernel, with a clock of its own.
type fakeWorld struct {
	kernel *intercept.Fake

	mu  sync.Mutex // guards now
	now time.Time
}

func newFakeWorld() *fakeWorld {
	w := &fakeWorld{now: time.Unix(1_800_000_000, 0)}
	w.kernel = intercept.NewFake(w.clock)
	return w
}

func (w *fakeWorld) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *fakeWorld) Elapse(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

func (w *fakeWorld) Open(testing.TB) intercept.Backend { return w.kernel.Open() }
func (w *fakeWorld) Flush(testing.TB)                  { w.kernel.Flush() }

func (w *fakeWorld) Layout() intercepttest.Layout {
	return intercepttest.Layout{
		Addresses: []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00:20::10")},
		Services:  []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")},
		Fallbacks: []netip.AddrPort{
			netip.MustParseAddrPort("10.201.0.2:5301"), netip.MustParseAddrPort("10.201.0.2:5302"),
			netip.MustParseAddrPort("[fd00:201::2]:5301"), netip.MustParseAddrPort("[fd00:201::2]:5302"),
		},
		Port: 53, Admin: 9253, Lease: time.Second,
	}
}

// Tracked asks the model: what it would track of a query now.
func (w *fakeWorld) Tracked(_ testing.TB, to netip.AddrPort) int {
	for _, network := range []string{"udp", "tcp"} {
		if w.kernel.Route(intercept.Packet{Network: network, To: to}).Tracked && (network == "tcp" || to.Port() == w.Layout().Port) {
			return 1
		}
	}
	return 0
}

func (w *fakeWorld) Dial(_ testing.TB, q intercepttest.Query) intercepttest.Conn {
	c := &fakeConn{world: w, packet: intercept.Packet{Network: q.Network, To: q.To, Marked: q.Marked}}
	if q.Network == "tcp" {
		c.session = w.who(c.packet)
		c.packet.Session = true
		c.packet.Known = c.session != intercepttest.Agent
	}
	return c
}

// who is the server that a packet reaches.
func (w *fakeWorld) who(p intercept.Packet) string {
	l := w.Layout()
	r := w.kernel.Route(p)
	switch i := slices.Index(l.Fallbacks, r.To); {
	case r.Way == intercept.Rejected:
		return intercepttest.Nobody
	case i >= 0:
		return intercepttest.Fallback(i)
	case slices.Contains(l.Addresses, r.To.Addr()) && r.To.Port() == l.Admin:
		return intercepttest.Admin
	case slices.Contains(l.Addresses, r.To.Addr()):
		return intercepttest.Agent
	case slices.Contains(l.Services, r.To.Addr()):
		return intercepttest.Service
	}
	return intercepttest.Nobody
}

type fakeConn struct {
	world   *fakeWorld
	packet  intercept.Packet
	session string // who took it
}

func (c *fakeConn) Ask() string {
	who := c.world.who(c.packet)
	if c.packet.Network == "udp" {
		return who
	}
	kept := c.world.kernel.Route(c.packet).Way == intercept.Kept
	if who != c.session && !kept {
		c.session = intercepttest.Nobody // who does not know the session resets it
	}
	return c.session
}

func (*fakeConn) Close() {}
