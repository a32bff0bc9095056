// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// numbered answers each query for one of the names by another address: an answer shows whether it was asked for anew. How
// many queries came would not: one that is not answered in time is sent once more.
func numbered(ttl time.Duration, names ...string) upstreamtest.Script {
	var number atomic.Uint32
	return func(q upstreamtest.Query) upstreamtest.Action {
		if !slices.Contains(names, q.Name) {
			return upstreamtest.Action{Rcode: dns.RcodeNameError}
		}
		n := number.Add(1)
		addr := netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)})
		return upstreamtest.Action{Records: []string{fmt.Sprintf("%s %d IN A %s", q.Name, int(ttl.Seconds()), addr)}}
	}
}

// TestReloadKeepsLess has a reload turn keeping off for one zone: what is held of it is
// dropped and nothing more is kept, and other names stay.
func TestReloadKeepsLess(t *testing.T) {
	t.Parallel()
	names := []string{"www.test.", "www.apart.test."}
	up := upstreamtest.New(numbered(time.Hour, names...))
	cfg := local(t, up.Listen(t))
	cfg.Forward = append(cfg.Forward, config.DefaultRoute("apart.test.", cfg.Forward[0].To...))
	a, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	told := [2]map[string]bool{{}, {}} // what was answered so far
	both := func() (asked [2]int) {
		t.Helper()
		for i, name := range names {
			for range 3 {
				m := ask(t, a, "udp", name)
				if len(m.Answer) != 1 {
					t.Fatalf("%s: %v", name, m)
				}
				told[i][addresses(m)] = true
			}
			asked[i] = len(told[i])
		}
		return asked
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
	world := upstreamtest.New(numbered(time.Hour, "www.test."))
	corp := upstreamtest.New(upstreamtest.Zone("www.corp.test. 300 IN A 192.0.2.2"))
	cfg := local(t, world.Listen(t))
	a, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	told := map[string]bool{} // of the name that keeps its route
	rcodes := func() (codes [2]int) {
		t.Helper()
		stays := ask(t, a, "udp", "www.test.")
		told[addresses(stays)] = true
		return [2]int{stays.Rcode, ask(t, a, "udp", "www.corp.test.").Rcode}
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
	if len(told) != 1 {
		t.Errorf("a name that keeps its route was asked for anew: %v", told)
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
