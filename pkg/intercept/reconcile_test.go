// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/intercepttest"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

func TestRulesRestored(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		for range 5 {
			s.kernel.Flush()
			s.checkDuration("restoring the rules", s.waitHeld(), 200*time.Millisecond)
			time.Sleep(time.Second)
		}
		if got := s.kernel.Calls().Changed; got != 6 {
			s.t.Errorf("rules changed %d times, want at the start and after each of five flushes", got)
		}
	})
}

// TestUnnoticedFlush: the pass of each minute finds a flush that Watch does not report.
func TestUnnoticedFlush(t *testing.T) {
	t.Parallel()
	prepare := func(_ *intercept.Config, s *harness) {
		s.kernel.Fail(intercepttest.CallWatch, 1<<30, errors.New("no such group"))
	}
	runHeld(t, prepare, func(s *harness) {
		s.kernel.Flush()
		s.checkDuration("restoring the rules", s.waitHeld(), 61*time.Second)
		if s.Stats().WatchFailures == 0 {
			s.t.Error("no watch failed, want all")
		}
		begun := s.kernel.Calls().Started
		time.Sleep(10 * time.Minute)
		if n := s.kernel.Calls().Started[intercepttest.CallWatch] - begun[intercepttest.CallWatch]; n > 300 {
			s.t.Errorf("a watch that always fails was begun %d times in ten minutes", n)
		}
	})
}

// TestContestedRulesLogging flushes the rules all the time.
func TestContestedRulesLogging(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		time.Sleep(2 * time.Minute)
		for range 600 {
			s.kernel.Flush()
			time.Sleep(50 * time.Millisecond)
		}
		if n := s.log.count("rules written"); n < 20 || n > 41 {
			s.t.Errorf("%d lines about rules in half a minute of flushes, want 20 in a minute at most", n)
		}
		if n := s.log.count("rewritten repeatedly"); n < 1 || n > 2 {
			s.t.Errorf("logged %d times that another program undoes the rules, want once in a minute", n)
		}
		time.Sleep(time.Minute)
		before := s.log.count("msg=\"interception rules written\"")
		s.kernel.Flush()
		s.waitHeld()
		assert.Equal(s.t, "lines about one flush a minute later", 1, s.log.count("msg=\"interception rules written\"")-before)
	})
}

// TestAdaptedRules: another data plane comes and goes while the agent runs. The rules follow within a minute, and the leases stay.
func TestAdaptedRules(t *testing.T) {
	t.Parallel()
	var cilium atomic.Bool
	prepare := func(cfg *intercept.Config, _ *harness) {
		cfg.Adapt = func(_ context.Context, r *rules.Rules) { r.Track, r.MarkHost = cilium.Load(), cilium.Load() }
	}
	runHeld(t, prepare, func(s *harness) {
		for _, on := range []bool{true, false} {
			cilium.Store(on)
			s.checkDuration("adapting the rules", s.waitFor("adapted", func() bool {
				all, _ := s.held()
				if !all {
					s.t.Fatal("the leases are gone")
				}
				return s.kernel.Rules().Track == on && s.kernel.Rules().MarkHost == on
			}), 61*time.Second)
		}
	})
}

func TestQuietNode(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		before := s.kernel.Calls()
		time.Sleep(time.Hour)
		after := s.kernel.Calls()
		if n := after.Started[intercepttest.CallApply] - before.Started[intercepttest.CallApply]; n < 59 || n > 62 {
			s.t.Errorf("rules were checked %d times in an hour, want each minute", n)
		}
		if after.Changed != before.Changed {
			s.t.Errorf("rules changed %d times in a quiet hour", after.Changed-before.Changed)
		}
	})
}

