// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"errors"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
)

// TestHits has the kernel answer hits, on a kernel that may have no tcx. An agent is killed, followed by another one, and killed
// and cleaned up after.
func TestHits(t *testing.T) {
	n := newNode(t)
	text, err := os.ReadFile(n.config)
	assert.NoError(t, err)
	assert.NoError(t, os.WriteFile(n.config, append(text, "kernel: {hits: on}\n"...), 0o644))
	agent := n.start(t)
	n.awaitHits(t)
	agent.Kill()
	n.awaitServer(t, byOthers) // filters that are left let everything pass
	agent = n.start(t)
	n.awaitHits(t)
	if count := n.filters(t); count != 0 && count != 2*3 {
		t.Errorf("%d filters at 3 interfaces, want two at each", count)
	}
	legacy := n.filters(t) > 0
	t.Attr("hook", map[bool]string{true: "clsact", false: "tcx"}[legacy])
	agent.Kill()
	n.awaitServer(t, byOthers)
	out, err := n.Node.Output(t.Context(), n.program, "cleanup", "--config", n.config)
	assert.NoError(t, err)
	assert.Equal(t, "cleanup removed filters", legacy, strings.Contains(out, "removed: filters on pod0"))
	assert.Equal(t, "filters after the cleanup", 0, n.filters(t))
}

// awaitHits waits until the kernel answers a pod in both families.
func (n *node) awaitHits(t *testing.T) {
	t.Helper()
	for _, addr := range addresses() {
		before := n.hits(t)
		poll(t, "the kernel answers at "+addr.String(), func() error {
			if _, err := nodetest.Ask(n.Pods[0], netip.AddrPortFrom(addr, 53), "udp"); err != nil {
				return err
			}
			if n.hits(t) == before {
				return errors.New("no hit is counted")
			}
			return nil
		})
	}
}

// hits returns the line of the metrics with the answers of the kernel.
func (n *node) hits(t *testing.T) string {
	t.Helper()
	page, err := nodetest.Fetch(t.Context(), n.Node, http.MethodGet, "http://127.0.0.1:9253/metrics")
	assert.NoError(t, err)
	return regexp.MustCompile(`(?m)^nodecache_responses_total\{rcode="NOERROR",source="kernel"\} .*$`).FindString(page)
}

// filters returns the number of filters on all interfaces of the node.
func (n *node) filters(t *testing.T) (count int) {
	t.Helper()
	assert.NoError(t, n.Node.Do(func() error {
		list, err := netlink.LinkList()
		for _, dev := range list {
			for _, side := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
				found, listErr := netlink.FilterList(dev, side)
				count, err = count+len(found), errors.Join(err, listErr)
			}
		}
		return err
	}))
	return count
}
