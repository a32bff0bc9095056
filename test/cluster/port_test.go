// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
)

// lastPort is the port handed out last, of those below the ones that the kernel gives to clients.
var lastPort atomic.Int32

// spareAddr is a loopback address whose port is free for UDP and TCP.
func spareAddr(t *testing.T) netip.AddrPort {
	t.Helper()
	const first, count = 10000, 10000
	lastPort.CompareAndSwap(0, int32(os.Getpid()%count))
	for range count {
		port := first + int(lastPort.Add(1))%count
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port))
		udp, err := net.ListenPacket("udp4", addr.String())
		if err != nil {
			continue
		}
		tcp, err := net.Listen("tcp4", addr.String())
		_ = udp.Close()
		if err == nil {
			_ = tcp.Close()
			return addr
		}
	}
	t.Fatal("no free port")
	return netip.AddrPort{}
}
