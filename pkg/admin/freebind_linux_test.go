// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/pkg/admin"
)

// TestFreeBind binds an address before it is there, in a network of its own.
func TestFreeBind(t *testing.T) {
	t.Parallel()
	for _, ip := range []string{"169.254.20.10", "fd00::53"} {
		t.Run(ip, func(t *testing.T) {
			t.Parallel()
			lo := nodetest.EnterNamespace(t)
			addr := netip.AddrPortFrom(netip.MustParseAddr(ip), 9253)
			strict := server(t, func(c *admin.Config) { c.Addr = addr })
			if err := strict.Listen(t.Context()); !errors.Is(err, unix.EADDRNOTAVAIL) {
				t.Errorf("Listen without FreeBind: %v, want %v", err, unix.EADDRNOTAVAIL)
			}
			s := listening(t, func(c *admin.Config) { c.Addr, c.FreeBind = addr, true })
			stop := run(t, s)
			bits := addr.Addr().BitLen()
			held := &netlink.Addr{IPNet: &net.IPNet{IP: addr.Addr().AsSlice(), Mask: net.CIDRMask(bits, bits)}, Flags: unix.IFA_F_NODAD}
			for range 2 {
				assert.NoError(t, netlink.AddrAdd(lo, held))
				assert.Same(t, "/readyz", http.StatusOK, getReady(t, addr))
				assert.NoError(t, netlink.AddrDel(lo, held))
			}
			stop()
		})
	}
}

// getReady asks on this thread: a client of net/http dials on others, which are
// in another network.
func getReady(t *testing.T, addr netip.AddrPort) int {
	t.Helper()
	var c net.Conn
	var err error
	// In the first moments of an IPv6 address its local route is not there yet.
	for limit := time.Now().Add(10 * time.Second); time.Now().Before(limit); {
		if c, err = net.DialTimeout("tcp", addr.String(), 100*time.Millisecond); err == nil {
			break
		}
	}
	assert.NoError(t, err)
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write([]byte("GET /readyz HTTP/1.0\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	assert.NoError(t, err)
	_ = r.Body.Close()
	return r.StatusCode
}
