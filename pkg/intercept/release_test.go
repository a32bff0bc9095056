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

	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/rules"
)

// released checks that nothing takes a lease any more.
func released(t *testing.T, s *scene) {
	t.Helper()
	before := s.kernel.Calls().Begun[intercept.CallRenew]
	s.staysLapsed(time.Minute)
	if n := s.kernel.Calls().Begun[intercept.CallRenew]; n != before {
		t.Errorf("%d renewals after the release", n-before)
	}
	st := s.Stats()
	if st.Held[addr4] || st.Held[addr6] || !st.Released || st.SinceHeld < time.Minute {
		t.Errorf("stats: %+v, want released leases", st)
	}
}

func TestRelease(t *testing.T) {
	t.Parallel()
	play(t, nil, func(s *scene) {
		t := s.t
		s.untilHeld()
		session := intercept.Packet{Network: "tcp", To: netip.AddrPortFrom(addr4, 53), Session: true}
		if err := s.Release(t.Context(), 5*time.Second); err != nil {
			t.Fatal(err)
		}
		if _, none := s.held(); !none {
			t.Error("a lease is held after Release")
		}
		if way := s.kernel.Route(session).Way; way != intercept.ToAgent {
			t.Errorf("a session goes way %d while it drains, want to the agent", way)
		}
		time.Sleep(5 * time.Second)
		if way := s.kernel.Route(session).Way; way != intercept.Rejected {
			t.Errorf("a session goes way %d when it was drained, want rejected", way)
		}
		released(t, s)
		// Rules are still followed.
		s.SetFallback([]netip.AddrPort{fallback4})
		s.until("fallback changed", func() bool { return len(s.kernel.Rules().Fallback) == 1 })
		if err := s.Release(t.Context(), 0); err != nil {
			t.Errorf("once more: %v", err)
		}
		s.Start()
		released(t, s)
	})
}

func TestReleaseBeforeRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, intercept.NewFake(time.Now), "ours", nil)
		if err := s.Release(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		s.Start()
		s.until("rules written", func() bool { return s.kernel.Rules() != nil })
		s.staysLapsed(time.Minute)
	})
}

