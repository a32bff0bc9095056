// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
)

// TestSelectorSpreads counts what each of several sockets gets of the queries of many ports, over both families, and of
// queries of one port.
func TestSelectorSpreads(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, at, from string }{
		{"IPv4", "127.0.0.1:0", "127.0.0.1"},
		{"IPv6", "[::1]:0", "::1"},
		{"IPv4 at [::]", "[::]:0", "127.0.0.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			const readers, ports = 3, 600
			u := listenReaders(t, UDPConfig{Addr: netip.MustParseAddrPort(tt.at), Readers: readers})
			target := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(tt.from), u.Addr().Port()))
			send := func(times int) {
				c, err := net.DialUDP("udp", nil, target)
				assert.NoError(t, err)
				defer func() { _ = c.Close() }()
				for range times {
					if _, err := c.Write(make([]byte, 40)); err != nil {
						t.Fatal(err)
					}
				}
			}
			for range ports {
				send(1)
			}
			for i, n := range took(t, u) {
				if n < ports/readers*3/4 { // 8 standard deviations below its share: 11.5 queries each
					t.Errorf("reader %d got %d of %d queries", i, n, ports)
				}
			}
			send(30)
			for i, n := range took(t, u) {
				if n != 0 && n != 30 {
					t.Errorf("reader %d got %d of 30 queries from one port", i, n)
				}
			}
		})
	}
}

// took reads what each socket holds.
func took(t *testing.T, u *UDP) (counts []int) {
	t.Helper()
	for _, s := range u.sockets() {
		n := 0
		err := control(s.raw, func(fd int) error {
			for {
				if _, _, err := unix.Recvfrom(fd, make([]byte, 64), unix.MSG_DONTWAIT); err != nil {
					return nil //nolint:nilerr // the socket is empty
				}
				n++
			}
		})
		assert.NoError(t, err)
		counts = append(counts, n)
	}
	return counts
}
