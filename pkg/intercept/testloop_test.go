// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

var (
	works   = intercept.FallbackResult{State: intercept.FallbackWorks}
	broken  = intercept.FallbackResult{State: intercept.FallbackBroken, Why: "no reply within 2s"}
	untried = intercept.FallbackResult{State: intercept.FallbackUnverified, Why: "it was not tested yet"}
)

// tests is a scripted test of the fallback.
type tests struct {
	mu     sync.Mutex
	result intercept.FallbackResult
	takes  time.Duration
	panics bool
	at     []time.Time        // when each test of addr4 began
	asked  [][]netip.AddrPort // with which endpoints
}

func (f *tests) test(ctx context.Context, r *rules.Rules, l rules.Lease) intercept.FallbackResult {
	f.mu.Lock()
	if l.Key == addr4 {
		f.at, f.asked = append(f.at, time.Now()), append(f.asked, r.Fallback)
	}
	result, takes, panics := f.result, f.takes, f.panics
	f.mu.Unlock()
	if panics {
		panic("a test")
	}
	select {
	case <-time.After(takes):
	case <-ctx.Done():
	}
	return result
}

func (f *tests) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// since returns when tests began since t.
func (f *tests) since(t time.Time) (list []time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, at := range f.at {
		if !at.Before(t) { // virtual time may have stood still
			list = append(list, at.Sub(t))
		}
	}
	return list
}

// fallback returns the result for addr4.
func (s *harness) fallback() intercept.FallbackResult {
	synctest.Wait()
	l := s.Stats().Leases[0]
	return intercept.FallbackResult{State: l.Fallback, Why: l.FallbackWhy}
}

func runTests(t *testing.T, script *tests, prepare func(*intercept.Config, *harness), test func(s *harness)) {
	t.Helper()
	run(t, func(cfg *intercept.Config, s *harness) {
		cfg.TestFallback = script.test
		if prepare != nil {
			prepare(cfg, s)
		}
	}, test)
}

func TestTestSchedule(t *testing.T) {
	t.Parallel()
	script := &tests{result: works}
	runTests(t, script, nil, func(s *harness) {
		assert.Equal(s.t, "at the start", untried.Why, s.Stats().Leases[0].FallbackWhy)
		time.Sleep(time.Second)
		assert.Same(s.t, "after a second", works, s.fallback())
		begun := time.Now()
		time.Sleep(100 * time.Minute)
		list := script.since(begun)
		if n := len(list); n < 18 || n > 20 {
			s.t.Errorf("%d tests in 100 minutes, want one each 5 to 5.5 minutes", n)
		}
		varies := false
		for i := range list[1:] {
			space := list[i+1] - list[i]
			varies = varies || space != list[1]-list[0]
			if space < 5*time.Minute || space > 330*time.Second {
				s.t.Errorf("%s between two tests", space)
			}
		}
		if !varies {
			s.t.Error("all tests have the same distance: agents that start together test together")
		}

		time.Sleep(3 * time.Second)
		begun = time.Now()
		s.SetFallback([]netip.AddrPort{netip.MustParseAddrPort("10.1.1.1:53"), fallback6})
		l := s.Stats().Leases[0] // at once: what worked was another list
		assert.Equal(s.t, "state before the next test", intercept.FallbackUnverified, l.Fallback)
		assert.Equal(s.t, "reason before the next test", "it was not tested since the rules changed", l.FallbackWhy)
		time.Sleep(33 * time.Second)
		assert.Same(s.t, "after a test of the other fallback", works, s.fallback())
		if n := len(script.since(begun)); n == 0 {
			s.t.Error("no test within 33 s of another fallback")
		}
		script.set(func() {
			assert.Equal(s.t, "endpoint of the last test", "10.1.1.1:53", script.asked[len(script.asked)-1][0].String())
		})
		begun = time.Now()
		s.kernel.Flush()
		time.Sleep(33 * time.Second)
		if n := len(script.since(begun)); n == 0 {
			s.t.Error("no test within 33 s of repaired rules")
		}
	})
}

// TestContestedRulesTests: another program that always changes the rules causes no more tests than one each two seconds.
func TestContestedRulesTests(t *testing.T) {
	t.Parallel()
	script := &tests{result: works}
	runTests(t, script, nil, func(s *harness) {
		begun := time.Now()
		for range 600 {
			s.kernel.Flush()
			time.Sleep(100 * time.Millisecond)
		}
		if n := len(script.since(begun)); n > 31 {
			s.t.Errorf("%d tests in a minute", n)
		}
	})
}

func TestTwoFailuresInARow(t *testing.T) {
	t.Parallel()
	script := &tests{result: works}
	runTests(t, script, nil, func(s *harness) {
		time.Sleep(time.Second)
		begun := time.Now()
		script.set(func() { script.result = broken })
		failed := s.waitFor("a failed test", func() bool { return len(script.since(begun)) == 1 })
		s.stays("works after one failure", 1900*time.Millisecond, func() bool { return s.fallback() == works })
		took := s.waitFor("broken", func() bool { return s.fallback() == broken })
		s.checkDuration("the first failure", failed, 330*time.Second)
		s.checkDuration("broken after the first failure", took+1900*time.Millisecond, 2100*time.Millisecond)
		begun = time.Now()
		script.set(func() { script.result = works })
		s.checkDuration("works again", s.waitFor("works", func() bool { return s.fallback() == works }), 90*time.Second)

		script.set(func() { script.result = broken })
		s.waitFor("a failed test", func() bool { return len(script.since(begun)) == 2 })
		script.set(func() { script.result = works })
		s.stays("works after a single failure", time.Minute, func() bool { return s.fallback() == works })
	})
}

