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
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"

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
			golden(t, s.name+".nft", ruleset(t, hosts.Node))
		})
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	four, six := familyOf(false), familyOf(true)
	tests := []struct {
		want  string
		exprs []match
	}{
		{"meta l4proto udp dport 53 goto query", []match{udpTo(53), goTo(chainQuery)}},
		{"meta l4proto tcp sport 53 goto reply", []match{tcpFrom(53), goTo(chainReply)}},
		{"meta nfproto ipv4 ip daddr in @lease4 notrack accept", []match{four.is(), four.toAny(leaseSet), notrack()}},
		{"meta nfproto ipv6 ip6 saddr fd00::a:1 ip6 daddr != fd00::a:1 accept", []match{six.is(), six.from(agent6()), six.notTo(agent6()), accept()}},
		{"ip daddr 169.254.20.10 meta mark & 0x1000 != 0x0 notrack accept", []match{four.to(agent4()), marked(true), notrack()}},
		{"meta mark & 0x1000 == 0x0 reject", []match{marked(false), reset()}},
		{"meta l4proto tcp sport not in @moved6", []match{six.notRecorded(movedSet)}},
		{"meta l4proto tcp tcp flags & 0x12 == 0x02 …", []match{four.recordSession(movedSet)}},
		{"ct state not untracked ct status & 0x20 != 0x0 masquerade", []match{tracked(), isDNAT(), masquerade()}},
		{"dnat", []match{four.dnatTo(central4())}},
		{"ip saddr 10.0.0.0/8 -j DROP", []match{{
			&expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: ipv4Source, Len: 1}, equal([]byte{10}), &expr.Target{Name: "DROP"},
		}}},
		{"iifname eth0 -m comment verdict 7", []match{{
			&expr.Meta{Key: expr.MetaKeyIIFNAME}, equal([]byte("eth0\x00")), &expr.Match{Name: "comment"}, &expr.Verdict{Kind: 7},
		}}},
		{"bytes 4 to 6 of header 1 0x0102", []match{{&expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: 4, Len: 2}, equal([]byte{1, 2})}}},
		{"…  in @__map%d dnat", []match{four.dnatRandom(&batch{}, []netip.AddrPort{central4()})}},
	}
	for _, tt := range tests {
		if got := strings.TrimSpace(Describe(slices.Concat(tt.exprs...), nil)); got != tt.want {
			t.Errorf("described as %q, want %q", got, tt.want)
		}
	}
	comment := userdata.AppendString(nil, userdata.TypeComment, "why")
	if got := Describe(accept(), comment); got != `accept comment "why"` {
		t.Errorf("with a comment: %q", got)
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
