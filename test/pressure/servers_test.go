// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/nodecache/node-cache/internal/proctest"
)

// startNSD serves the zone "test" on loopback: every name below miss.test has one address, and every name below
// large.test has forty, and below huge.test as many as fit 60 KB. SIGSTOP makes it silent, SIGCONT brings it back.
func startNSD(t *testing.T) (*proctest.Process, netip.AddrPort) {
	t.Helper()
	zone := "$TTL 3600\n@ SOA ns h 1 3600 600 86400 300\n@ NS ns\nns A 127.0.0.1\n*.miss A 192.0.2.1\n"
	for i := range 40 {
		zone += fmt.Sprintf("*.large A 192.0.2.%d\n", 1+i)
	}
	for i := range endpoints {
		zone += fmt.Sprintf("*.huge A 10.2.%d.%d\n", i>>8, i&255)
	}
	addr := proctest.FreeAddr(t)
	p := proctest.StartNSD(t, addr, map[string]string{"test": zone})
	t.Cleanup(func() { p.Signal(syscall.SIGCONT) }) // or it would not end in order
	return p, addr
}

// clientAddrs are n client addresses.
func clientAddrs(n int) (list []netip.Addr) {
	for i := range n {
		list = append(list, netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}))
	}
	return list
}
