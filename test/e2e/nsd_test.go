// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"testing"

	"github.com/nodecache/node-cache/internal/proctest"
)

// nameServer is a running NSD.
type nameServer struct {
	*proctest.Process
	addr string // IP:port, for UDP and TCP
}

// startNSD serves the main and the outside zone on a free port of 127.0.0.1.
func startNSD(t *testing.T) *nameServer {
	t.Helper()
	return startNSDAt(t, proctest.FreeAddr(t), mainZone())
}

// startNSDAt serves the given text as e2e.test at the address, and the other zone beside it.
func startNSDAt(t *testing.T, addr netip.AddrPort, zone string) *nameServer {
	t.Helper()
	return &nameServer{proctest.StartNSD(t, addr, map[string]string{"e2e.test": zone, "outside.test": outsideZone()}), addr.String()}
}
