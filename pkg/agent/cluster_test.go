// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// serviceYAML is a Service's manifest.
func serviceYAML(name, spec string) string {
	return "apiVersion: v1\nkind: Service\nmetadata: {name: " + name + ", namespace: shop}\nspec: " + spec + "\n"
}

// folder is a folder of manifests with one Service, web.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	putManifest(t, dir, "web", serviceYAML("web", "{clusterIP: 10.96.0.7, ports: [{port: 80}]}"))
	return dir
}

func putManifest(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name+".yaml")
	assert.NoError(t, os.WriteFile(path+".tmp", []byte(text), 0o600))
	assert.NoError(t, os.Rename(path+".tmp", path))
}

// clusterConfig answers the cluster's names from a folder of manifests.
func clusterConfig(t *testing.T, dir string, upstream netip.AddrPort) config.Config {
	t.Helper()
	cfg := local(t, upstream)
	cfg.Cluster.Resolver = config.ResolverLocal
	cfg.Cluster.Manifests = dir
	return cfg
}

// addresses are what a reply's answer section ends in, or its rcode.
func addresses(r *dns.Msg) string {
	var list []string
	for _, rr := range r.Answer {
		if a, ok := rr.(*dns.A); ok {
			list = append(list, a.A.String())
		}
	}
	if len(list) == 0 {
		return dns.RcodeToString[r.Rcode]
	}
	return strings.Join(list, " ")
}

// TestReloadUnderLoad changes every key that reloads live while clients ask: the name that exists throughout is always answered.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	up := upstreamtest.New(upstreamtest.Zone())
	dir, other := folder(t), folder(t)
	putManifest(t, other, "new", serviceYAML("new", "{clusterIP: 10.96.0.9, ports: [{port: 80}]}"))
	cfg := clusterConfig(t, dir, up.Listen(t))
	a, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})

	ctx, cancel := context.WithCancel(t.Context())
	var asked, wrong atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		c := &dns.Client{Timeout: 10 * time.Second}
		for ctx.Err() == nil {
			r, _, err := c.Exchange(new(dns.Msg).SetQuestion("web.shop.svc.cluster.local.", dns.TypeA), a.Addrs()[0].String())
			asked.Add(1)
			if err != nil || addresses(r) != "10.96.0.7" {
				wrong.Add(1)
			}
		}
	}()
	const name = "new.shop.svc.cluster.local."
	steps := []struct {
		what   string
		change func(*config.Config)
		want   string
		ok     bool
	}{
		{"another TTL", func(c *config.Config) { c.Cluster.TTL = 30 * time.Second }, "NXDOMAIN", true},
		{"another folder", func(c *config.Config) { c.Cluster.Manifests = other }, "10.96.0.9", true},
		{"a namespace filter that hides all else", func(c *config.Config) { c.Cluster.Namespaces = []string{"shop"} }, "10.96.0.9", true},
		{"a folder that is not there", func(c *config.Config) { c.Cluster.Manifests = filepath.Join(dir, "none") }, "10.96.0.9", false},
		{"an API server without credentials", func(c *config.Config) { c.Cluster.Manifests = "" }, "10.96.0.9", false},
		{"the first folder again", func(c *config.Config) { c.Cluster.Manifests = dir; c.Cluster.Namespaces = nil }, "NXDOMAIN", true},
		{"pods verified", func(c *config.Config) { c.Cluster.Pods = config.PodsVerified }, "NXDOMAIN", true},
	}
	for _, step := range steps {
		before := asked.Load()
		changed := cfg
		step.change(&changed)
		if _, err := a.Reload(changed, nil); (err == nil) != step.ok {
			t.Errorf("%s: applied %t, want %t: %v", step.what, err == nil, step.ok, err)
		}
		if step.ok {
			cfg = changed
		}
		if diff := cmp.Diff(step.want, addresses(ask(t, a, "udp", name))); diff != "" {
			t.Errorf("%s (-want +got)\n%s", step.what, diff)
		}
		proctest.Eventually(t, time.Minute, "the client is stuck", func() bool { return asked.Load() > before+20 })
	}
	cancel()
	<-done
	if n := wrong.Load(); n > 0 {
		t.Errorf("%d of %d queries during the reloads got no right answer", n, asked.Load())
	}
}

