// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

func addrs(list ...string) []netip.Addr {
	var parsed []netip.Addr
	for _, s := range list {
		parsed = append(parsed, netip.MustParseAddr(s))
	}
	return parsed
}

func servers(list ...string) []netip.AddrPort {
	var parsed []netip.AddrPort
	for _, s := range list {
		parsed = append(parsed, netip.MustParseAddrPort(s))
	}
	return parsed
}

// redirects returns the pairs of the list.
func redirects(list ...string) []rules.Redirect {
	var pairs []rules.Redirect
	for pair := range slices.Chunk(addrs(list...), 2) {
		pairs = append(pairs, rules.Redirect{From: pair[0], To: pair[1]})
	}
	return pairs
}

// linkLocal returns valid rules with both families.
func linkLocal() rules.Rules {
	return rules.Rules{
		Owner: "a1", Addresses: addrs("169.254.20.10", "fd00::10"), Port: 53,
		Fallback: servers("10.0.0.1:53", "10.0.0.2:5353", "[fd01::1]:53"),
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*rules.Rules)
		want   []string // parts of the error, one for each problem
	}{
		{name: "both families", change: func(*rules.Rules) {}},
		{name: "no owner", change: func(r *rules.Rules) { r.Owner = "" }, want: []string{`owner ""`}},
		{name: "an owner with an upper-case letter and a dash", change: func(r *rules.Rules) { r.Owner = "A-b" }, want: []string{`owner "A-b"`}},
		{name: "an owner that is too long", change: func(r *rules.Rules) { r.Owner = strings.Repeat("a", 17) }, want: []string{"owner"}},
		{name: "no address", change: func(r *rules.Rules) { r.Addresses = nil }, want: []string{"need an address"}},
		{name: "no port", change: func(r *rules.Rules) { r.Port = 0 }, want: []string{"a port"}},
		{
			name:   "addresses that are not unicast or have a zone",
			change: func(r *rules.Rules) { r.Addresses = addrs("0.0.0.0", "fe80::1%eth0", "::ffff:10.0.0.1") },
			want:   []string{"0.0.0.0", "fe80::1%eth0", "::ffff:10.0.0.1"},
		},
		{name: "an address twice", change: func(r *rules.Rules) { r.Addresses = addrs("10.0.0.1", "10.0.0.1") }, want: []string{"address 10.0.0.1"}},
		{
			name:   "a service of a family without an address",
			change: func(r *rules.Rules) { r.Addresses, r.Services = addrs("169.254.20.10"), addrs("fd00::a") },
			want:   []string{"service address fd00::a"},
		},
		{
			name:   "two services of a family",
			change: func(r *rules.Rules) { r.Services = addrs("10.96.0.10", "10.96.0.11") },
			want:   []string{"10.96.0.11 is the second"},
		},
		{
			name: "other servers", change: func(r *rules.Rules) {
				r.Addresses = addrs("169.254.20.10", "fd00::10", "169.254.20.11", "fd00::11")
				r.Servers = redirects("10.0.0.53", "169.254.20.11", "fd00::53", "fd00::11")
			},
		},
		{
			name: "servers without an agent address of their own, or that are the agent",
			change: func(r *rules.Rules) {
				r.Servers = redirects("10.0.0.53", "169.254.20.11", "fd00::53", "169.254.20.10", "fd00::10", "fd00::10")
			},
			want: []string{"server 10.0.0.53: 169.254.20.11", "server fd00::53: 169.254.20.10", "server fd00::10 is the agent"},
		},
		{
			name: "a server twice, and one that shares the agent address of the Service",
			change: func(r *rules.Rules) {
				r.Mode, r.Services, r.Addresses = rules.Transparent, addrs("10.96.0.10"), addrs("169.254.20.10", "169.254.20.11", "169.254.20.12")
				r.Fallback = nil
				r.Servers = redirects("10.0.0.53", "169.254.20.11", "10.0.0.53", "169.254.20.12", "10.0.0.54", "169.254.20.10")
			},
			want: []string{"server 10.0.0.53 and its agent address 169.254.20.12", "server 10.0.0.54 and its agent address 169.254.20.10"},
		},
		{
			name: "fallbacks without a port, twice, or of the agent",
			change: func(r *rules.Rules) {
				r.Fallback = servers("10.0.0.1:0", "169.254.20.10:53", "10.0.0.2:53", "10.0.0.2:53")
			},
			want: []string{"10.0.0.1:0", "169.254.20.10:53 is the agent itself", "10.0.0.2:53"},
		},
		{
			name: "a fallback that is the service",
			change: func(r *rules.Rules) {
				r.Mode, r.Excluded, r.Services = rules.Transparent, true, addrs("10.0.0.1")
			},
			want: []string{"10.0.0.1:53 is the Service itself"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := linkLocal()
			test.change(&r)
			err := r.Check()
			if (err == nil) != (len(test.want) == 0) {
				t.Fatalf("Check() = %v, want problems %q", err, test.want)
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("Check() = %v, want it to contain %q", err, part)
				}
			}
		})
	}
}

