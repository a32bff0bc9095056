// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/config"
)

func TestParseRoute(t *testing.T) {
	t.Parallel()
	tls := func(addr, name string) config.Target {
		return config.Target{Kind: config.TLS, Addr: netip.MustParseAddrPort(addr), Name: name}
	}
	https := func(addr, name, path string) config.Target {
		return config.Target{Kind: config.HTTPS, Addr: netip.MustParseAddrPort(addr), Name: name, Path: path}
	}
	for _, tt := range []struct {
		name string
		text string // of the route of the root, without its zone
		want config.Route
	}{
		{name: "nothing but a target", text: "to: [192.0.2.1]", want: config.DefaultRoute(".", config.Target{Addr: netip.MustParseAddrPort("192.0.2.1:53")})},
		{
			name: "every spelling of TLS",
			text: "to: ['tls://192.0.2.1', 'tls://192.0.2.2:53', 'tls://192.0.2.3#DNS.Example.', 'tls://2001:db8::1#a', 'tls://[2001:db8::2]', " +
				"'tls://[2001:db8::3]:54#my_dns-1.example']",
			want: config.DefaultRoute(
				".", tls("192.0.2.1:853", ""), tls("192.0.2.2:53", ""), tls("192.0.2.3:853", "dns.example"), tls("[2001:db8::1]:853", "a"),
				tls("[2001:db8::2]:853", ""), tls("[2001:db8::3]:54", "my_dns-1.example"),
			),
		},
		{
			name: "every spelling of HTTPS by address",
			text: "to: ['https://192.0.2.1', 'https://192.0.2.2/', 'https://192.0.2.3:8443/q/x#DNS.Example', 'https://[2001:db8::1]#a', 'https://2001:db8::2/dns-query']",
			want: config.DefaultRoute(
				".", https("192.0.2.1:443", "", "/dns-query"), https("192.0.2.2:443", "", "/"), https("192.0.2.3:8443", "dns.example", "/q/x"),
				https("[2001:db8::1]:443", "a", "/dns-query"), https("[2001:db8::2]:443", "", "/dns-query"),
			),
		},
		{
			name: "HTTPS by name",
			text: "to: ['https://DNS.example.:8443/q', 'https://192.0.2.9'], bootstrap: [192.0.2.1, '2001:db8::1']",
			want: func() config.Route {
				r := config.DefaultRoute(
					".", config.Target{Kind: config.HTTPS, Addr: netip.AddrPortFrom(netip.Addr{}, 8443), Name: "dns.example", Path: "/q"},
					https("192.0.2.9:443", "", "/dns-query"),
				)
				r.Bootstrap = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
				return r
			}(),
		},
		{
			name: "every other key",
			text: "to: ['tls://192.0.2.1'], policy: sequential, connections: 16, rate: 1000000, case: off, trustAD: on, tls: {ca: a/../ca.pem}, https: {method: get}, clientSubnet: pass, minTTL: 0s, maxTTL: 168h, negativeTTL: 24h, cache: off",
			want: config.Route{
				Zone: ".", To: []config.Target{tls("192.0.2.1:853", "")}, Policy: config.PolicySequential, Connections: 16, Rate: 1_000_000,
				PlainCase: true, TrustAD: true, RouteTLS: config.RouteTLS{CA: "ca.pem"}, RouteHTTPS: config.RouteHTTPS{Method: config.MethodGet}, ClientSubnet: true,
				MinTTL: 0, MaxTTL: 168 * time.Hour, NegativeTTL: 24 * time.Hour, NoCache: true,
			},
		},
		{
			name: "letters on as YAML reads it", text: "to: ['tls://192.0.2.1'], case: on",
			want: config.DefaultRoute(".", tls("192.0.2.1:853", "")),
		},
		{
			name: "letters in quotes", text: "to: ['tls://192.0.2.1'], case: 'on'",
			want: config.DefaultRoute(".", tls("192.0.2.1:853", "")),
		},
		{
			name: "one address over each transport", text: "to: [192.0.2.1, 'tcp://192.0.2.1', 'tls://192.0.2.1', 'https://192.0.2.1', 'tls://192.0.2.1:443']",
			want: config.DefaultRoute(
				".", config.Target{Addr: netip.MustParseAddrPort("192.0.2.1:53")}, config.Target{Kind: config.TCP, Addr: netip.MustParseAddrPort("192.0.2.1:53")},
				tls("192.0.2.1:853", ""), https("192.0.2.1:443", "", "/dns-query"), tls("192.0.2.1:443", ""),
			),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := config.Parse([]byte("forward: [{zone: ., "+tt.text+"}]"), config.Agent)
			must(t, err)
			same(t, "routes", []config.Route{tt.want}, got.Forward, plain())
			roundTrip(t, got, config.Agent)
		})
	}
}

func TestRouteHasTheBoundsOfTheCache(t *testing.T) {
	t.Parallel()
	const text = `
forward:
- {zone: a, to: [192.0.2.1]}
- {zone: b, to: [192.0.2.1], minTTL: 0s}
- {zone: c, to: [192.0.2.1], maxTTL: 10s, cache: on}
- {zone: ., to: [192.0.2.1], negativeTTL: 1s, cache: 'off'}
cache: {minTTL: 7s, maxTTL: 70s, negativeTTL: 700s}
`
	c, err := config.Parse([]byte(text), config.Agent)
	must(t, err)
	type bounds struct {
		Zone               string
		Min, Max, Negative time.Duration
		NoCache            bool
	}
	want := []bounds{
		{"a.", 7 * time.Second, 70 * time.Second, 700 * time.Second, false},
		{"b.", 0, 70 * time.Second, 700 * time.Second, false},
		{"c.", 7 * time.Second, 10 * time.Second, 700 * time.Second, false},
		{".", 7 * time.Second, 70 * time.Second, time.Second, true},
	}
	var got []bounds
	for _, r := range c.Forward {
		got = append(got, bounds{r.Zone, r.MinTTL, r.MaxTTL, r.NegativeTTL, r.NoCache})
	}
	same(t, "bounds", want, got)
	roundTrip(t, c, config.Agent)
}

// TestDefaultRoute holds the defaults of a route to those of the cache.
func TestDefaultRoute(t *testing.T) {
	t.Parallel()
	c, err := config.Parse([]byte("forward: [{zone: ., to: [192.0.2.1]}]"), config.Agent)
	must(t, err)
	want := config.DefaultRoute(".", config.Target{Addr: netip.MustParseAddrPort("192.0.2.1:53")})
	if diff := cmp.Diff([]config.Route{want}, c.Forward, plain()); diff != "" {
		t.Errorf("a route of nothing but its zone and target (-DefaultRoute +Parse):\n%s", diff)
	}
}

func TestRouteUpstreams(t *testing.T) {
	t.Parallel()
	const text = "forward: [{zone: ., to: [192.0.2.1, 'https://dns.example:8443/q', 'tls://192.0.2.2#a', /etc/resolv.conf], bootstrap: [192.0.2.3, '2001:db8::1']}]"
	c, err := config.Parse([]byte(text), config.Agent)
	must(t, err)
	want := []string{"192.0.2.1", "https://192.0.2.3:8443/q#dns.example", "https://[2001:db8::1]:8443/q#dns.example", "tls://192.0.2.2#a", "/etc/resolv.conf"}
	var got []string
	for _, u := range c.Forward[0].Upstreams() {
		got = append(got, u.String())
	}
	same(t, "upstreams", want, got)
}
