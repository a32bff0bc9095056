// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/server/servertest"
)

// newUDP makes a server, by default on a free port of 127.0.0.1.
func newUDP(tb testing.TB, cfg server.UDPConfig) *server.UDP {
	tb.Helper()
	if !cfg.Addr.IsValid() {
		cfg.Addr = netip.MustParseAddrPort("127.0.0.1:0")
	}
	u, err := server.NewUDP(cfg)
	assert.NoError(tb, err)
	return u
}

// listenUDP makes a server that has its sockets.
func listenUDP(tb testing.TB, cfg server.UDPConfig) *server.UDP {
	tb.Helper()
	u := newUDP(tb, cfg)
	err := u.Listen(tb.Context())
	if noFamily := errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT); noFamily && cfg.Addr.Addr().Is6() {
		tb.Skipf("this machine has no IPv6: %v", err)
	}
	assert.NoError(tb, err)
	return u
}

// run runs a server until stop is called, at the latest until the test ends.
func run(tb testing.TB, s interface {
	Run(ctx context.Context) error
},
) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			tb.Errorf("Run: %v", err)
		}
	})
	tb.Cleanup(stop)
	return stop
}

// serveUDP runs a server with two sockets.
func serveUDP(t *testing.T, h server.Handler, addr string) (u *server.UDP, stop func()) {
	t.Helper()
	u = listenUDP(t, server.UDPConfig{Addr: netip.MustParseAddrPort(addr), Handler: h, Readers: 2})
	return u, run(t, u)
}

// dialUDP connects a client's socket, which fails the test instead of waiting
// forever.
func dialUDP(t *testing.T, addr netip.AddrPort) *net.UDPConn {
	t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(addr))
	assert.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

func write(t *testing.T, c net.Conn, msg []byte) {
	t.Helper()
	if _, err := c.Write(msg); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, c net.Conn) []byte {
	t.Helper()
	buf := make([]byte, 65535)
	n, err := c.Read(buf)
	assert.NoError(t, err)
	return buf[:n]
}

// TestUDPAnswersFromTheAddressAsked uses connected clients: the kernel shows
// them no reply from any other address than the one they asked.
func TestUDPAnswersFromTheAddressAsked(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, listen, ask string }{
		{"IPv4", "127.0.0.1:0", "127.0.0.1"},
		{"IPv6", "[::1]:0", "::1"},
		{"IPv4 wildcard, another loopback address", "0.0.0.0:0", "127.0.0.42"},
		{"wildcard of both, IPv6 client", "[::]:0", "::1"},
		{"wildcard of both, IPv4 client on another address", "[::]:0", "127.0.0.43"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := servertest.New(map[string]servertest.Rule{"slow.test": {Action: servertest.Delay, After: 20 * time.Millisecond}})
			u, _ := serveUDP(t, h, tt.listen)
			c := dialUDP(t, netip.AddrPortFrom(netip.MustParseAddr(tt.ask), u.Addr().Port()))
			for id, name := range []string{"fast.test", "slow.test", "fast.test"} {
				q := servertest.Query(uint16(id), name)
				write(t, c, q)
				if got := read(t, c); servertest.ID(got) != uint16(id) || servertest.Name(got) != name {
					t.Errorf("asked %s id %d, got %s id %d", name, id, servertest.Name(got), servertest.ID(got))
				}
			}
			for peer := range h.Peers() {
				if want := c.LocalAddr().(*net.UDPAddr).AddrPort(); peer.Addr != netip.AddrPortFrom(want.Addr().Unmap(), want.Port()) || peer.Stream {
					t.Errorf("peer %+v, want %s", peer, want)
				}
			}
			if b := h.Violations(); len(b) > 0 {
				t.Errorf("violations of the Worker's contract: %q", b)
			}
		})
	}
}

func TestUDPManyAtOnce(t *testing.T) {
	t.Parallel()
	h := servertest.New(map[string]servertest.Rule{
		"big.test":  {Size: 1232},
		"huge.test": {Size: 4096}, // more than the room of a batch's replies
		"slow.test": {Action: servertest.Delay, After: time.Millisecond},
	})
	u, stop := serveUDP(t, h, "127.0.0.1:0")
	names := []string{"small.test", "big.test", "huge.test", "slow.test"}
	const rounds, outstanding = 120, 24 // what a client's socket has room for
	for range rounds {
		c := dialUDP(t, u.Addr())
		want := map[uint16]string{}
		for id := range uint16(outstanding) {
			want[id] = names[int(id)%len(names)]
			write(t, c, servertest.Query(id, want[id]))
		}
		for len(want) > 0 {
			got := read(t, c)
			if name := want[servertest.ID(got)]; name != servertest.Name(got) {
				t.Fatalf("id %d: got %q, want %q", servertest.ID(got), servertest.Name(got), name)
			}
			delete(want, servertest.ID(got))
		}
	}
	stop() // a reply is counted after it is sent
	if got := u.Stats(); got.Received != outstanding*rounds || got.Sent != outstanding*rounds || got.Unsent != 0 {
		t.Errorf("stats %+v, want %d received and sent", got, outstanding*rounds)
	}
	if b := h.Violations(); len(b) > 0 {
		t.Errorf("violations of the Worker's contract: %q", b)
	}
}

