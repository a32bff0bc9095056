// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// asked is how often the server was asked for a name.
func asked(up *upstreamtest.Server, name string) (n int) {
	for _, q := range up.Queries() {
		if q.Name == name {
			n++
		}
	}
	return n
}

// TestReloadKeepsLess has a reload turn keeping off for one zone: what is held of it is
// dropped and nothing more is kept, and other names stay.
func TestReloadKeepsLess(t *testing.T) {
	t.Parallel()
	up := upstreamtest.New(upstreamtest.Zone("www.test. 300 IN A 192.0.2.1", "www.apart.test. 300 IN A 192.0.2.2"))
	cfg := local(t, up.Listen(t))
	cfg.Forward = append(cfg.Forward, config.DefaultRoute("apart.test.", cfg.Forward[0].To...))
	a, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	both := func() (n [2]int) {
		t.Helper()
		for i, name := range []string{"www.test.", "www.apart.test."} {
			for range 3 {
				if m := ask(t, a, "udp", name); len(m.Answer) != 1 {
					t.Fatalf("%s: %v", name, m)
				}
			}
			n[i] = asked(up, name)
		}
		return n
	}
	if got := both(); got != [2]int{1, 1} {
		t.Errorf("with the cache on, upstream was asked %v times", got)
	}
	cfg.Forward = slices.Clone(cfg.Forward)
	cfg.Forward[1].NoCache = true
	a.Reload(cfg, nil)
	if got := both(); got != [2]int{1, 4} {
		t.Errorf("with the cache off for one, upstream was asked %v times in all, want 1 and 4", got)
	}
	a.Reload(cfg, nil) // changes nothing
	if got := both(); got != [2]int{1, 7} {
		t.Errorf("after a reload of the same, upstream was asked %v times in all, want 1 and 7", got)
	}
	cfg.Forward = slices.Clone(cfg.Forward)
	cfg.Forward[1].NoCache = false
	a.Reload(cfg, nil)
	if got := both(); got != [2]int{1, 8} {
		t.Errorf("with the cache on again, upstream was asked %v times in all, want 1 and 8", got)
	}
}

// TestReloadReroutes has a reload give a zone a route of its own, and take it away again:
// what the upstream before has said of it is forgotten, and other names stay.
func TestReloadReroutes(t *testing.T) {
	t.Parallel()
	world := upstreamtest.New(upstreamtest.Zone("www.test. 300 IN A 192.0.2.1"))
	corp := upstreamtest.New(upstreamtest.Zone("www.corp.test. 300 IN A 192.0.2.2"))
	cfg := local(t, world.Listen(t))
	a, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	rcodes := func() (codes [2]int) {
		t.Helper()
		for i, name := range []string{"www.test.", "www.corp.test."} {
			codes[i] = ask(t, a, "udp", name).Rcode
		}
		return codes
	}
	denied, known := [2]int{dns.RcodeSuccess, dns.RcodeNameError}, [2]int{}
	if got := rcodes(); got != denied {
		t.Fatalf("without a route: %v, want %v", got, denied)
	}
	without := cfg
	cfg.Forward = append(slices.Clone(cfg.Forward), config.DefaultRoute("corp.test.", config.Target{Kind: config.Plain, Addr: corp.Listen(t)}))
	a.Reload(cfg, nil)
	if got := rcodes(); got != known {
		t.Errorf("with one: %v, want %v", got, known)
	}
	a.Reload(without, nil)
	if got := rcodes(); got != denied {
		t.Errorf("without it again: %v, want %v", got, denied)
	}
	if n := asked(world, "www.test."); n != 1 {
		t.Errorf("a name that keeps its route was asked for %d times, want once", n)
	}
}

// TestLateAnswers has an upstream fall silent: its answers are given past their time,
// until a reload turns that off.
func TestLateAnswers(t *testing.T) {
	t.Parallel()
	up := upstreamtest.New(upstreamtest.Zone("www.test. 1 IN A 192.0.2.1"))
	cfg := local(t, up.Listen(t))
	cfg.Forward[0].MinTTL = time.Second
	cfg.Limits.Deadline = time.Second
	cfg.Cache.ServeStale.TTL = 7 * time.Second
	a, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	ask(t, a, "udp", "www.test.")
	up.SetScript(upstreamtest.Always(upstreamtest.Action{Drop: true}))
	var late *dns.Msg
	eventually(t, "the answer's time does not end", func() bool {
		late = ask(t, a, "udp", "www.test.")
		return len(late.Answer) == 1 && late.Answer[0].Header().Ttl == 7
	})
	eventually(t, "/status does not show it", func() bool { return status(t, a).Queries.BySource["stale"] > 0 })
	cfg.Cache.ServeStale.For = 0
	a.Reload(cfg, nil)
	if m := ask(t, a, "udp", "www.test."); m.Rcode != dns.RcodeServerFailure {
		t.Errorf("turned off: %v", m)
	}
}
