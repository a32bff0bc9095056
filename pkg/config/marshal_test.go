// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
)

func TestMarshal(t *testing.T) {
	t.Parallel()
	got, err := config.Marshal(with(func(c *config.Config) {
		c.Listen.Addresses = append(c.Listen.Addresses, netip.IPv6Loopback())
		c.Forward = append(c.Forward, config.Route{
			Zone: "example.com.", ClientSubnet: true,
			To: []config.Target{
				{Kind: config.TCP, Addr: netip.MustParseAddrPort("192.0.2.1:54")},
				{Kind: config.TLS, Addr: netip.MustParseAddrPort("[2001:db8::1]:853"), Name: "dns.example"},
				{Kind: config.HTTPS, Addr: netip.AddrPortFrom(netip.Addr{}, 443), Name: "dns.example", Path: "/dns-query"},
			},
			Bootstrap: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
			Policy:    config.PolicyRandom, Connections: 16, Rate: 500, RandomCase: true, TrustAD: true,
			RouteTLS: config.RouteTLS{CA: "ca.pem"}, RouteHTTPS: config.RouteHTTPS{Method: config.MethodGet},
			MinTTL: 0, MaxTTL: 90 * time.Second, NegativeTTL: time.Second, NoCache: true,
		})
		c.ClusterDomain = "k8s.example."
		c.Cluster = config.Cluster{
			Resolver: config.ResolverLocal, Manifests: "objects",
			Central:   config.Central{Addresses: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53")}, Connections: 3, CentralTLS: config.CentralTLS{TLSPort: 853}},
			Endpoints: config.EndpointsAll, PodNames: true, Pods: config.PodsVerified,
			Namespaces: []string{"kube-system", "shop"}, ServiceSelector: "app in (web, \tapi)", IgnoreEmptyService: true,
			TTL: 0, StaleAfter: 5500 * time.Millisecond, NodeZone: "",
			Ranges:     []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")},
			TransferTo: []config.TransferClient{{Prefix: netip.MustParsePrefix("192.0.2.1/32"), Port: 53}},
		}
		c.Interface.Kind = config.LinkBridge
		c.Intercept.Mode, c.Intercept.OnExit, c.Intercept.Lease = config.ModeLinkLocal, config.ExitRemove, 2500*time.Millisecond
		c.Intercept.Fallback = config.Fallback{Addresses: []netip.AddrPort{netip.MustParseAddrPort("[2001:db8::1]:53")}}
		c.Identity.Version = "a \"b\" \u00e9\u2028\U0001f600"
		c.Admin.Address = netip.AddrPort{}
		c.Cache.ServeStale, c.Cache.NXDomainCut = config.ServeStale{For: 90 * time.Minute, TTL: time.Second, After: 1500 * time.Millisecond}, true
		c.Snapshot = config.Snapshot{Folder: "kept", Period: 90 * time.Second, Size: 3 << 20, MaxAge: 36 * time.Hour}
		c.Limits.PerClient, c.Admin.Socket, c.Admin.Hosts = 7, "/run/a b.sock", []string{"a.example", "b"}
		c.Hosts = config.Hosts{
			Files: []string{"/etc/hosts"}, NoReverse: true,
			Names: map[string][]netip.Addr{"a.example.": {netip.IPv6Loopback(), netip.MustParseAddr("192.0.2.1")}},
		}
		c.Rewrite = []config.Rewrite{{Exact: "a.example", To: "b.example"}, {Prefix: "p-"}, {Suffix: ".a", To: ".b"}}
		c.Templates = []config.Template{{
			Zone: ".", Types: []uint16{28, 65000}, Match: []string{`^(?P<host>\w+)[.]`}, Rcode: 3, Answer: []string{`{{ .Name }} TXT "a\b"`},
			Authority: []string{"a. NS b."}, Additional: []string{"b. A 192.0.2.1"},
		}}
		c.Block = config.Block{Files: []string{"/etc/block/ads.txt"}, Answer: config.BlockAnswer{Addresses: []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}}}
		c.DNS64 = config.DNS64{Prefix: netip.MustParsePrefix("64:ff9b::/96"), TranslateAll: true, Clients: config.DNS64All}
		c.Handover.Socket = "/run/h.sock"
		c.Probes = []config.Probe{{Label: "a", Server: "tcp://[::1]:53", Name: ".", Type: 2, Interval: time.Minute, Timeout: 1500 * time.Millisecond}}
		c.Log.Queries = config.QueryLog{Mode: config.QueriesSample, Sample: 7}
	}))
	assert.NoError(t, err)
	assert.Golden(t, "testdata/marshal.txt", string(got))
	again, err := config.Parse(got, config.Agent)
	assert.NoError(t, err)
	if want := "a \"b\" \u00e9\u2028\U0001f600"; again.Identity.Version != want {
		t.Errorf("version %q, want %q", again.Identity.Version, want)
	}
}

// TestMarshalRefusesWhatParseCannotReturn compares the errors with a file.
func TestMarshalRefusesWhatParseCannotReturn(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for _, tt := range []struct {
		name   string
		change func(*config.Config)
	}{
		{"out of range", func(c *config.Config) { c.Listen.UDPSize = 1 }},
		{"no root zone", func(c *config.Config) { c.Forward[0].Zone = "example.com." }},
		{"a zone that is not lower-case", func(c *config.Config) {
			c.Forward = append(c.Forward, config.DefaultRoute("Example.com.", c.Forward[0].To...))
		}},
		{"more digits than a percentage has", func(c *config.Config) { c.Cache.Prefetch.Remaining = 1.0 / 3 }},
		{"part of a second", func(c *config.Config) { c.Cache.MinTTL = time.Millisecond }},
		{"a route without bounds", func(c *config.Config) { c.Forward[0].MaxTTL, c.Forward[0].NegativeTTL = 0, 0 }},
		{"a socket that is not clean", func(c *config.Config) { c.Admin.Socket = "/run//a.sock" }},
		{"an empty list that is not nil", func(c *config.Config) { c.Cluster.Namespaces = []string{} }},
		{"a fallback of two kinds", func(c *config.Config) {
			c.Intercept.Fallback.Addresses = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53")}
		}},
		{"an answer of two kinds", func(c *config.Config) {
			c.Block.Answer = config.BlockAnswer{NoData: true, Addresses: []netip.Addr{netip.IPv4Unspecified()}}
		}},
		{"an address at a host name of its own", func(c *config.Config) {
			c.Forward[0].To = []config.Target{{Kind: config.TLS, Addr: netip.MustParseAddrPort("192.0.2.1:853"), Name: "DNS.example"}}
		}},
		{"a mode of its own", func(c *config.Config) { c.Cluster.Pods = "some" }},
		{"a level of its own", func(c *config.Config) { c.Log.Level = slog.LevelInfo + 1 }},
		{"a code that no template has", func(c *config.Config) { c.Templates = []config.Template{{Zone: ".", Rcode: 6}} }},
		{"a host in upper case", func(c *config.Config) {
			c.Hosts.Names = map[string][]netip.Addr{"A.": {netip.IPv6Loopback()}}
		}},
		{"an unknown query log", func(c *config.Config) { c.Log.Queries.Mode = "many" }},
	} {
		text, err := config.Marshal(with(tt.change))
		if err == nil {
			t.Fatalf("%s: no error, and\n%s", tt.name, text)
		}
		all.WriteString("# " + tt.name + "\n" + err.Error() + "\n")
	}
	assert.Golden(t, "testdata/marshal-refused.txt", all.String())
}
