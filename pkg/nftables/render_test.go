// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"flag"
	"net/netip"
	"testing"

	"github.com/nodecache/node-cache/internal/nodelab"
	"github.com/nodecache/node-cache/pkg/rules"
)

var update = flag.Bool("update", false, "rewrite the files in testdata")

type shape struct {
	name  string
	rules rules.Rules
}

// shapes are the kinds of rules that there are.
func shapes() []shape {
	four := linkLocalRules(netip.MustParseAddrPort("10.201.0.2:53"), netip.MustParseAddrPort("10.201.0.3:5353"))
	four.Addresses, four.Admin = four.Addresses[:1], 0
	part := transparentRules()
	part.Services = part.Services[:1]
	return []shape{
		{name: "link-local", rules: linkLocalRules(netip.MustParseAddrPort("10.201.0.2:53"), netip.MustParseAddrPort("10.201.0.3:5353"), netip.MustParseAddrPort("[fd00:201::2]:53"))},
		{name: "link-local-ipv4", rules: four},
		{name: "link-local-nowhere", rules: linkLocalRules()},
		{name: "transparent", rules: transparentRules()},
		{name: "transparent-ipv4", rules: part},
	}
}

// TestGolden reads back what the kernel was told, as the program nft says it.
func TestGolden(t *testing.T) {
	t.Parallel()
	for _, s := range shapes() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			lab := nodelab.ForTest(t, nodelab.Options{Pods: 1})
			b := in(t, lab.Node)
			if !apply(t, b, s.rules) {
				t.Error("the first Apply changed nothing")
			}
			golden(t, s.name+".nft", ruleset(t, lab.Node))
		})
	}
}
