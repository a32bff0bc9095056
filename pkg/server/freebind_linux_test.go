// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/server/servertest"
)

// TestFreeBind binds an address before it is there, and takes it away and brings
// it back under the running servers.
func TestFreeBind(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, ip string }{{"IPv4", "169.254.20.10"}, {"IPv6", "fd00::53"}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			lo := nodetest.EnterNamespace(t)
			ip := netip.MustParseAddr(tt.ip)
			held := &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}, Flags: unix.IFA_F_NODAD}
			addr := netip.AddrPortFrom(ip, 53)
			refuseWithout(t, addr)
			serveFreely(t, addr)
			for range 3 {
				assert.NoError(t, netlink.AddrAdd(lo, held))
				askAt(t, addr)
				assert.NoError(t, netlink.AddrDel(lo, held))
				if c, err := net.Dial("tcp", addr.String()); err == nil {
					_ = c.Close()
					t.Error("connected to an address that is gone")
				}
			}
		})
	}
}

// refuseWithout has servers without FreeBind refuse the address.
func refuseWithout(t *testing.T, addr netip.AddrPort) {
	t.Helper()
	u := newUDP(t, server.UDPConfig{Addr: addr, Handler: servertest.New(nil)})
	w := newTCP(t, server.TCPConfig{Addr: addr, Handler: servertest.New(nil)})
	for name, err := range map[string]error{"udp": u.Listen(t.Context()), "tcp": w.Listen(t.Context())} {
		if !errors.Is(err, unix.EADDRNOTAVAIL) {
			t.Errorf("Listen of %s without FreeBind: %v, want %v", name, err, unix.EADDRNOTAVAIL)
		}
	}
}

// serveFreely runs both servers until the test ends.
func serveFreely(t *testing.T, addr netip.AddrPort) {
	t.Helper()
	u := newUDP(t, server.UDPConfig{Addr: addr, FreeBind: true, Handler: servertest.New(nil), Readers: 2})
	w := newTCP(t, server.TCPConfig{Addr: addr, FreeBind: true, Handler: servertest.New(nil)})
	for _, s := range []interface {
		Listen(ctx context.Context) error
		Run(ctx context.Context) error
	}{u, w} {
		assert.NoError(t, s.Listen(t.Context()))
		run(t, s)
	}
}

// askAt asks both servers, over UDP from enough ports that both readers are met.
func askAt(t *testing.T, addr netip.AddrPort) {
	t.Helper()
	for id := range uint16(8) {
		if got := servertest.ID(askUDP(t, addr, servertest.Query(id, "up.test"))); got != id {
			t.Errorf("asked with id %d over UDP, got %d", id, got)
		}
	}
	conn, err := net.Dial("tcp", addr.String())
	assert.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(testTimeout))
	c := tcpClient{Conn: conn, t: t}
	c.ask(9, "up.test")
	c.wantReplies(reply{9, "up.test"})
}

// askUDP asks with one socket after the other until a reply comes. In the first
// moments of an IPv6 address its local route is not there yet, and a socket that
// connects then keeps sending to a closed port.
func askUDP(t *testing.T, addr netip.AddrPort, q []byte) []byte {
	t.Helper()
	buf := make([]byte, 512)
	for limit := time.Now().Add(testTimeout); time.Now().Before(limit); {
		c := dialUDP(t, addr)
		write(t, c, q)
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if n, err := c.Read(buf); err == nil {
			return buf[:n]
		}
	}
	t.Fatal("no answer over UDP")
	return nil
}
