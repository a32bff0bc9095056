// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/configsource"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/intercept/intercepttest"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// goodServer is an upstream that has an A record for each name, badServer one that refuses all.
func goodServer(q upstreamtest.Query) upstreamtest.Action {
	return upstreamtest.Action{Records: []string{q.Name + " 60 IN A 192.0.2.1"}}
}

func badServer(upstreamtest.Query) upstreamtest.Action {
	return upstreamtest.Action{Rcode: dns.RcodeRefused}
}

// requiring sends all names of cfg to a server, and requires one of them.
func requiring(cfg config.Config, to netip.AddrPort) config.Config {
	cfg.Forward = []config.Route{config.DefaultRoute(".", config.Target{Kind: config.Plain, Addr: to})}
	cfg.RequiredNames = []string{"www.test."}
	return cfg
}

// asks asks the agent for the required name, and returns the response code; -1: no reply.
func asks(t *testing.T, a *Agent) int {
	t.Helper()
	r, _, err := (&dns.Client{Timeout: 5 * time.Second}).Exchange(new(dns.Msg).SetQuestion("www.test.", dns.TypeA), a.Addrs()[0].String())
	if err != nil {
		return -1
	}
	return r.Rcode
}

// requiredProblem returns the text of the problem about required names, if there is one.
func requiredProblem(a *Agent) string {
	list := a.Status().Problems
	if i := slices.IndexFunc(list, func(p status.Problem) bool { return p.Reason == status.RequiredNameFails }); i >= 0 {
		return list[i].What
	}
	return ""
}

// TestRequiredNamesHandOver has the next agent get a configuration whose upstream does not exist. Neither the cache of its predecessor nor
// the fallback, which both have the name, hide that. The predecessor answers on until a better configuration comes.
func TestRequiredNamesHandOver(t *testing.T) {
	t.Parallel()
	good, bad := upstreamtest.New(goodServer).Listen(t), proctest.FreeAddr(t)
	cfg := requiring(handingConfig(t), good)
	cfg.Snapshot.Folder = t.TempDir()
	cfg.Intercept.Fallback = config.Fallback{Addresses: []netip.AddrPort{good}}
	first, _ := startHanding(t, newFakeHost(), cfg)
	if got := asks(t, first); got != dns.RcodeSuccess {
		t.Fatalf("the first one answers with %d", got)
	}
	second := agentOnHost(t, newFakeHost(), requiring(cfg, bad))
	stop := runNode(t, second)
	until(t, "the second one waits for the name", func() bool {
		return strings.Contains(second.handover.recorder.Stats().WaitsFor, "www.test. has no address: SERVFAIL")
	})
	if got := notAnswered(second); !strings.HasPrefix(got, "starting: waits for its requiredNames, before taking over from agent "+first.token+": www.test.") {
		t.Errorf("it is not ready: %q", got)
	}
	if got := requiredProblem(second); !strings.HasPrefix(got, "www.test. has no address: SERVFAIL") {
		t.Errorf("problem %q", got)
	}
	until(t, "the timeline has it", func() bool {
		return slices.ContainsFunc(second.Status().Timeline, func(e status.TimelineEntry) bool { return e.Reason == status.RequiredNameFails })
	})
	until(t, "routes ask the fallback", func() bool { return second.running.Load().routes[0].pool.AllDown() })
	for range 2 { // the first may have begun before
		before := second.gate.failed.Load()
		until(t, "the name still fails", func() bool { now := second.gate.failed.Load(); return now != nil && now != before })
	}
	if got := asks(t, first); got != dns.RcodeSuccess || first.notReady() != nil {
		t.Errorf("meanwhile the first one answers with %d, not ready: %v", got, first.notReady())
	}
	reload(t, second, cfg)
	until(t, "it takes over", func() bool { return second.notReady() == nil })
	if got := notAnswered(first); got != "handed over to agent "+second.token {
		t.Errorf("the first one reports %q", got)
	}
	if got := asks(t, second); got != dns.RcodeSuccess || requiredProblem(second) != "" {
		t.Errorf("the second one answers with %d, problem %q", got, requiredProblem(second))
	}
	if err := stop(); err != nil {
		t.Errorf("the second one ended with %v", err)
	}
}