// TestUDPSurvives sends what must not harm other queries.
func TestUDPSurvives(t *testing.T) {
	t.Parallel()
	h := servertest.New(map[string]servertest.Rule{
		"panic.test": {Action: servertest.Panic},
		"later.test": {Action: servertest.PanicResolve},
		"drop.test":  {Action: servertest.Drop},
		"mute.test":  {Action: servertest.NoReply},
		"":           {Action: servertest.Drop}, // the empty datagram
	})
	u, stop := serveUDP(t, h, "127.0.0.1:0")
	c := dialUDP(t, u.Addr())
	for range 20 {
		write(t, c, servertest.Query(1, "panic.test"))
		write(t, c, servertest.Query(2, "later.test"))
		write(t, c, servertest.Query(3, "drop.test"))
		write(t, c, servertest.Query(4, "mute.test"))
		write(t, c, bytes.Repeat([]byte{7}, 3000))
		write(t, c, nil)
		write(t, c, servertest.Query(5, "good.test"))
	}
	for range 20 {
		if got := read(t, c); servertest.ID(got) != 5 {
			t.Fatalf("got id %d, want 5", servertest.ID(got))
		}
	}
	start := time.Now()
	stop()
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("stopping took %s: a query that panicked is waited for", took)
	}
	if got := u.Stats(); got.Panics != 40 || got.Oversize != 20 {
		t.Errorf("stats %+v, want 40 panics and 20 oversize", got)
	}
}

func TestUDPDrains(t *testing.T) {
	t.Parallel()
	h := servertest.New(map[string]servertest.Rule{"held.test": {Action: servertest.Hold}})
	u, stop := serveUDP(t, h, "127.0.0.1:0")
	c := dialUDP(t, u.Addr())
	const n = 100
	for id := range uint16(n) {
		write(t, c, servertest.Query(id, "held.test"))
	}
	h.AwaitHeld("held.test", n)
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	select {
	case <-stopped:
		t.Fatalf("Run ended with %d replies due", n)
	case <-time.After(50 * time.Millisecond):
	}
	late := dialUDP(t, u.Addr())
	write(t, late, servertest.Query(1, "late.test"))
	read(t, late) // while replies are due, what arrives is answered
	assert.Equal(t, "held", n, h.Release("held.test"))
	for range n {
		read(t, c)
	}
	<-stopped
}

func TestUDPListen(t *testing.T) {
	t.Parallel()
	taken, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	assert.NoError(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	other, _ := serveUDP(t, servertest.New(nil), "127.0.0.1:0")
	for _, tt := range []struct {
		name, addr string
		want       error
	}{
		{"port taken", taken.LocalAddr().String(), unix.EADDRINUSE},
		{"address of no interface", "192.0.2.1:0", unix.EADDRNOTAVAIL},
		{"port of another agent", other.Addr().String(), unix.EADDRINUSE},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := newUDP(t, server.UDPConfig{Addr: netip.MustParseAddrPort(tt.addr), Handler: servertest.New(nil)})
			err = u.Listen(t.Context())
			if err == nil || !strings.HasPrefix(err.Error(), "listening on udp "+tt.addr+": ") || !errors.Is(err, tt.want) {
				t.Errorf("Listen: %v, want %v", err, tt.want)
			}
		})
	}
}

// BenchmarkUDPHits is a query and its reply over loopback, client included.
func BenchmarkUDPHits(b *testing.B) {
	u := listenUDP(b, server.UDPConfig{Handler: servertest.New(nil)})
	stop := run(b, u)
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(u.Addr()))
	assert.NoError(b, err)
	q, buf := servertest.Query(1, "hit.test"), make([]byte, 512)
	for b.Loop() {
		if _, err := c.Write(q); err != nil {
			b.Fatal(err)
		}
		if _, err := c.Read(buf); err != nil {
			b.Fatal(err)
		}
	}
	_ = c.Close()
	stop()
}
