// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
)

// TestNeverASource reads which source addresses the kernel selects for the node's own packets, before and after Setup, on each kind of
// link, with links of the node that are older and younger than the agent's. One of them has no address, like the host's end of a pod's
// veth: the kernel then takes an address of another link, and would take the agent's if its scope were wider.
func TestNeverASource(t *testing.T) {
	t.Parallel()
	for _, kind := range []Kind{Dummy, Bridge, Loopback} {
		for _, older := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, links of the node are older: %t", kind, older), func(t *testing.T) {
				t.Parallel()
				probe := kind
				if kind == Loopback {
					probe = Bridge // the harness makes one to see whether the kernel can
				}
				h := newKernelHarness(t, probe)
				config := h.config("one")
				config.Kind = kind
				addLinks(h)
				want := sources(h)
				if !older {
					removeLinks(h)
				}
				h.setup(config)
				if !older {
					addLinks(h)
				}
				got := sources(h)
				assert.Same(t, "sources", want, got)
				if slices.ContainsFunc(got, func(s string) bool {
					return strings.HasSuffix(s, " "+ip4.String()) || strings.HasSuffix(s, " "+ip6.String())
				}) {
					t.Errorf("the agent's address is a source: %q", got)
				}
			})
		}
	}
}

// addLinks adds a network interface with addresses, and the host's end of a pod's veth with a route only.
func addLinks(h *harness) {
	h.Helper()
	for _, name := range []string{"nic", "pod"} {
		assert.NoError(h, h.createOther(name, "veth"))
		assert.NoError(h, h.setUp(h.device(name).index))
		assert.NoError(h, h.setUp(h.device(name+"-p").index)) // else the kernel has no carrier, and skips its routes
	}
	nic, pod := h.device("nic").index, h.device("pod").index
	assert.NoError(h, h.addPrefix(nic, netip.MustParsePrefix("10.1.0.5/24"), 0, false))
	assert.NoError(h, h.addPrefix(nic, netip.MustParsePrefix("fd01::5/64"), 0, false))
	for dst, r := range map[string]netlink.Route{
		"0.0.0.0/0":   {LinkIndex: nic, Gw: net.ParseIP("10.1.0.1")},
		"::/0":        {LinkIndex: nic, Gw: net.ParseIP("fd01::1")},
		"10.2.0.7/32": {LinkIndex: pod, Scope: netlink.SCOPE_LINK},
		"fd02::7/128": {LinkIndex: pod},
	} {
		_, r.Dst, _ = net.ParseCIDR(dst)
		assert.NoError(h, netlink.RouteAdd(&r))
	}
}

func removeLinks(h *harness) {
	h.Helper()
	for _, name := range []string{"nic", "pod"} {
		assert.NoError(h, h.deleteLink(h.device(name).index))
	}
}

// sources returns the source that the kernel selects for each destination.
func sources(h *harness) []string {
	h.Helper()
	var list []string
	for _, to := range []string{"10.1.0.9", "192.0.2.1", "10.2.0.7", "fd01::9", "2001:db8::1", "fd02::7"} {
		found, err := netlink.RouteGet(net.ParseIP(to))
		if err != nil || len(found) != 1 || found[0].Type != unix.RTN_UNICAST {
			h.Fatalf("route to %s: %v, %v", to, found, err)
		}
		list = append(list, to+" from "+found[0].Src.String())
	}
	return list
}