// TestLockHeldAtStart holds the xtables lock for a minute: the predecessor's rules stay in
// force, and the Keeper keeps running.
func TestLockHeldAtStart(t *testing.T) {
	t.Parallel()
	prepare := func(_ *intercept.Config, s *harness) {
		s.kernel.Overwrite(nodeRules("predecessor"))
		s.kernel.Fail(intercepttest.CallApply, 1<<30, errLocked)
	}
	run(t, prepare, func(s *harness) {
		s.stays("with the fallback", time.Minute, func() bool { return s.decision(addr4) == intercepttest.ToFallback })
		st := s.Stats()
		if st.ApplyFailures < 10 || st.ApplyFailures > 40 {
			s.t.Errorf("%d attempts in a minute, want them 5 s apart at last", st.ApplyFailures)
		}
		if st.LastError == "" || s.log.count("rules not in place") != 1 {
			s.t.Errorf("last error %q, log:\n%s\nwant one line of it", st.LastError, s.log)
		}
		s.kernel.Fail(intercepttest.CallApply, 0, nil)
		s.checkDuration("taking the lease", s.waitHeld(), 5*time.Second+renew)
		if st := s.Stats(); st.LastError != "" || s.kernel.Rules().Owner != "ours" {
			s.t.Errorf("last error %q, want none", st.LastError)
		}
	})
}

// TestBlockedApply checks that a hanging Apply does not delay renewals.
func TestBlockedApply(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		unblock := s.kernel.Block(intercepttest.CallApply)
		s.kernel.Notify()
		s.staysHeld(10 * time.Minute)
		before := s.kernel.Calls().Started[intercepttest.CallApply]
		unblock()
		s.kernel.Flush()
		s.checkDuration("restoring the rules", s.waitHeld(), 6*time.Second)
		if before > 5 {
			s.t.Errorf("%d Applies were begun while one hung", before)
		}
	})
}

func TestApplyPanics(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		for _, call := range []intercepttest.Call{intercepttest.CallApply, intercepttest.CallState, intercepttest.CallWatch} {
			s.kernel.Panic(call, 3)
			s.kernel.Notify()
			s.staysHeld(time.Minute)
		}
		if got := s.Stats(); got.Panics != 6 || got.LastError != "" { // the watch was not restarted
			s.t.Errorf("%d panics, last error %q, want 6 and none", got.Panics, got.LastError)
		}
		if n := s.log.count("recovered from a panic"); n == 0 {
			s.t.Error("no panic was logged")
		}
	})
}

func TestRunLeavesRules(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		s.stop()
		if s.kernel.Rules() == nil {
			s.t.Error("the end of Run took the rules away")
		}
		if all, _ := s.held(); !all {
			s.t.Error("the end of Run took the leases away")
		}
		s.checkDuration("lapsing", s.waitLapsed(), lease)
		s.staysLapsed(time.Minute)
		if err := s.Run(s.t.Context()); err == nil {
			s.t.Error("Run ran twice")
		}
	})
}

func TestConfigCheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		good := func() intercept.Config {
			return intercept.Config{
				Backend: intercepttest.NewFake(time.Now).Open(), Rules: nodeRules("ours"), Now: time.Now,
				Probe: (&intercept.Prober{Port: 53}).Probe,
			}
		}
		if _, err := intercept.New(good()); err != nil {
			t.Fatal(err)
		}
		for name, spoil := range map[string]func(*intercept.Config){
			"no backend":     func(c *intercept.Config) { c.Backend = nil },
			"no probe":       func(c *intercept.Config) { c.Probe = nil },
			"no clock":       func(c *intercept.Config) { c.Now = nil },
			"short lease":    func(c *intercept.Config) { c.Lease, c.Renew = 900*time.Millisecond, 100*time.Millisecond },
			"seldom renewed": func(c *intercept.Config) { c.Renew = 1100 * time.Millisecond },
			"no address":     func(c *intercept.Config) { c.Rules.Addresses = nil },
			"bad owner":      func(c *intercept.Config) { c.Rules.Owner = "Ours!" },
		} {
			cfg := good()
			spoil(&cfg)
			if _, err := intercept.New(cfg); err == nil {
				t.Errorf("%s: no error", name)
			}
		}
		// Invalid endpoints of the cluster are no error.
		odd := good()
		odd.Rules.Fallback = append(odd.Rules.Fallback, fallback4)
		if _, err := intercept.New(odd); err != nil {
			t.Errorf("an endpoint that is there twice: %v", err)
		}
	})
}
