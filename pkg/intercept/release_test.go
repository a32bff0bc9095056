// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/intercepttest"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// checkReleased checks that no lease is acquired any more.
func (s *harness) checkReleased() {
	s.t.Helper()
	before := s.kernel.Calls().Started[intercepttest.CallRenew]
	s.staysLapsed(time.Minute)
	if n := s.kernel.Calls().Started[intercepttest.CallRenew]; n != before {
		s.t.Errorf("%d renewals after the release", n-before)
	}
	st := s.Stats()
	if st.Leases[0].Held || st.Leases[1].Held || !st.Released || st.NotHeldFor < time.Minute {
		s.t.Errorf("stats: %+v, want released leases", st)
	}
}

func TestRelease(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		session := intercepttest.Packet{Network: "tcp", To: netip.AddrPortFrom(addr4, 53), Established: true}
		assert.NoError(s.t, s.Release(s.t.Context(), 5*time.Second))
		if _, none := s.held(); !none {
			s.t.Error("a lease is held after Release")
		}
		if way := s.kernel.Route(session).Decision; way != intercepttest.ToAgent {
			s.t.Errorf("a session goes way %d while it drains, want to the agent", way)
		}
		time.Sleep(5 * time.Second)
		if way := s.kernel.Route(session).Decision; way != intercepttest.Rejected {
			s.t.Errorf("a session goes way %d when it was drained, want rejected", way)
		}
		s.checkReleased()
		// The rules are still maintained.
		s.SetFallback([]netip.AddrPort{fallback4})
		s.waitFor("fallback changed", func() bool { return len(s.kernel.Rules().Fallback) == 1 })
		assert.NoError(s.t, s.Release(s.t.Context(), 0))
		s.Start()
		s.checkReleased()
	})
}

// TestStandby releases the leases for a while, at every time within a probe and a renewal.
func TestStandby(t *testing.T) {
	t.Parallel()
	for after := time.Duration(0); after <= 2*renew; after += 50 * time.Millisecond {
		prepare := func(cfg *intercept.Config, _ *harness) {
			probe := cfg.Probe
			cfg.Probe = func(ctx context.Context, addr netip.Addr) (intercept.Cause, error) {
				time.Sleep(renew / 2)
				return probe(ctx, addr)
			}
		}
		runHeld(t, prepare, func(s *harness) {
			time.Sleep(after)
			assert.NoError(s.t, s.SetStandby(s.t.Context(), true, 0))
			if _, none := s.held(); !none {
				s.t.Error("a lease is held in standby")
			}
			assert.NoError(s.t, s.SetStandby(s.t.Context(), true, 0)) // again: no change
			s.staysLapsed(time.Minute)
			if st := s.Stats(); !st.Standby || st.Released || st.NoneHeldFor < time.Minute {
				s.t.Errorf("stats: %+v, want standby", st)
			}
			s.SetFallback([]netip.AddrPort{fallback4}) // the rules are still maintained
			s.waitFor("fallback changed", func() bool { return len(s.kernel.Rules().Fallback) == 1 })
			assert.NoError(s.t, s.SetStandby(s.t.Context(), false, 0))
			s.checkDuration("taking the leases again", s.waitHeld(), 2*renew)
			assert.NoError(s.t, s.Release(s.t.Context(), 0))
			s.checkReleased()
		})
	}
}

// TestStandbyRefused has a kernel that does not release: the leases end by themselves.
func TestStandbyRefused(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		s.kernel.Fail(intercepttest.CallRelease, 1, errors.New("no memory"))
		if err := s.SetStandby(s.t.Context(), true, 0); err == nil {
			s.t.Error("no error")
		}
		s.checkDuration("lapse", s.waitLapsed(), lease)
		s.staysLapsed(time.Minute)
	})
}

func TestReleaseBeforeRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHarness(t, intercepttest.NewFake(time.Now), "ours", nil)
		assert.NoError(t, s.Release(t.Context(), 0))
		s.Start()
		s.waitFor("rules written", func() bool { return s.kernel.Rules() != nil })
		s.staysLapsed(time.Minute)
	})
}

// TestReleaseWithProbesInFlight runs probes that succeed after the release, at every time
// within the interval.
func TestReleaseWithProbesInFlight(t *testing.T) {
	t.Parallel()
	const slow = 400 * time.Millisecond
	for after := time.Duration(0); after <= 2*renew; after += 10 * time.Millisecond {
		prepare := func(cfg *intercept.Config, _ *harness) {
			cfg.Probe = func(context.Context, netip.Addr) (intercept.Cause, error) { // ignores the context
				time.Sleep(slow)
				return 0, nil
			}
		}
		runHeld(t, prepare, func(s *harness) {
			time.Sleep(after)
			assert.NoError(s.t, s.Release(s.t.Context(), 0))
			s.checkReleased()
		})
	}
}

