// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// TestCustomDial limits the kernel's silence also on sockets that are not of our own dialer.
func TestCustomDial(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"tcp", "tls", "https"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			s := upstreamtest.New(known)
			target := Target{Network: network, Addr: s.Listen(t)}
			if network != "tcp" {
				target.CAFile = secure(t, s, "127.0.0.1")
			}
			dialled := make(chan *net.TCPConn, 1)
			l := labOf(t, target, 1, func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr.String())
				if err == nil {
					dialled <- conn.(*net.TCPConn)
				}
				return conn, err
			})
			if got := l.ask(t, "www.example."); got != "192.0.2.10" {
				t.Fatalf("told %q, want 192.0.2.10", got)
			}
			withFD(t, <-dialled, func(fd int) error {
				limit, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
				if limit != userTimeout {
					t.Errorf("TCP_USER_TIMEOUT %d, want %d", limit, userTimeout)
				}
				return err
			})
		})
	}
}
