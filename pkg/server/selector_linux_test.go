// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/server/servertest"
)

// sharing binds as CoreDNS and NodeLocal DNSCache do.
func sharing() *net.ListenConfig {
	return &net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		return errors.Join(raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}), err)
	}}
}

// shareUDP binds the address beside a server and counts nothing: what arrives stays queued.
func shareUDP(t *testing.T, addr netip.AddrPort) *net.UDPConn {
	t.Helper()
	conn, err := sharing().ListenPacket(t.Context(), "udp", addr.String())
	assert.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.UDPConn)
}

// queued takes the datagrams that a socket holds, and counts them.
func queued(t *testing.T, conn *net.UDPConn) (n int) {
	t.Helper()
	raw, err := conn.SyscallConn()
	assert.NoError(t, err)
	err = raw.Control(func(fd uintptr) {
		for {
			if _, _, err := unix.Recvfrom(int(fd), make([]byte, 512), unix.MSG_DONTWAIT); err != nil {
				return
			}
			n++
		}
	})
	assert.NoError(t, err)
	return n
}

// askFromPorts asks once from each of many ports. All queries are to be answered.
func askFromPorts(t *testing.T, network string, addr netip.AddrPort, when string) {
	t.Helper()
	const ports = 100
	for id := range uint16(ports) {
		conn, err := net.Dial(network, addr.String())
		assert.NoError(t, err)
		q := servertest.Query(id, "now")
		if network == "tcp" {
			q = servertest.Frame(q)
		}
		write(t, conn, q)
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := conn.Read(make([]byte, 512)); err != nil {
			t.Fatalf("%s: query %d of %d, to %s: %v", when, id, ports, addr, err)
		}
		_ = conn.Close()
	}
}

// TestUDPSelectsOwn has sockets of others join the address before and after the server's sockets change hands, and leave
// it. None of them gets a query.
func TestUDPSelectsOwn(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "[::]:0"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			h := servertest.New(nil)
			u, stop := serveUDP(t, h, at)
			targets := []netip.AddrPort{u.Addr()}
			if ip := u.Addr().Addr(); ip.IsUnspecified() {
				targets[0] = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), u.Addr().Port())
				if ip.Is6() {
					targets = append(targets, netip.AddrPortFrom(netip.IPv6Loopback(), u.Addr().Port()))
				}
			}
			check := func(when string, foreign ...*net.UDPConn) {
				t.Helper()
				for _, to := range targets {
					askFromPorts(t, "udp", to, when)
				}
				for _, c := range foreign {
					if n := queued(t, c); n > 0 {
						t.Errorf("%s: another socket got %d queries", when, n)
					}
				}
			}
			a, b := shareUDP(t, u.Addr()), shareUDP(t, u.Addr())
			check("two others", a, b)
			_ = a.Close()
			check("one of them left", b)
			next := newUDP(t, server.UDPConfig{Addr: u.Addr(), Handler: h, Readers: 1})
			assert.NoError(t, next.Adopt(files(t, u.RawConns()...)))
			cancel := run(t, next)
			u.HandOver(t.Context())
			stop()
			check("handed over", b, shareUDP(t, u.Addr()))
			cancel()
		})
	}
}

// TestTCPSelectsOwn has another process listen at the address beside the server, before and after it changes hands.
func TestTCPSelectsOwn(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			first := serveTCP(t, server.TCPConfig{Addr: netip.MustParseAddrPort(at)}, nil)
			target := first.Addr()
			if target.Addr().IsUnspecified() {
				target = netip.AddrPortFrom(netip.IPv6Loopback(), target.Port())
			}
			share := func() {
				ln, err := sharing().Listen(t.Context(), "tcp", first.Addr().String())
				assert.NoError(t, err)
				t.Cleanup(func() { _ = ln.Close() })
			}
			share()
			share()
			askFromPorts(t, "tcp", target, "two others")
			next := newTCP(t, server.TCPConfig{Addr: first.Addr(), Handler: servertest.New(nil)})
			assert.NoError(t, next.Adopt(files(t, first.RawConn())[0]))
			run(t, next)
			first.HandOver(t.Context(), 0)
			askFromPorts(t, "tcp", target, "handed over")
		})
	}
}

// TestBindWithoutReusePort binds an address that a socket with SO_REUSEPORT has.
func TestBindWithoutReusePort(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"127.0.0.1:0", "0.0.0.0:0"} { // the address itself, and one that covers it
		other := shareUDP(t, netip.MustParseAddrPort(at))
		ln, err := sharing().Listen(t.Context(), "tcp", at)
		assert.NoError(t, err)
		t.Cleanup(func() { _ = ln.Close() })
		port := func(addr net.Addr) netip.AddrPort {
			return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), netip.MustParseAddrPort(addr.String()).Port())
		}
		u := newUDP(t, server.UDPConfig{Addr: port(other.LocalAddr()), Handler: servertest.New(nil)})
		if err := u.Listen(t.Context()); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("UDP beside %s: %v, want %v", at, err, unix.EADDRINUSE)
		}
		s := newTCP(t, server.TCPConfig{Addr: port(ln.Addr()), Handler: servertest.New(nil)})
		if err := s.Listen(t.Context()); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("TCP beside %s: %v, want %v", at, err, unix.EADDRINUSE)
		}
	}
}

// TestSelectorRestored has a process with a socket at the address send all queries to itself, until the server undoes that.
func TestSelectorRestored(t *testing.T) {
	t.Parallel()
	u, _ := serveUDP(t, servertest.New(nil), "127.0.0.1:0")
	other := shareUDP(t, u.Addr())
	raw, err := other.SyscallConn()
	assert.NoError(t, err)
	third := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 2}}
	err = raw.Control(func(fd uintptr) {
		err := unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: 1, Filter: &third[0]})
		if err != nil {
			t.Error(err)
		}
	})
	assert.NoError(t, err)
	c := dialUDP(t, u.Addr())
	write(t, c, servertest.Query(1, "now"))
	if n := queued(t, other); n != 1 {
		t.Fatalf("the other socket got %d queries, want 1", n)
	}
	assert.NoError(t, u.AttachSelector())
	askFromPorts(t, "udp", u.Addr(), "selected again")
}