// TestExternalReloaded serves names in an external zone only while it is configured, and asks the upstream for those that it does
// not have where that is configured too.
func TestExternalReloaded(t *testing.T) {
	t.Parallel()
	up := upstreamtest.New(upstreamtest.Zone("web.shop.example.org. 30 IN A 192.0.2.1", "www.shop.example.org. 30 IN A 192.0.2.2"))
	dir := folder(t)
	putManifest(t, dir, "web", serviceYAML("web", "{clusterIP: 10.96.0.7, externalIPs: [198.51.100.7], ports: [{port: 80}]}")+
		"status: {loadBalancer: {ingress: [{ip: 203.0.113.7}]}}\n")
	cfg := clusterConfig(t, dir, up.Listen(t))
	cfg.Cache.NegativeTTL = 0
	a, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	for _, step := range []struct {
		name     string
		external config.External
		web, www string
		reverse  string
	}{
		{"off", config.External{}, "192.0.2.1", "192.0.2.2", "NXDOMAIN"},
		{"on", config.External{Zones: []string{"example.org."}}, "198.51.100.7 203.0.113.7", "NXDOMAIN", "web.shop.example.org."},
		{"with fallthrough", config.External{Zones: []string{"example.org."}, Fallthrough: true}, "198.51.100.7 203.0.113.7", "192.0.2.2", "web.shop.example.org."},
		{"another zone", config.External{Zones: []string{"example.net."}}, "192.0.2.1", "192.0.2.2", "web.shop.example.net."},
		{"off again", config.External{}, "192.0.2.1", "192.0.2.2", "NXDOMAIN"},
	} {
		cfg.Cluster.External = step.external
		if _, err := a.Reload(cfg, nil); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		got := strings.Fields(addresses(ask(t, a, "udp", "web.shop.example.org.")))
		slices.Sort(got)
		assert.Same(t, step.name+": a Service", step.web, strings.Join(got, " "))
		assert.Same(t, step.name+": another name", step.www, addresses(ask(t, a, "udp", "www.shop.example.org.")))
		assert.Same(t, step.name+": in the cluster", "10.96.0.7", addresses(ask(t, a, "udp", "web.shop.svc.cluster.local.")))
		r, _, err := new(dns.Client).Exchange(new(dns.Msg).SetQuestion("7.100.51.198.in-addr.arpa.", dns.TypePTR), a.Addrs()[0].String())
		assert.NoError(t, err)
		reverse := dns.RcodeToString[r.Rcode]
		if len(r.Answer) == 1 {
			reverse = r.Answer[0].(*dns.PTR).Ptr
		}
		assert.Same(t, step.name+": reverse name", step.reverse, reverse)
	}
}

// TestLoggedEndpoints follows a service with more endpoints than a line of the log is for.
func TestLoggedEndpoints(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	putManifest(t, dir, "dns", serviceYAML("dns", "{clusterIP: 10.96.0.10, ports: [{port: 53, protocol: TCP}]}"))
	var slice strings.Builder
	slice.WriteString("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n" +
		"metadata: {name: dns-1, namespace: shop, labels: {kubernetes.io/service-name: dns}}\n" +
		"addressType: IPv4\nports: [{port: 53, protocol: TCP}]\nendpoints:\n")
	for i := range 40 {
		fmt.Fprintf(&slice, "- {addresses: [10.244.0.%d]}\n", i+1)
	}
	putManifest(t, dir, "slice", slice.String())
	cfg := clusterConfig(t, dir, netip.MustParseAddrPort("127.0.0.1:1"))
	cfg.Cluster.Resolver = config.ResolverCentral
	cfg.Cluster.Central.Service = config.ServiceName{Namespace: "shop", Name: "dns"}
	var log journal
	start(t, agent.Options{Config: &cfg, Log: &log})
	proctest.Eventually(t, time.Minute, "the endpoints are not logged", func() bool { return strings.Contains(log.String(), `"count":40`) })
	if n := strings.Count(log.String(), "10.244.0."); n != 16 {
		t.Errorf("%d endpoints in the log, want 16:\n%s", n, log.String())
	}
}

// TestPodsNeedNodeName refuses to identify the pods of a node without a name, unless they are the kubelet's. An agent without
// an API server and a kubelet is ready then.
func TestPodsNeedNodeName(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	for _, identity := range []string{config.IdentityAPI, config.IdentityAuto, config.IdentityKubelet} {
		cfg := local(t, netip.MustParseAddrPort("127.0.0.1:9"))
		cfg.Pods.Identity = identity
		if identity == config.IdentityKubelet {
			start(t, agent.Options{Config: &cfg, Log: io.Discard})
			continue
		}
		_, err := agent.New(agent.Options{Config: &cfg, Log: io.Discard})
		hinted := (*hint.Error)(nil)
		if !errors.As(err, &hinted) || err.Error() != "pods.identity: the environment variable NODE_NAME is not set" || hinted.Hint == "" {
			t.Errorf("%s: got %v, hint %+v", identity, err, hinted)
		}
	}
}
