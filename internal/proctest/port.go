// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
)

// FreeAddr finds a port of 127.0.0.1 that is free for UDP and for TCP. It lies below
// the ports that the kernel gives to clients: one of the many sockets of a load
// could otherwise take it before its server does. Chance picks it, so that tests
// that run side by side, in other processes too, seldom meet.
func FreeAddr(t *testing.T) netip.AddrPort {
	t.Helper()
	const first, count = 10000, 20000
	var lc net.ListenConfig
	for range 200 {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), first+uint16(rand.IntN(count)))
		tcp, err := lc.Listen(t.Context(), "tcp4", addr.String())
		if err != nil {
			continue
		}
		udp, err := lc.ListenPacket(t.Context(), "udp4", addr.String())
		_ = tcp.Close()
		if err == nil {
			_ = udp.Close()
			return addr
		}
	}
	t.Fatal("200 ports are taken")
	return netip.AddrPort{}
}
