// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/netif"
)

var (
	own4 = netip.MustParseAddr("169.254.20.10")
	own6 = netip.MustParseAddr("fd00::53")
)

// linked is the Stats of a link of which nothing is at its zero value but what went wrong.
func linked() netif.Stats {
	return netif.Stats{
		Kind: "bridge", Reason: "no dummy", Held: []netip.Addr{own4, own6},
		Missing: map[netip.Addr]string{netip.MustParseAddr("fd00::54"): "taken"}, Duplicates: map[netip.Addr]string{own4: "eth0"},
		Repairs: 8401, Contested: true, StoodDown: true,
	}
}

// intercepted is the Stats of a keeper of which nothing is at its zero value but what went wrong.
func intercepted() intercept.Stats {
	s := numbered[intercept.Stats](8500)
	s.Backend = "nftables"
	s.Held = map[netip.Addr]bool{own4: true, netip.MustParseAddr("169.254.20.11"): true, own6: true, netip.MustParseAddr("fd00::54"): false}
	s.Fallback = make([]netip.AddrPort, 3)
	s.Released, s.StoodDown = true, true
	return s
}

// node adds what they become.
func node(want map[string]float64) {
	maps.Copy(want, map[string]float64{
		`interface_info{kind="bridge"}`:                        1,
		`interface_addresses{state="held"}`:                    2,
		`interface_addresses{state="missing"}`:                 1,
		`interface_addresses{state="elsewhere"}`:               1,
		"interface_repairs_total":                              8401,
		"interface_right":                                      1,
		"interface_contested":                                  1,
		"interface_stood_down":                                 1,
		`intercept_info{backend="nftables",mode="link-local"}`: 1,
		`intercept_lease_held{family="ipv4"}`:                  1,
		`intercept_lease_held{family="ipv6"}`:                  0,
		"intercept_lease_lost_seconds":                         8500 / 1e9,
		"intercept_lease_renewals_total":                       8501,
		"intercept_rule_checks_total":                          8510,
		"intercept_rule_repairs_total":                         8511,
		"intercept_rule_failures_total":                        8512,
		"intercept_watch_failures_total":                       8513,
		`intercept_fallback_targets{state="used"}`:             3,
		`intercept_fallback_targets{state="unused"}`:           8514,
		`panics_total{where="intercept"}`:                      8515,
		"intercept_rules_right":                                1,
		"intercept_released":                                   1,
		"intercept_stood_down":                                 1,
	})
	for i, reason := range []string{"no-proof", "silent", "refused", "wrong", "unsent", "wedged", "late", "kernel"} {
		want[fmt.Sprintf("intercept_lease_failures_total{reason=%q}", reason)] = float64(8502 + i)
	}
}

// changesBut is changes without the fields of some names.
func changesBut[T any](v T, without ...string) map[string]T {
	list := changes(v)
	for _, name := range without {
		delete(list, name)
	}
	return list
}

// TestNodeParts leaves out what is not managed, and what is not known.
func TestNodeParts(t *testing.T) {
	t.Parallel()
	link, rules := linked(), intercepted()
	for _, tt := range []struct {
		name  string
		link  *netif.Stats
		rules *intercept.Stats
		want  map[string]float64 // those of the node
	}{
		{name: "neither", want: map[string]float64{}},
		{
			name: "a link that is not there yet", link: &netif.Stats{}, want: map[string]float64{
				`interface_addresses{state="held"}`: 0, `interface_addresses{state="missing"}`: 0, `interface_addresses{state="elsewhere"}`: 0,
				"interface_repairs_total": 0, "interface_right": 1, "interface_contested": 0, "interface_stood_down": 0,
			},
		},
		{name: "rules of one family", rules: &intercept.Stats{
			Held: map[netip.Addr]bool{own6: true}, NotHeldFor: time.Minute,
		}, want: map[string]float64{`intercept_lease_held{family="ipv6"}`: 1}},
		{name: "both", link: &link, rules: &rules, want: func() map[string]float64 {
			all := map[string]float64{}
			node(all)
			delete(all, `panics_total{where="intercept"}`)
			return all
		}()},
	} {
		sample := distinct()
		sample.Link, sample.Intercept = tt.link, tt.rules
		got := map[string]float64{}
		for name, value := range series(gather(t, sample)) {
			switch {
			case tt.name == "rules of one family" && !strings.HasPrefix(name, "intercept_lease_held"):
			case strings.HasPrefix(name, "interface_"), strings.HasPrefix(name, "intercept_"):
				got[name] = value
			}
		}
		same(t, tt.name+": series of the node", tt.want, got)
	}
}
