// SPDX-License-Identifier: Apache-2.0

package hits

import (
	"testing"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"github.com/nodecache/node-cache/internal/assert"
)

// TestBridgePortChanges changes a port of the bridge, which the bridge reports too, as it does by itself 15 s after a port comes.
func TestBridgePortChanges(t *testing.T) {
	n := startNode(t)
	if n == nil {
		return
	}
	port, err := netlink.LinkByName("pod-bridged")
	assert.NoError(t, err)
	assert.NoError(t, netlink.LinkSetLearning(port, false))
	n.addPod(t, "late", 2, 2, 0) // whose report comes later
	n.awaitPrograms(t)
	if !n.prime(t, n.pods[1].dial(t, 0), query("www.test.", dns.TypeA)) {
		t.Error("the kernel does not answer the pod at that port")
	}
}
