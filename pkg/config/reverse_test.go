// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
)

func TestReverseZones(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string][]string{
		"0.0.0.0/0":             {"in-addr.arpa."},
		"10.0.0.0/8":            {"10.in-addr.arpa."},
		"10.96.0.0/14":          {"96.10.in-addr.arpa.", "97.10.in-addr.arpa.", "98.10.in-addr.arpa.", "99.10.in-addr.arpa."},
		"10.96.0.7/32":          {"7.0.96.10.in-addr.arpa."},
		"192.168.254.0/23":      {"254.168.192.in-addr.arpa.", "255.168.192.in-addr.arpa."},
		"::/0":                  {"ip6.arpa."},
		"fd00::/8":              {"d.f.ip6.arpa."},
		"2001:db8:ab::/47":      {"a.a.0.0.8.b.d.0.1.0.0.2.ip6.arpa.", "b.a.0.0.8.b.d.0.1.0.0.2.ip6.arpa."},
		"2001:db8:ab:cde0::/60": {"e.d.c.b.a.0.0.8.b.d.0.1.0.0.2.ip6.arpa."},
	} {
		p := netip.MustParsePrefix(prefix).Masked()
		got := config.ReverseZones(p)
		// The first address of the prefix, as the oracle spells it, is in the first zone.
		name, err := dns.ReverseAddr(p.Addr().String())
		if err != nil || !dns.IsSubDomain(got[0], name) {
			t.Errorf("%s: %s is not in %s: %v", prefix, name, got[0], err)
		}
		assert.Same(t, prefix, want, got)
	}
}