// TestRequiredNamesPredecessorStops has the predecessor stop while the names of the next agent fail: that one takes the sockets, and
// leaves the queries to the fallback.
func TestRequiredNamesPredecessorStops(t *testing.T) {
	t.Parallel()
	good, bad := upstreamtest.New(goodServer).Listen(t), upstreamtest.New(badServer).Listen(t)
	cfg := requiring(handingConfig(t), good)
	m1, m2 := newFakeHost(), newFakeHost()
	m2.kernel = m1.kernel
	first, stop := startHanding(t, m1, cfg)
	second := agentOnHost(t, m2, requiring(cfg, bad))
	runNode(t, second)
	until(t, "the second one waits for the name", func() bool { return strings.Contains(notAnswered(second), "www.test.") })
	if err := stop(); err != nil {
		t.Errorf("the first one ended with %v", err)
	}
	until(t, "the second one has taken over", func() bool { return second.Status().Handover.Taken == handover.OutcomeTaken })
	until(t, "the fallback answers", func() bool { return wayOf(m1, &cfg) == intercepttest.ToFallback })
	if got := notAnswered(second); !strings.HasPrefix(got, "www.test. has no address") {
		t.Errorf("it is not ready: %q; the first one: %q", got, notAnswered(first))
	}
	reload(t, second, cfg)
	until(t, "the second one answers", func() bool { return wayOf(m1, &cfg) == intercepttest.ToAgent && second.notReady() == nil })
}

// TestRequiredNamesAtStart starts an agent without a predecessor while its upstream refuses. A later outage does not matter.
func TestRequiredNamesAtStart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		fallback config.Fallback
		want     intercepttest.Decision // while the name fails
	}{
		{"with a fallback", config.Fallback{Addresses: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:53")}}, intercepttest.ToFallback},
		{"without a fallback", config.Fallback{}, intercepttest.Direct}, // the address is this host's
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := upstreamtest.New(badServer)
			m, cfg := newFakeHost(), requiring(nodeConfig(t), server.Listen(t))
			cfg.Intercept.Fallback = tt.fallback
			a := agentOnHost(t, m, cfg)
			runNode(t, a)
			until(t, "the name fails", func() bool { return strings.HasPrefix(notAnswered(a), "www.test. has no address: SERVFAIL") })
			until(t, "queries go where they should", func() bool { return wayOf(m, &cfg) == tt.want })
			if !answers(t, a) || requiredProblem(a) == "" || slices.Contains(m.lines(), "lease") {
				t.Errorf("problem %q, done to the node: %v", requiredProblem(a), m.lines())
			}
			server.SetScript(goodServer)
			until(t, "the agent answers", func() bool { return wayOf(m, &cfg) == intercepttest.ToAgent && a.notReady() == nil })
			server.SetScript(badServer)
			if _ = asks(t, a); a.notReady() != nil || wayOf(m, &cfg) != intercepttest.ToAgent {
				t.Errorf("after an outage: %v", a.notReady())
			}
		})
	}
}

// TestRequiredNamesServedBefore restarts an agent during an outage: with the configuration that served before it serves at once, with
// another one it does not, nor is that kept as the last good one.
func TestRequiredNamesServedBefore(t *testing.T) {
	t.Parallel()
	server := upstreamtest.New(goodServer)
	m, cfg := newFakeHost(), requiring(config.Default(config.Agent), server.Listen(t))
	cfg.Listen.Port, cfg.Admin = nodeConfig(t).Listen.Port, config.Admin{}
	file, kept := filepath.Join(t.TempDir(), "node-cache.yaml"), t.TempDir()
	start := func() (*Agent, func() error) {
		a, err := newAgent(t.Context(), m, Options{Source: configsource.Config{File: file, LastGood: kept}, Log: t.Output()})
		assert.NoError(t, err)
		return a, runNode(t, a)
	}
	lastGood := func() string {
		text, err := os.ReadFile(filepath.Join(kept, "last-good.yaml"))
		if err != nil {
			return ""
		}
		_, keys, _ := strings.Cut(string(text), "used at a start") // the header has the time, and the checksum at the end is of it too
		keys, _, _ = strings.Cut(keys, "# This is the end")
		return keys
	}
	save(t, file, cfg, "")
	a, stop := start()
	until(t, "the configuration is kept", func() bool { return a.notReady() == nil && lastGood() != "" })
	assert.NoError(t, stop())
	before := lastGood()

	server.SetScript(badServer)
	a, stop = start()
	until(t, "it serves during an outage", func() bool { return a.notReady() == nil })
	assert.NoError(t, stop())

	cfg.Cache.MaxTTL = time.Minute
	save(t, file, cfg, "")
	a, stop = start()
	until(t, "another configuration is checked", func() bool { return strings.HasPrefix(notAnswered(a), "www.test. has no address") })
	assert.NoError(t, stop())
	assert.Equal(t, "last good configuration", before, lastGood())
}

