// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
)

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
	assert.NoError(t, err)
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
	assert.Same(t, "bounds", want, got)
	roundTrip(t, c, config.Agent)
}

// TestDefaultRoute holds the defaults of a route to those of the cache.
func TestDefaultRoute(t *testing.T) {
	t.Parallel()
	c, err := config.Parse([]byte("forward: [{zone: ., to: [192.0.2.1]}]"), config.Agent)
	assert.NoError(t, err)
	want := config.DefaultRoute(".", config.Target{Addr: netip.MustParseAddrPort("192.0.2.1:53")})
	if diff := cmp.Diff([]config.Route{want}, c.Forward, plain()); diff != "" {
		t.Errorf("a route of nothing but its zone and target (-DefaultRoute +Parse):\n%s", diff)
	}
}

func TestRouteUpstreams(t *testing.T) {
	t.Parallel()
	const text = "forward: [{zone: ., to: [192.0.2.1, 'https://dns.example:8443/q', 'tls://192.0.2.2#a', /etc/resolv.conf], bootstrap: [192.0.2.3, '2001:db8::1']}]"
	c, err := config.Parse([]byte(text), config.Agent)
	assert.NoError(t, err)
	want := []string{"192.0.2.1", "https://192.0.2.3:8443/q#dns.example", "https://[2001:db8::1]:8443/q#dns.example", "tls://192.0.2.2#a", "/etc/resolv.conf"}
	var got []string
	for _, u := range c.Forward[0].Upstreams() {
		got = append(got, u.String())
	}
	assert.Same(t, "upstreams", want, got)
}
