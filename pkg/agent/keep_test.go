// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// denied answers a query: the name does not exist.
func denied(q []byte) []byte {
	var m dns.Msg
	if m.Unpack(q) != nil {
		return nil
	}
	r := new(dns.Msg).SetRcode(&m, dns.RcodeNameError)
	r.RecursionAvailable = true
	soa, err := dns.NewRR("test. 60 IN SOA ns.test. host.test. 1 3600 600 86400 60")
	if err != nil {
		return nil
	}
	r.Ns = []dns.RR{soa}
	msg, err := r.Pack()
	if err != nil {
		return nil
	}
	return msg
}

// TestKeepStates checks what /status says of names of cache.keep that different parts of the agent answer, and after a reload.
func TestKeepStates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		assert.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		assert.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	write("objects/service.yaml", "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Namespace, metadata: {name: a}}, "+
		"{apiVersion: v1, kind: Service, metadata: {namespace: a, name: alias}, spec: {type: ExternalName, externalName: www.test}}]}")
	zone := upstreamtest.Zone("www.test. 60 IN A 192.0.2.1", "new.test. 60 IN A 192.0.2.2")
	server := upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
		if q.Name == "fails.test." {
			return upstreamtest.Action{Rcode: dns.RcodeServerFailure}
		}
		if q.Name == "gone.test." {
			return upstreamtest.Action{Raw: []upstreamtest.Raw{denied}}
		}
		return zone(q)
	})
	cfg := local(t, server.Listen(t))
	cfg.Cluster = config.Cluster{Resolver: config.ResolverLocal, Manifests: filepath.Join(dir, "objects")}
	cfg.Hosts.Names = map[string][]netip.Addr{"host.test.": {netip.MustParseAddr("192.0.2.9")}}
	cfg.Block.Files = []string{write("block", "ads.test\n")}
	cfg.Cache.Keep.Names = []string{"www.test.", "host.test.", "ads.test.", "gone.test.", "fails.test.", "alias.a.svc.cluster.local."}
	a, _ := start(t, agent.Options{Config: &cfg, Log: io.Discard})
	want := map[string]string{
		"www.test.": "fresh", "host.test.": "static", "ads.test.": "block", "gone.test.": "denied", "fails.test.": "absent", "alias.a.svc.cluster.local.": "zone",
	}
	got := func() map[string]string {
		states := map[string]string{}
		for _, k := range a.Status().Cache.Keep {
			if k.Type == "A" {
				states[k.Name] = k.State
			}
		}
		return states
	}
	proctest.Eventually(t, 20*time.Second, "states", func() bool {
		for name, state := range want {
			if got()[name] != state {
				return false
			}
		}
		return true
	})
	_, series := page(t, a, "/metrics")
	if !holds(series, []string{
		`nodecache_cache_keep_age_seconds{name="fails.test.",type="A"} +Inf`, `nodecache_cache_keep_age_seconds{name="host.test.",type="A"} 0`,
	}) {
		t.Errorf("metrics: %s", series)
	}

	cfg.Cache.Keep.Names = []string{"new.test."}
	_, err := a.Reload(cfg, nil)
	assert.NoError(t, err)
	proctest.Eventually(t, 20*time.Second, "another name", func() bool {
		states := got()
		return len(states) == 1 && states["new.test."] == "fresh"
	})
	cfg.Cache.Keep.Names = nil
	_, err = a.Reload(cfg, nil)
	assert.NoError(t, err)
	if len(a.Status().Cache.Keep) > 0 {
		t.Errorf("names after their removal: %v", a.Status().Cache.Keep)
	}
}