func TestChangeDuringTest(t *testing.T) {
	t.Parallel()
	script := &tests{result: works, takes: 2 * time.Second}
	runTests(t, script, nil, func(s *harness) {
		s.waitFor("a test", func() bool { return len(script.since(time.Time{})) == 1 })
		s.SetFallback([]netip.AddrPort{netip.MustParseAddrPort("10.1.1.1:53"), fallback6})
		script.set(func() { script.result = broken })
		s.stays("untried while the list changed", 3*time.Second, func() bool { return s.fallback() == untried })
		s.waitFor("broken", func() bool { return s.fallback() == broken })
	})
}

// TestPodsWay: what is known of the pods' way counts at once, without another test, and only where tests find nothing wrong.
func TestPodsWay(t *testing.T) {
	t.Parallel()
	script := &tests{result: works}
	way := works
	prepare := func(cfg *intercept.Config, _ *harness) {
		cfg.PodsWay = func(l rules.Lease) intercept.FallbackResult {
			if l.Key.Is6() {
				return works
			}
			script.mu.Lock()
			defer script.mu.Unlock()
			return way
		}
	}
	runTests(t, script, prepare, func(s *harness) {
		time.Sleep(time.Second)
		assert.Same(s.t, "without a doubt", works, s.fallback())
		script.set(func() {
			way = intercept.FallbackResult{State: intercept.FallbackUnverified, Why: "Cilium forwards their packets"}
		})
		assert.Same(s.t, "with a doubt", intercept.FallbackResult{
			State: intercept.FallbackUnverified,
			Why:   "its endpoints answer this node, but the pods' way there is not tested: Cilium forwards their packets",
		}, s.fallback())
		script.set(func() { way = intercept.FallbackResult{State: intercept.FallbackBroken, Why: "a rule exempts them"} })
		assert.Same(s.t, "without a way", intercept.FallbackResult{
			State: intercept.FallbackBroken, Why: "its endpoints answer this node, but not pods: a rule exempts them",
		}, s.fallback())
		assert.Same(s.t, "of the other family", intercept.FallbackWorks, s.Stats().Leases[1].Fallback)
		script.set(func() { script.result = broken })
		time.Sleep(335 * time.Second)
		assert.Same(s.t, "broken in spite of doubts", broken, s.fallback())
	})
}

// TestTestsDisturbNothing: tests that hang, panic or find the fallback broken never cost a lease, and go on in standby.
func TestTestsDisturbNothing(t *testing.T) {
	t.Parallel()
	script := &tests{result: broken, takes: time.Hour}
	runTests(t, script, nil, func(s *harness) {
		s.waitHeld()
		s.staysHeld(time.Minute)
		s.SetFallback([]netip.AddrPort{netip.MustParseAddrPort("10.1.1.1:53"), fallback6}) // the rules change nevertheless
		time.Sleep(time.Second)
		assert.Equal(s.t, "endpoint in the rules", "10.1.1.1:53", s.kernel.Rules().Fallback[0].String())
	})
	script = &tests{panics: true}
	runTests(t, script, nil, func(s *harness) {
		s.waitHeld()
		s.staysHeld(time.Minute)
		assert.Equal(s.t, "state", intercept.FallbackUnverified, s.fallback().State)
		if s.Stats().Panics == 0 {
			s.t.Error("no panic was counted")
		}
	})
	script = &tests{result: works}
	runTests(t, script, nil, func(s *harness) {
		s.waitHeld()
		assert.NoError(s.t, s.SetStandby(s.t.Context(), true, 0))
		s.waitLapsed()
		begun := time.Now()
		time.Sleep(6 * time.Minute)
		if n := len(script.since(begun)); n == 0 || s.fallback() != works {
			s.t.Errorf("in standby: %d tests, %+v", n, s.fallback())
		}
		s.kernel.Overwrite(nodeRules("newer"))
		s.waitFor("left to a newer agent", func() bool { return s.Stats().StoodDown })
		begun = time.Now()
		time.Sleep(6 * time.Minute)
		assert.Equal(s.t, "tests after a newer agent took over", 0, len(script.since(begun)))
		assert.Equal(s.t, "state", intercept.FallbackUnverified, s.fallback().State)
	})
}

// TestServersNotTested: what answers without a lease on another server is that server, which need not know the cluster.
func TestServersNotTested(t *testing.T) {
	t.Parallel()
	script := &tests{result: broken}
	runTests(t, script, func(cfg *intercept.Config, _ *harness) {
		to := netip.MustParseAddr("169.254.20.11")
		cfg.Rules.Addresses = append(cfg.Rules.Addresses, to)
		cfg.Rules.Servers = []rules.Redirect{{From: netip.MustParseAddr("10.0.0.53"), To: to}}
	}, func(s *harness) {
		time.Sleep(10 * time.Minute)
		seen := map[string]intercept.FallbackState{}
		for _, l := range s.Stats().Leases {
			seen[l.Address.String()] = l.Fallback
			assert.Equal(s.t, "lease is held on "+l.Address.String(), true, l.Held)
		}
		want := map[string]intercept.FallbackState{
			addr4.String(): intercept.FallbackBroken, addr6.String(): intercept.FallbackBroken, "10.0.0.53": intercept.FallbackUnverified,
		}
		assert.Same(s.t, "states", want, seen)
	})
}
