// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/intercepttest"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

func TestStandDown(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		s.kernel.Overwrite(nodeRules("newer"))
		s.waitFor("standing down", func() bool { return s.Stats().StoodDown })
		if all, _ := s.held(); !all {
			s.t.Error("standing down took the leases away")
		}
		before := s.kernel.Calls().Started
		s.checkDuration("lapsing", s.waitLapsed(), lease)
		s.staysLapsed(10 * time.Minute)
		s.kernel.Flush()
		s.SetFallback(nodeRules("ours").Fallback[:1])
		time.Sleep(10 * time.Minute)
		assert.NoError(s.t, s.Release(s.t.Context(), 0))
		after := s.kernel.Calls().Started
		for _, call := range []intercepttest.Call{intercepttest.CallApply, intercepttest.CallRenew, intercepttest.CallRelease, intercepttest.CallState} {
			if after[call] != before[call] {
				s.t.Errorf("%d calls of %s after standing down", after[call]-before[call], call)
			}
		}
		if st := s.Stats(); st.NewOwner != "newer" || st.Leases[0].Held {
			s.t.Errorf("stats: %+v, want the newer owner and no lease", st)
		}
		if s.over() {
			s.t.Error("Run returned, and the agent did not stop")
		}
		assert.Equal(s.t, "lines that say so", 1, s.log.count("left to a newer agent"))
	})
}

// TestPredecessorAppliesLast: the predecessor's last Apply comes after our first one.
func TestPredecessorAppliesLast(t *testing.T) {
	t.Parallel()
	prepare := func(_ *intercept.Config, s *harness) { s.kernel.Overwrite(nodeRules("predecessor")) }
	runHeld(t, prepare, func(s *harness) {
		s.kernel.Overwrite(nodeRules("predecessor"))
		time.Sleep(time.Second)
		if r := s.kernel.Rules(); r.Owner != "ours" || s.Stats().StoodDown {
			s.t.Errorf("the rules are %s's, want taken back", r.Owner)
		}
		s.staysHeld(time.Minute)
		s.kernel.Flush() // missing rules do not belong to a newer agent
		s.checkDuration("restoring the rules", s.waitHeld(), 200*time.Millisecond)
		s.staysHeld(time.Minute)
	})
}

// TestUnseenPredecessorAppliesLast: the last Apply of a predecessor that had written no
// rules at our start comes after our first one.
func TestUnseenPredecessorAppliesLast(t *testing.T) {
	t.Parallel()
	prepare := func(cfg *intercept.Config, s *harness) {
		cfg.Predecessors = []string{"between"}
		s.kernel.Overwrite(nodeRules("predecessor"))
	}
	runHeld(t, prepare, func(s *harness) {
		time.Sleep(time.Second)
		s.kernel.Overwrite(nodeRules("between"))
		time.Sleep(time.Second)
		if r := s.kernel.Rules(); r.Owner != "ours" || s.Stats().StoodDown {
			s.t.Errorf("the rules are %s's, want taken back", r.Owner)
		}
		s.staysHeld(time.Minute)
		s.kernel.Overwrite(nodeRules("newer"))
		s.waitFor("standing down", func() bool { return s.Stats().StoodDown })
	})
}

// TestUpgrade starts a new agent while the old one runs, and stops the old one some time
// later. Queries always reach one of the two.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	for _, onExit := range []string{"fallback", "remove"} {
		for range 20 {
			synctest.Test(t, func(t *testing.T) {
				kernel := intercepttest.NewFake(time.Now)
				old := newHarness(t, kernel, "old", nil)
				old.Start()
				old.waitHeld()
				// The old agent may write at this time.
				time.Sleep(time.Minute - time.Duration(rand.Int64N(int64(time.Second))))
				newer := newHarness(t, kernel, "newer", nil)
				newer.Start()
				old.staysHeld(time.Duration(rand.Int64N(int64(5 * time.Second))))
				assert.NoError(t, old.Release(t.Context(), 0))
				if onExit == "remove" {
					if err := old.Remove(t.Context()); err != nil && !errors.Is(err, rules.ErrOwned) {
						t.Errorf("Remove: %v", err)
					}
				}
				old.stop()
				newer.checkDuration("the newer agent's lease", newer.waitHeld(), renew+50*time.Millisecond)
				newer.staysHeld(2 * time.Minute) // with a pass of each minute
				if st := newer.Stats(); st.StoodDown || kernel.Rules().Owner != "newer" {
					t.Errorf("the rules are %s's, want the newer agent's", kernel.Rules().Owner)
				}
			})
		}
	}
}

func TestRestartAfterKill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		kernel := intercepttest.NewFake(time.Now)
		first := newHarness(t, kernel, "first", nil)
		first.Start()
		first.waitHeld()
		first.stop() // as after SIGKILL: nothing is removed
		first.checkDuration("standing aside", first.waitLapsed(), lease)
		next := newHarness(t, kernel, "next", func(cfg *intercept.Config, _ *harness) { cfg.Rules.Fallback = nil })
		next.stays("with the fallback until it is ready", time.Minute, func() bool { return next.decision(addr4) == intercepttest.ToFallback })
		next.Start()
		next.checkDuration("taking the lease", next.waitHeld(), 50*time.Millisecond)
		if got := next.Stats().Fallback; len(got) != 2 {
			t.Errorf("fallback is %v, want the predecessor's", got)
		}
	})
}
