// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

func addrs(list ...string) []netip.Addr {
	var all []netip.Addr
	for _, a := range list {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

func addrPorts(list ...string) []netip.AddrPort {
	var all []netip.AddrPort
	for _, a := range list {
		all = append(all, netip.MustParseAddrPort(a))
	}
	return all
}

// linkLocal are rules with everything.
func linkLocal() rules.Rules {
	return rules.Rules{
		Owner: "first", Mode: rules.LinkLocal, Addresses: addrs("169.254.20.10", "fd00:20::10"), Port: 53, Admin: 9253,
		Fallback: addrPorts("10.201.0.2:5301", "10.201.0.2:5302", "10.201.0.2:5303", "[fd00:201::2]:5301"),
	}
}

func transparent() rules.Rules {
	r := linkLocal()
	r.Mode, r.Fallback = rules.Transparent, nil
	r.Services = []netip.Addr{nodetest.ServiceIPv4(), nodetest.ServiceIPv6()}
	return r
}

// excluded are the rules for a Service that no data plane serves.
func excluded() rules.Rules {
	r := transparent()
	r.Excluded, r.Track, r.Fallback = true, true, linkLocal().Fallback
	return r
}

func without(r rules.Rules, change func(*rules.Rules)) rules.Rules {
	change(&r)
	return r
}

// withServers adds other servers, one of each family.
func withServers(r *rules.Rules) {
	to := addrs("169.254.20.11", "fd00:20::11")
	r.Addresses = append(r.Addresses, to...)
	for i, from := range addrs("10.203.0.2", "fd00:203::2") {
		r.Servers = append(r.Servers, rules.Redirect{From: from, To: to[i]})
	}
}

// plans are the rules that have golden files.
func plans() map[string]rules.Rules {
	return map[string]rules.Rules{
		"link-local":             linkLocal(),
		"link-local-cilium":      without(linkLocal(), func(r *rules.Rules) { r.Track, r.MarkHost = true, true }),
		"link-local-no-fallback": without(linkLocal(), func(r *rules.Rules) { r.Fallback = nil }),
		"link-local-no-admin":    without(linkLocal(), func(r *rules.Rules) { r.Admin = 0 }),
		"link-local-two":         without(linkLocal(), func(r *rules.Rules) { r.Addresses = addrs("169.254.20.10", "169.254.20.11"); r.Port = 1053 }),
		"transparent":            transparent(),
		"servers":                without(linkLocal(), withServers),
		"servers-cilium":         without(excluded(), withServers),
		"excluded":               excluded(),
		"transparent-ipv4":       without(transparent(), func(r *rules.Rules) { r.Services = r.Services[:1] }),
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	for name, r := range plans() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.NoError(t, r.Check())
			assert.Golden(t, filepath.Join("testdata", name+".txt"), render(&r))
		})
	}
}

func render(r *rules.Rules) string {
	s := &variantTables{}
	return "# ipv4\n" + s.changes(false, nil, plan(r, false, true)) + "# ipv6\n" + s.changes(true, nil, plan(r, true, true))
}

// The kernel must print rules in our words: comparing is then a matter of text, and a
// restarted agent changes nothing.
func TestPlanIsWhatTheKernelPrints(t *testing.T) {
	t.Parallel()
	for name, r := range plans() {
		for _, v := range []Variant{Nft, Legacy} {
			t.Run(name+" "+string(v), func(t *testing.T) {
				t.Parallel()
				_, b := openNode(t, v)
				apply(t, b, r)
				for i, v6 := range []bool{false, true} {
					want := agentLines(plan(&r, v6, true))
					for _, table := range tables() {
						if diff := cmp.Diff(strings.Join(want[table], "\n"), strings.Join(b.own.last[i].lines[table], "\n")); diff != "" {
							t.Errorf("table %s (-rendered +printed):\n%s", table, diff)
						}
					}
				}
			})
		}
	}
}

func TestZone(t *testing.T) {
	t.Parallel()
	a := addrPorts("10.0.0.1:53", "10.0.0.2:53")
	b := addrPorts("10.0.0.2:53", "10.0.0.1:53")
	if zone(a) != zone(b) {
		t.Error("the order of the list changes its zone")
	}
	seen := map[uint16]string{}
	for i := range 200 {
		list := addrPorts(fmt.Sprintf("10.0.0.%d:53", i))
		z := zone(list)
		if z == 0 || z == rules.Zone {
			t.Errorf("%v has zone %d, which means something else", list, z)
		}
		seen[z] = list[0].String()
	}
	if len(seen) < 190 {
		t.Errorf("200 lists have %d zones", len(seen))
	}
}