// TestRequiredNamesReload has a running agent refuse a change that breaks a name, and apply those that break none.
func TestRequiredNamesReload(t *testing.T) {
	t.Parallel()
	good, bad := upstreamtest.New(goodServer), upstreamtest.New(badServer).Listen(t)
	cfg := requiring(nodeConfig(t), good.Listen(t))
	a, _ := serveOnHost(t, newFakeHost(), cfg)
	wrong := requiring(cfg, bad)
	_, err := a.Reload(wrong, nil)
	if err == nil || !strings.HasPrefix(err.Error(), "requiredNames: with this configuration www.test. has no address: SERVFAIL") || a.Config().Forward[0].To[0].Addr == bad {
		t.Errorf("a change that breaks the name: %v", err)
	}
	if got := asks(t, a); got != dns.RcodeSuccess || a.notReady() != nil {
		t.Errorf("after it the agent answers with %d, not ready: %v", got, a.notReady())
	}
	good.SetScript(badServer)
	off := cfg
	off.Standby = true
	reload(t, a, off)
	reload(t, a, cfg)
	reload(t, a, wrong) // nothing shows that it is worse
}

// A recordedCheck is the check of a gate that fails until good is set, and notes when it ran.
type recordedCheck struct {
	at    []time.Duration
	began time.Time
	takes time.Duration
	good  atomic.Bool
	last  *generation // the last one that was checked
}

func (c *recordedCheck) run(ctx context.Context, r *generation) []*unresolved {
	c.at, c.last = append(c.at, time.Since(c.began)), r
	select {
	case <-time.After(c.takes):
	case <-ctx.Done():
	}
	if c.good.Load() {
		return nil
	}
	return []*unresolved{{"www.test.", errors.New("SERVFAIL")}}
}

// TestNameGate runs a gate whose names fail: how often it checks, and what ends or restarts its wait at once.
func TestNameGate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		after time.Duration
		do    func(c *recordedCheck, r *generation, leaving chan struct{}, cancel func())
		want  bool
		ends  time.Duration // after do, at most
	}{
		{"names resolve", time.Minute, func(c *recordedCheck, _ *generation, _ chan struct{}, _ func()) { c.good.Store(true) }, true, 12500 * time.Millisecond},
		{"the configuration is replaced", time.Minute, func(c *recordedCheck, r *generation, _ chan struct{}, _ func()) {
			c.good.Store(true)
			close(r.replaced)
		}, true, 5 * time.Second},
		{"the configuration is replaced during a check that succeeds", 2 * time.Second, func(c *recordedCheck, r *generation, _ chan struct{}, _ func()) {
			c.good.Store(true)
			close(r.replaced)
		}, true, 5 * time.Second},
		{"the predecessor leaves", time.Minute, func(_ *recordedCheck, _ *generation, leaving chan struct{}, _ func()) { close(leaving) }, false, 0},
		{"the predecessor leaves during a check", 2 * time.Second, func(_ *recordedCheck, _ *generation, leaving chan struct{}, _ func()) { close(leaving) }, false, 0},
		{"the agent stops", time.Minute, func(_ *recordedCheck, _ *generation, _ chan struct{}, cancel func()) { cancel() }, false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := &recordedCheck{began: time.Now(), takes: requiredTimeout}
				var running atomic.Pointer[generation]
				r := &generation{replaced: make(chan struct{})}
				running.Store(r)
				g := &nameGate{check: c.run, running: &running, log: slog.New(slog.DiscardHandler), open: make(chan struct{})}
				leaving, result := make(chan struct{}), make(chan *generation, 1)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() { result <- g.await(ctx, leaving, func(error) {}) }()
				time.Sleep(tt.after)
				synctest.Wait()
				if g.isOpen() || g.notReady() == nil || len(c.at) < 5 && tt.after == time.Minute || len(c.at) > 12 {
					t.Errorf("after %s: checks at %v", tt.after, c.at)
				}
				now := time.Now()
				running.Store(&generation{replaced: make(chan struct{})})
				tt.do(c, r, leaving, cancel)
				got := <-result
				if took := time.Since(now); (got != nil) != tt.want || took > tt.ends {
					t.Errorf("it ends with %v after %s, want %t within %s", got, took, tt.want, tt.ends)
				}
				if got != nil && (got != running.Load() || got != c.last) {
					t.Error("the names of the configuration in use were not checked")
				}
				if g.problems() != nil {
					t.Errorf("problems after its end: %v", g.problems())
				}
			})
		})
	}
}

// openGate returns the gate of an agent that requires no names.
func openGate() *nameGate {
	g := &nameGate{open: make(chan struct{})}
	close(g.open)
	return g
}
