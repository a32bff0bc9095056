// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// centralConfig asks a central resolver, and has what changes in a folder of manifests drop its answers.
func centralConfig(t *testing.T, dir string, central netip.AddrPort) config.Config {
	t.Helper()
	cfg := local(t, central)
	cfg.Cluster.Resolver = config.ResolverCentral
	cfg.Cluster.Manifests = dir
	cfg.Cluster.Invalidate = true
	cfg.Cluster.Central.Addresses = []netip.AddrPort{central}
	return cfg
}

const web = "web.shop.svc.cluster.local."

// webAt is a central resolver's answer for the service web while it has the address, with a TTL of 300 s.
func webAt(addr string) upstreamtest.Script {
	list := []string{web + " 300 IN A " + addr}
	for _, name := range others() {
		list = append(list, name+" 300 IN A "+addr)
	}
	return upstreamtest.Zone(list...)
}

// others are services that do not change. One of them may share its place in the table of owners with what changes, and
// lose its answer with it.
func others() []string {
	return []string{"other.shop.svc.cluster.local.", "another.shop.svc.cluster.local."}
}

// expectOthers has one of the others at least be at the address.
func expectOthers(t *testing.T, a *agent.Agent, want string) {
	t.Helper()
	var got []string
	for _, name := range others() {
		got = append(got, addresses(ask(t, a, "udp", name)))
	}
	if !slices.Contains(got, want) {
		t.Errorf("services that did not change: %s, want what is held, %s", got, want)
	}
}

// awaitWeb waits until the agent gives web this address.
func awaitWeb(t *testing.T, a *agent.Agent, want string) {
	t.Helper()
	var got string
	proctest.Eventually(t, time.Minute, "web is not "+want, func() bool {
		got = addresses(ask(t, a, "udp", web))
		return got == want
	})
}

// putWeb changes the service in the folder.
func putWeb(t *testing.T, dir, addr string) {
	t.Helper()
	putManifest(t, dir, "web", serviceYAML("web", "{clusterIP: "+addr+", ports: [{port: 80}]}"))
}

// eventsOf is the number of changes that /status shows.
func eventsOf(t *testing.T, a *agent.Agent) (events uint64) {
	t.Helper()
	for _, k := range statusOf(t, a).Cluster.Kinds {
		events += k.Events
	}
	return events
}

// awaitKept asks for the name until its answer comes from the cache: soon after an event nothing is kept.
func awaitKept(t *testing.T, a *agent.Agent, central *upstreamtest.Server, name string) {
	t.Helper()
	proctest.Eventually(t, time.Minute, "the answer is not kept", func() bool {
		before := len(central.Queries())
		ask(t, a, "udp", name)
		return len(central.Queries()) == before
	})
}

// TestInvalidateReloaded turns the events off and on, and changes size and domain beside.
func TestInvalidateReloaded(t *testing.T) {
	t.Parallel()
	central := upstreamtest.New(webAt("10.96.0.7"))
	dir, other := folder(t), folder(t)
	cfg := centralConfig(t, dir, central.Listen(t))
	a, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	steps := []struct {
		what   string
		change func(*config.Config)
		dir    string // empty: no changes are received
	}{
		{"as it starts", nil, dir},
		{"a cache of another size", func(c *config.Config) { c.Cache.Size *= 2 }, dir},
		{"off", func(c *config.Config) { c.Cluster.Invalidate = false }, ""},
		{"on, another folder", func(c *config.Config) { c.Cluster.Invalidate, c.Cluster.Manifests = true, other }, other},
		{"other TTLs", func(c *config.Config) { c.Cache.MaxTTL = time.Hour }, other},
	}
	address := 7
	for _, step := range steps {
		if step.change != nil {
			step.change(&cfg)
			if _, err := a.Reload(cfg, nil); err != nil {
				t.Fatalf("%s: %s", step.what, err)
			}
		}
		if got, want := statusOf(t, a).Cluster.Source, step.dir; (got != "") != (want != "") {
			t.Errorf("%s: source %q, want %q", step.what, got, want)
		}
		if step.dir == "" {
			continue // what is kept now would stay
		}
		awaitKept(t, a, central, web)
		address++
		next := netip.AddrFrom4([4]byte{10, 96, 0, byte(address)}).String()
		central.SetScript(webAt(next))
		putWeb(t, step.dir, next)
		awaitWeb(t, a, next)
	}
}

// TestInvalidateAfterRestart changes one of three services while the agent is away: what a snapshot brought back of it is
// dropped, and the others' answers are kept.
func TestInvalidateAfterRestart(t *testing.T) {
	t.Parallel()
	central := upstreamtest.New(webAt("10.96.0.7"))
	dir := folder(t)
	putManifest(t, dir, "other", serviceYAML("other", "{clusterIP: 10.96.0.100, ports: [{port: 80}]}"))
	putManifest(t, dir, "another", serviceYAML("another", "{clusterIP: 10.96.0.101, ports: [{port: 80}]}"))
	cfg := centralConfig(t, dir, central.Listen(t))
	cfg.Snapshot.Folder = t.TempDir()
	a, stop := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	proctest.Eventually(t, time.Minute, "the folder is not read", func() bool { return eventsOf(t, a) > 2 })
	for _, name := range append(others(), web) {
		awaitKept(t, a, central, name)
	}
	stop()
	central.SetScript(webAt("10.96.0.8"))
	putWeb(t, dir, "10.96.0.8")
	asked := len(central.Queries())
	a, _ = start(t, agent.Options{Config: &cfg, Log: &journal{}})
	awaitWeb(t, a, "10.96.0.8")
	expectOthers(t, a, "10.96.0.7")
	if n := len(central.Queries()); n == asked {
		t.Error("the central resolver was not asked")
	}
}
