// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"

	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// A fakeServer is a UDP server on loopback that a test writes, message by message. TCP connections to it are refused, unless
// something else listens there.
type fakeServer struct {
	addr    netip.AddrPort
	conn    *net.UDPConn
	queries atomic.Int64
}

// startFakeServer calls answer for each query, one after the other.
func startFakeServer(t *testing.T, answer func(f *fakeServer, q []byte, from netip.AddrPort)) *fakeServer {
	t.Helper()
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(proctest.FreeAddr(t)))
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadBuffer(4 << 20)
	f := &fakeServer{addr: conn.LocalAddr().(*net.UDPAddr).AddrPort(), conn: conn}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			q := make([]byte, 4096)
			n, from, err := conn.ReadFromUDPAddrPort(q)
			if err != nil {
				return // closed
			}
			f.queries.Add(1)
			answer(f, q[:n], from)
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		running.Wait()
	})
	return f
}

// serveTCP answers over TCP too, at the same port.
func (f *fakeServer) serveTCP(t *testing.T, answer func(q []byte) []byte) {
	t.Helper()
	ln, err := net.Listen("tcp4", f.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{Listener: ln, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
		if q, err := m.Pack(); err == nil {
			_, _ = w.Write(answer(q))
		}
	})}
	var running sync.WaitGroup
	running.Go(func() { _ = server.ActivateAndServe() }) // ends with the listener
	t.Cleanup(func() {
		_ = ln.Close()
		running.Wait()
	})
}

// send sends a message. A client that has left is none of the server's business.
func (f *fakeServer) send(msg []byte, to netip.AddrPort) { _, _ = f.conn.WriteToUDPAddrPort(msg, to) }

// endOfQuestion is where the question of a message ends, or 0 if it has none that can be read.
func endOfQuestion(msg []byte) int {
	off := headerLen
	for off < len(msg) && msg[off] != 0 && msg[off] < 64 {
		off += 1 + int(msg[off])
	}
	if off+5 > len(msg) || msg[off] != 0 {
		return 0
	}
	return off + 5
}

// answerWith answers a query with one address and no OPT record.
func answerWith(q []byte, a netip.Addr) []byte {
	end := endOfQuestion(q)
	r := append([]byte(nil), q[:end]...)
	r[2], r[3] = 0x80|q[2]&1, 0x80
	clear(r[6:12])
	r[7] = 1
	r = append(r, 0xc0, headerLen, 0, typeA, 0, classIN)
	r = binary.BigEndian.AppendUint32(r, 300)
	v4 := a.As4()
	return append(append(r, 0, 4), v4[:]...)
}

// addrInName is the address that a name begins with.
func addrInName(name string) (netip.Addr, bool) {
	label, _, _ := strings.Cut(name, ".")
	a, err := netip.ParseAddr(strings.ReplaceAll(label, "-", "."))
	return a, err == nil
}

// answerAddrInName is the script of a server that gives each name the address that it spells, and none to others.
func answerAddrInName(q upstreamtest.Query) upstreamtest.Action {
	a, ok := addrInName(q.Name)
	if !ok || q.Type != dns.TypeA {
		return upstreamtest.Action{}
	}
	return upstreamtest.Action{Records: []string{fmt.Sprintf("%s 300 IN A %s", q.Name, a)}}
}