// TestReleaseWithRenewalsInFlight runs renewals that reach the kernel after the release.
func TestReleaseWithRenewalsInFlight(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		unblock := s.kernel.Block(intercepttest.CallRenew)
		time.Sleep(2 * renew)
		var group sync.WaitGroup
		group.Go(func() {
			if err := s.Release(s.t.Context(), 0); err != nil {
				s.t.Errorf("Release: %v", err)
			}
			if _, none := s.held(); !none {
				s.t.Error("Release returned while a lease was held")
			}
		})
		synctest.Wait()
		if _, none := s.held(); !none {
			s.t.Error("Release waits for what hangs before it ends the leases")
		}
		time.Sleep(100 * time.Millisecond)
		unblock()
		group.Wait()
		s.checkReleased()
	})
}

// A lateRenewal unblocks hanging renewals right after a release, before the release
// returns.
type lateRenewal struct {
	intercept.Backend
	then func()
}

func (l *lateRenewal) Release(ctx context.Context, keys []netip.Addr, drain time.Duration) error {
	err := l.Backend.Release(ctx, keys, drain)
	if then := l.then; then != nil {
		l.then = nil
		then()
		synctest.Wait()
	}
	return err
}

// TestReleaseOvertaken runs renewals that reach the kernel last, but return before Release
// checks for them.
func TestReleaseOvertaken(t *testing.T) {
	t.Parallel()
	backend := &lateRenewal{}
	prepare := func(cfg *intercept.Config, _ *harness) {
		backend.Backend = cfg.Backend
		cfg.Backend = backend
	}
	runHeld(t, prepare, func(s *harness) {
		backend.then = s.kernel.Block(intercepttest.CallRenew)
		time.Sleep(2 * renew)
		assert.NoError(s.t, s.Release(s.t.Context(), 0))
		if _, none := s.held(); !none {
			s.t.Error("Release returned while a lease was held")
		}
		s.checkReleased()
	})
}

// TestReleaseTimeout does not wait for hanging calls; the lease ends by itself.
func TestReleaseTimeout(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		unblock := s.kernel.Block(intercepttest.CallRenew)
		time.Sleep(2 * renew)
		ctx, cancel := context.WithTimeout(s.t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := s.Release(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
			s.t.Errorf("Release: %v, want the error of its context", err)
		}
		unblock()
		synctest.Wait() // the renewals reach the kernel
		s.checkDuration("lapsing", s.waitLapsed(), lease)
		s.checkReleased()
	})
}

func TestReleaseDuringBlockedApply(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		unblock := s.kernel.Block(intercepttest.CallApply)
		defer unblock()
		s.kernel.Notify()
		time.Sleep(time.Second)
		begun := time.Now()
		assert.NoError(s.t, s.Release(s.t.Context(), 0))
		s.checkDuration("the release", time.Since(begun), 0)
		s.checkReleased()
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
		defer cancel()
		if err := s.Remove(ctx); !errors.Is(err, context.DeadlineExceeded) {
			s.t.Errorf("Remove: %v, want to wait for the Apply in vain", err)
		}
	})
}

func TestReleaseFails(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		broken := errors.New("broken")
		s.kernel.Fail(intercepttest.CallRelease, 1, broken)
		if err := s.Release(s.t.Context(), 0); !errors.Is(err, broken) {
			s.t.Errorf("Release: %v, want the kernel's error", err)
		}
		s.checkDuration("lapsing", s.waitLapsed(), lease)
		s.checkReleased()
	})
}

func TestRemove(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		assert.NoError(s.t, s.Remove(s.t.Context()))
		s.kernel.Notify()
		s.SetFallback([]netip.AddrPort{fallback4})
		s.stays("without rules", 10*time.Minute, func() bool { return s.kernel.Rules() == nil })
		assert.NoError(s.t, s.Remove(s.t.Context()))
		if way := s.decision(addr4); way != intercepttest.Direct {
			s.t.Errorf("a packet goes way %d without rules, want where it is addressed to", way)
		}
	})
}

// TestRemoveWaitsForApply: an Apply that ends after Remove would write the rules again.
func TestRemoveWaitsForApply(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		unblock := s.kernel.Block(intercepttest.CallApply)
		s.kernel.Notify()
		time.Sleep(time.Second)
		var group sync.WaitGroup
		group.Go(func() {
			if err := s.Remove(s.t.Context()); err != nil {
				s.t.Errorf("Remove: %v", err)
			}
		})
		time.Sleep(time.Second)
		unblock()
		group.Wait()
		s.stays("without rules", 10*time.Minute, func() bool { return s.kernel.Rules() == nil })
	})
}

func TestRemoveLeavesOtherRules(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		s.kernel.Overwrite(nodeRules("newer"))
		if err := s.Remove(s.t.Context()); !errors.Is(err, rules.ErrOwned) {
			s.t.Errorf("Remove: %v, want ErrOwned", err)
		}
		if r := s.kernel.Rules(); r == nil || r.Owner != "newer" {
			s.t.Errorf("rules are %v, want the newer agent's", r)
		}
	})
}
