// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/pkg/rules"
)

var update = flag.Bool("update", false, "rewrite the files in testdata")

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
	return []shape{
		{name: "link-local", rules: linkLocalRules(netip.MustParseAddrPort("10.201.0.2:53"), netip.MustParseAddrPort("10.201.0.3:5353"), netip.MustParseAddrPort("[fd00:201::2]:53"))},
		{name: "link-local-ipv4", rules: four},
		{name: "link-local-nowhere", rules: linkLocalRules()},
		{name: "transparent", rules: transparentRules()},
		{name: "transparent-ipv4", rules: part},
	}
}

// TestGolden compares the rules in the kernel, as nft lists them, with golden files.
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
			golden(t, s.name+".nft", ruleset(t, hosts.Node))
		})
	}
}

// TestRender compares the rules as data and needs no kernel.
func TestRender(t *testing.T) {
	t.Parallel()
	for _, s := range shapes() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			var got strings.Builder
			leases, fallback := render(&s.rules)
			for _, tb := range []*table{leases, fallback} {
				if tb == nil {
					continue
				}
				fmt.Fprintln(&got, "table", tb.name)
				for _, c := range tb.chains {
					fmt.Fprintf(&got, "  chain %s %s %d %d\n", c.name, c.kind, c.hook, c.priority)
					for _, r := range tb.rules {
						if r.chain == c.name {
							fmt.Fprintf(&got, "    %s # %s\n", Describe(r.exprs, nil), r.comment)
						}
					}
				}
				var tx batch
				tb.addTo(&tx)
				if tx.err != nil {
					t.Errorf("encoding %s: %v", tb.name, tx.err)
				}
			}
			golden(t, s.name+".txt", got.String())
		})
	}
}

// golden compares got with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// TestRenderChains checks that each rule is in an existing chain, and each chain before
// those that jump to it.
func TestRenderChains(t *testing.T) {
	t.Parallel()
	for _, s := range shapes() {
		leases, fallback := render(&s.rules)
		for _, tb := range []*table{leases, fallback} {
			if tb == nil {
				continue
			}
			for _, r := range tb.rules {
				at := slices.IndexFunc(tb.chains, func(c chain) bool { return c.name == r.chain })
				if at < 0 {
					t.Errorf("%s: a rule in %s, which is not there", s.name, r.chain)
				}
				_, to, ok := strings.Cut(Describe(r.exprs, nil), "goto ")
				if ok && !slices.ContainsFunc(tb.chains[:max(at, 0)], func(c chain) bool { return c.name == to }) {
					t.Errorf("%s: %s goes to %s, which does not come before it", s.name, r.chain, to)
				}
			}
		}
	}
}

func TestRenderFallback(t *testing.T) {
	t.Parallel()
	nowhere, through := linkLocalRules(), transparentRules()
	through.Fallback = []netip.AddrPort{central4()}
	only6 := linkLocalRules(central4())
	only6.Addresses = only6.Addresses[1:]
	for name, r := range map[string]rules.Rules{"no targets": nowhere, "transparent": through, "targets of another family": only6} {
		if fallback := renderFallback(&r); fallback != nil {
			t.Errorf("%s: a table %+v, want none", name, fallback)
		}
	}
}

// TestTargets parses the elements of a map.
func TestTargets(t *testing.T) {
	t.Parallel()
	for _, want := range []string{"10.0.0.1:53", "[fd00::1]:65535", "255.255.255.255:1"} {
		a := netip.MustParseAddrPort(want)
		s := family{v6: a.Addr().Is6()}.targets([]netip.AddrPort{a})
		if got, ok := parseTarget(s.elements[0].data); !ok || got != a {
			t.Errorf("%s is read as %s, %t", want, got, ok)
		}
		if len(s.elements[0].data) != int(s.dataLen) {
			t.Errorf("%s takes %d bytes, want %d", want, len(s.elements[0].data), s.dataLen)
		}
	}
	if got, ok := parseTarget([]byte{1, 2, 3}); ok {
		t.Errorf("three bytes are read as %s", got)
	}
}

// TestBatchSize checks that a batch is far smaller than the limit of the netlink library.
func TestBatchSize(t *testing.T) {
	t.Parallel()
	r := linkLocalRules()
	for i := range 1000 {
		r.Fallback = append(r.Fallback, netip.MustParseAddrPort(fmt.Sprintf("10.0.%d.%d:53", i/250, i%250+1)))
	}
	var tx batch
	renderFallback(&r).addTo(&tx)
	if tx.err != nil {
		t.Fatal(tx.err)
	}
	for i, m := range tx.messages {
		if len(m.Data) > unix.NLA_ALIGNTO<<14 {
			t.Errorf("%s: %d bytes", tx.names[i], len(m.Data))
		}
	}
}