func TestLeases(t *testing.T) {
	t.Parallel()
	r := linkLocal()
	same := cmpopts.EquateComparable(netip.Addr{})
	want := []rules.Lease{
		{Key: netip.MustParseAddr("169.254.20.10"), Probe: netip.MustParseAddr("169.254.20.10")},
		{Key: netip.MustParseAddr("fd00::10"), Probe: netip.MustParseAddr("fd00::10")},
	}
	assert.Same(t, "link-local", want, r.Leases(), same)
	r.Mode, r.Services = rules.Transparent, addrs("fd00:96::a", "10.96.0.10")
	want = []rules.Lease{
		{Key: netip.MustParseAddr("fd00:96::a"), Probe: netip.MustParseAddr("fd00::10")},
		{Key: netip.MustParseAddr("10.96.0.10"), Probe: netip.MustParseAddr("169.254.20.10")},
	}
	assert.Same(t, "transparent", want, r.Leases(), same)
	r.Addresses, r.Servers = append(r.Addresses, netip.MustParseAddr("169.254.20.11")), redirects("10.0.0.53", "169.254.20.11")
	server := rules.Lease{Key: r.Servers[0].From, Probe: r.Servers[0].To}
	assert.Same(t, "transparent, another server", append(want, server), r.Leases(), same)
	assert.Same(t, "transparent: keys with a fallback", nil, r.FallbackKeys(), same, cmpopts.EquateEmpty())
	r.Excluded = true
	assert.Same(t, "excluded: keys with a fallback", r.Services, r.FallbackKeys(), same)
	r.Mode, r.Services = rules.LinkLocal, nil
	assert.Same(t, "link-local: keys with a fallback", addrs("169.254.20.10", "fd00::10"), r.FallbackKeys(), same)
	assert.Same(t, "link-local, another server", addrs("169.254.20.10", "fd00::10", "10.0.0.53"), r.Keys(), same)
}

func TestFamily(t *testing.T) {
	t.Parallel()
	r := linkLocal()
	r.Services, r.Servers = addrs("10.96.0.10"), redirects("10.0.0.53", "169.254.20.10")
	same := cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})
	four, six := r.Family(false), r.Family(true)
	want4, want6 := r, r
	want4.Addresses, want4.Fallback = addrs("169.254.20.10"), servers("10.0.0.1:53", "10.0.0.2:5353")
	want6.Addresses, want6.Services, want6.Servers, want6.Fallback = addrs("fd00::10"), nil, nil, servers("[fd01::1]:53")
	assert.Same(t, "IPv4", want4, four, same, cmpopts.EquateEmpty())
	assert.Same(t, "IPv6", want6, six, same, cmpopts.EquateEmpty())
	assert.Same(t, "Family changed its receiver", linkLocal().Addresses, r.Addresses, same)
}