// TestReleaseWithProbesInFlight has probes that bring their proof after the release,
// at every time within a round.
func TestReleaseWithProbesInFlight(t *testing.T) {
	t.Parallel()
	const slow = 400 * time.Millisecond
	for after := time.Duration(0); after <= 2*renew; after += 10 * time.Millisecond {
		prepare := func(cfg *intercept.Config, _ *scene) {
			cfg.Probe = func(context.Context, netip.Addr) error { // deaf: it does not heed the context
				time.Sleep(slow)
				return nil
			}
		}
		play(t, prepare, func(s *scene) {
			t := s.t
			s.untilHeld()
			time.Sleep(after)
			if err := s.Release(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			released(t, s)
		})
	}
}

// TestReleaseWithRenewalsInFlight has renewals hang in the kernel that are carried
// out after it ended the lease.
func TestReleaseWithRenewalsInFlight(t *testing.T) {
	t.Parallel()
	play(t, nil, func(s *scene) {
		t := s.t
		s.untilHeld()
		unblock := s.kernel.Block(intercept.CallRenew)
		time.Sleep(2 * renew)
		var group sync.WaitGroup
		group.Go(func() {
			if err := s.Release(t.Context(), 0); err != nil {
				t.Errorf("Release: %v", err)
			}
			if _, none := s.held(); !none {
				t.Error("Release returned while a lease was held")
			}
		})
		synctest.Wait()
		if _, none := s.held(); !none {
			t.Error("Release waits for what hangs before it ends the leases")
		}
		time.Sleep(100 * time.Millisecond)
		unblock()
		group.Wait()
		released(t, s)
	})
}

// A lateRenewal lets the renewals that hang be carried out when a release has just
// been, before its caller hears of it.
type lateRenewal struct {
	intercept.Backend
	then func()
}

func (b *lateRenewal) Release(ctx context.Context, keys []netip.Addr, drain time.Duration) error {
	err := b.Backend.Release(ctx, keys, drain)
	if then := b.then; then != nil {
		b.then = nil
		then()
		synctest.Wait()
	}
	return err
}

// TestReleaseOvertaken has renewals come last in the kernel, and end before Release
// could see that they were under way.
func TestReleaseOvertaken(t *testing.T) {
	t.Parallel()
	backend := &lateRenewal{}
	prepare := func(cfg *intercept.Config, _ *scene) {
		backend.Backend = cfg.Backend
		cfg.Backend = backend
	}
	play(t, prepare, func(s *scene) {
		s.untilHeld()
		backend.then = s.kernel.Block(intercept.CallRenew)
		time.Sleep(2 * renew)
		if err := s.Release(s.t.Context(), 0); err != nil {
			s.t.Fatal(err)
		}
		if _, none := s.held(); !none {
			s.t.Error("Release returned while a lease was held")
		}
		released(s.t, s)
	})
}

// TestReleaseThatMayNotWait gives up on what hangs, and the lease ends by itself.
func TestReleaseThatMayNotWait(t *testing.T) {
	t.Parallel()
	play(t, nil, func(s *scene) {
		t := s.t
		s.untilHeld()
		unblock := s.kernel.Block(intercept.CallRenew)
		time.Sleep(2 * renew)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := s.Release(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Release: %v, want what its context says", err)
		}
		unblock()
		synctest.Wait() // the renewals are carried out
		within(t, "lapsing", s.untilLapsed(), lease)
		released(t, s)
	})
}

func TestReleaseDuringBlockedApply(t *testing.T) {
	t.Parallel()
	play(t, nil, func(s *scene) {
		t := s.t
		s.untilHeld()
		unblock := s.kernel.Block(intercept.CallApply)
		defer unblock()
		s.kernel.Stir()
		time.Sleep(time.Second)
		begun := time.Now()
		if err := s.Release(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		within(t, "the release", time.Since(begun), 0)
		released(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Remove(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Remove: %v, want to wait for the Apply in vain", err)
		}
	})
}

func TestReleaseFails(t *testing.T) {
	t.Parallel()
	play(t, nil, func(s *scene) {
		t := s.t
		s.untilHeld()
		broken := errors.New("broken")
		s.kernel.Fail(intercept.CallRelease, 1, broken)
		if err := s.Release(t.Context(), 0); !errors.Is(err, broken) {
			t.Errorf("Release: %v, want the kernel's error", err)
		}
		within(t, "lapsing", s.untilLapsed(), lease)
		released(t, s)
	})
}

func TestRemove(t *testing.T) {
	t.Parallel()
	play(t, nil, func(s *scene) {
		t := s.t
		s.untilHeld()
		if err := s.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.kernel.Stir()
		s.SetFallback([]netip.AddrPort{fallback4})
		s.stays("without rules", 10*time.Minute, func() bool { return s.kernel.Rules() == nil })
		if err := s.Remove(t.Context()); err != nil {
			t.Errorf("once more: %v", err)
		}
		if way := s.way(addr4); way != intercept.Direct {
			t.Errorf("a packet goes way %d without rules, want where it is addressed to", way)
		}
	})
}

// TestRemoveWaitsForApply: an Apply that ended after it would put the rules back.
func TestRemoveWaitsForApply(t *testing.T) {
	t.Parallel()
	play(t, nil, func(s *scene) {
		t := s.t
		s.untilHeld()
		unblock := s.kernel.Block(intercept.CallApply)
		s.kernel.Stir()
		time.Sleep(time.Second)
		var group sync.WaitGroup
		group.Go(func() {
			if err := s.Remove(t.Context()); err != nil {
				t.Errorf("Remove: %v", err)
			}
		})
		time.Sleep(time.Second)
		unblock()
		group.Wait()
		s.stays("without rules", 10*time.Minute, func() bool { return s.kernel.Rules() == nil })
	})
}

func TestRemoveLeavesTheRulesOfOthers(t *testing.T) {
	t.Parallel()
	play(t, nil, func(s *scene) {
		t := s.t
		s.untilHeld()
		s.kernel.Seize(nodeRules("newer"))
		if err := s.Remove(t.Context()); !errors.Is(err, rules.ErrOwned) {
			t.Errorf("Remove: %v, want ErrOwned", err)
		}
		if r := s.kernel.Rules(); r == nil || r.Owner != "newer" {
			t.Errorf("rules are %v, want the newer agent's", r)
		}
	})
}
