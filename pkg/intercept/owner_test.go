// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/rules"
)

func TestStandDown(t *testing.T) {
	t.Parallel()
	play(t, nil, func(s *scene) {
		t := s.t
		s.untilHeld()
		s.kernel.Seize(nodeRules("newer"))
		s.until("standing down", func() bool { return s.Stats().StoodDown })
		if all, _ := s.held(); !all {
			t.Error("standing down took the leases away")
		}
		before := s.kernel.Calls().Begun
		within(t, "lapsing", s.untilLapsed(), lease)
		s.staysLapsed(10 * time.Minute)
		s.kernel.Flush()
		s.SetFallback(nodeRules("ours").Fallback[:1])
		time.Sleep(10 * time.Minute)
		if err := s.Release(t.Context(), 0); err != nil {
			t.Errorf("Release: %v", err)
		}
		after := s.kernel.Calls().Begun
		for _, call := range []intercept.Call{intercept.CallApply, intercept.CallRenew, intercept.CallRelease, intercept.CallState} {
			if after[call] != before[call] {
				t.Errorf("%d calls of %s after standing down", after[call]-before[call], call)
			}
		}
		if st := s.Stats(); st.NewOwner != "newer" || st.Held[addr4] {
			t.Errorf("stats: %+v, want the newer owner and no lease", st)
		}
		if s.over() {
			t.Error("Run returned, and the agent did not stop")
		}
		if n := s.log.count("left to a newer agent"); n != 1 {
			t.Errorf("%d lines say so, want one", n)
		}
	})
}

// TestFormerAgentsLastApply crosses our first: the former agent is not a newer one.
func TestFormerAgentsLastApply(t *testing.T) {
	t.Parallel()
	prepare := func(_ *intercept.Config, s *scene) { s.kernel.Seize(nodeRules("former")) }
	play(t, prepare, func(s *scene) {
		t := s.t
		s.untilHeld()
		s.kernel.Seize(nodeRules("former"))
		time.Sleep(time.Second)
		if r := s.kernel.Rules(); r.Owner != "ours" || s.Stats().StoodDown {
			t.Errorf("the rules are %s's, want taken back", r.Owner)
		}
		s.staysHeld(time.Minute)
		s.kernel.Flush() // nobody's rules are no newer agent's
		within(t, "healing", s.untilHeld(), 200*time.Millisecond)
		s.staysHeld(time.Minute)
	})
}

// TestLastApplyOfOneNeverSeen crosses ours: who it was taken over from was told to leave the rules alone, and had not
// written any before.
func TestLastApplyOfOneNeverSeen(t *testing.T) {
	t.Parallel()
	prepare := func(cfg *intercept.Config, s *scene) {
		cfg.Former = []string{"between"}
		s.kernel.Seize(nodeRules("former"))
	}
	play(t, prepare, func(s *scene) {
		t := s.t
		s.untilHeld()
		time.Sleep(time.Second)
		s.kernel.Seize(nodeRules("between"))
		time.Sleep(time.Second)
		if r := s.kernel.Rules(); r.Owner != "ours" || s.Stats().StoodDown {
			t.Errorf("the rules are %s's, want taken back", r.Owner)
		}
		s.staysHeld(time.Minute)
		s.kernel.Seize(nodeRules("newer"))
		s.until("standing down", func() bool { return s.Stats().StoodDown })
	})
}

// TestUpgrade has a new agent start while the old one runs, and the old one stop at
// some time after. Nothing of that may lead queries away from both.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	for _, onExit := range []string{"fallback", "remove"} {
		for range 20 {
			synctest.Test(t, func(t *testing.T) {
				kernel := intercept.NewFake(time.Now)
				old := newScene(t, kernel, "old", nil)
				old.Start()
				old.untilHeld()
				// The old agent writes at just this time, or does not.
				time.Sleep(time.Minute - time.Duration(rand.Int64N(int64(time.Second))))
				newer := newScene(t, kernel, "newer", nil)
				newer.Start()
				old.staysHeld(time.Duration(rand.Int64N(int64(5 * time.Second))))
				if err := old.Release(t.Context(), 0); err != nil {
					t.Errorf("Release: %v", err)
				}
				if onExit == "remove" {
					if err := old.Remove(t.Context()); err != nil && !errors.Is(err, rules.ErrOwned) {
						t.Errorf("Remove: %v", err)
					}
				}
				old.stop()
				within(t, "the newer agent's lease", newer.untilHeld(), renew+50*time.Millisecond)
				newer.staysHeld(5 * time.Minute)
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
		kernel := intercept.NewFake(time.Now)
		first := newScene(t, kernel, "first", nil)
		first.Start()
		first.untilHeld()
		first.stop() // as SIGKILL does: nothing is taken back
		within(t, "standing aside", first.untilLapsed(), lease)
		next := newScene(t, kernel, "next", func(cfg *intercept.Config, _ *scene) { cfg.Rules.Fallback = nil })
		next.stays("with the fallback until it is ready", time.Minute, func() bool { return next.way(addr4) == intercept.ToFallback })
		next.Start()
		within(t, "taking the lease", next.untilHeld(), 50*time.Millisecond)
		if got := next.Stats().Fallback; len(got) != 2 {
			t.Errorf("fallback is %v, want the former agent's", got)
		}
	})
}
