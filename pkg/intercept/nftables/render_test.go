// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

type shape struct {
	name  string
	rules rules.Rules
}

// shapes returns all kinds of rules.
func shapes() []shape {
	four := linkLocalRules(netip.MustParseAddrPort("10.201.0.2:53"), netip.MustParseAddrPort("10.201.0.3:5353"))
	four.Addresses, four.Admin = four.Addresses[:1], 0
	part := transparentRules()
	part.Services = part.Services[:1]
	cilium := linkLocalRules(netip.MustParseAddrPort("10.201.0.2:53"), netip.MustParseAddrPort("[fd00:201::2]:5353"))
	cilium.Track, cilium.MarkHost = true, true
	excluded := transparentRules()
	excluded.Excluded, excluded.Track, excluded.Fallback = true, true, cilium.Fallback
	servers := cilium
	servers.Addresses = append(slices.Clone(servers.Addresses), netip.MustParseAddr("169.254.20.11"), netip.MustParseAddr("fd00::a:2"))
	servers.Servers = []rules.Redirect{
		{From: netip.MustParseAddr("10.203.0.2"), To: netip.MustParseAddr("169.254.20.11")},
		{From: netip.MustParseAddr("fd00:203::2"), To: netip.MustParseAddr("fd00::a:2")},
	}
	return []shape{
		{name: "servers", rules: servers},
		{name: "excluded", rules: excluded},
		{name: "link-local-cilium", rules: cilium},
		{name: "link-local", rules: linkLocalRules(netip.MustParseAddrPort("10.201.0.2:53"), netip.MustParseAddrPort("10.201.0.3:5353"), netip.MustParseAddrPort("[fd00:201::2]:53"))},
		{name: "link-local-ipv4", rules: four},
		{name: "link-local-nowhere", rules: linkLocalRules()},
		{name: "transparent", rules: transparentRules()},
		{name: "transparent-ipv4", rules: part},
	}
}

// TestGolden compares the rules in the kernel with golden files, as nft lists them.
func TestGolden(t *testing.T) {
	t.Parallel()
	for _, s := range shapes() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			hosts := nodetest.Start(t, nodetest.Options{Pods: 1})
			b := newBackend(t, hosts.Node)
			if !apply(t, b, s.rules) {
				t.Error("the first Apply changed nothing")
			}
			assert.Golden(t, filepath.Join("testdata", s.name+".nft"), ruleset(t, hosts.Node))
		})
	}
}

func TestNoFallback(t *testing.T) {
	t.Parallel()
	nowhere, through := linkLocalRules(), transparentRules()
	through.Fallback = []netip.AddrPort{central4()}
	only6 := linkLocalRules(central4())
	only6.Addresses = only6.Addresses[1:]
	for name, r := range map[string]rules.Rules{"no targets": nowhere, "transparent": through, "targets of another family": only6} {
		var tx batch
		if addFallback(&tx, &r); len(tx.messages) > 0 {
			t.Errorf("%s: %v, want no table", name, tx.names)
		}
	}
}

// TestTargets parses targets as a map has them.
func TestTargets(t *testing.T) {
	t.Parallel()
	for _, want := range []string{"10.0.0.1:53", "[fd00::1]:65535", "255.255.255.255:1"} {
		a := netip.MustParseAddrPort(want)
		data := appendTarget(nil, a)
		if got, ok := parseTarget(data); !ok || got != a || len(data) != int(familyOf(a.Addr().Is6()).size)+4 {
			t.Errorf("%s is read as %s, %t, from %d bytes", want, got, ok, len(data))
		}
	}
	if got, ok := parseTarget([]byte{1, 2, 3}); ok {
		t.Errorf("three bytes are read as %s", got)
	}
}

// TestBatchSize adds more targets than there are at any time: nothing panics.
func TestBatchSize(t *testing.T) {
	t.Parallel()
	r := linkLocalRules()
	for i := range 1000 {
		r.Fallback = append(r.Fallback, netip.MustParseAddrPort(fmt.Sprintf("10.0.%d.%d:53", i/250, i%250+1)))
	}
	var tx batch
	addFallback(&tx, &r)
	if tx.rules == 0 {
		t.Error("there are no rules")
	}
}
