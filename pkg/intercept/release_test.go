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
	"github.com/nodecache/node-cache/pkg/intercept/intercepttest"
	"github.com/nodecache/node-cache/pkg/rules"
)

// checkReleased checks that no lease is acquired any more.
func checkReleased(t *testing.T, s *harness) {
	t.Helper()
	before := s.kernel.Calls().Started[intercepttest.CallRenew]
	s.staysLapsed(time.Minute)
	if n := s.kernel.Calls().Started[intercepttest.CallRenew]; n != before {
		t.Errorf("%d renewals after the release", n-before)
	}
	st := s.Stats()
	if st.Held[addr4] || st.Held[addr6] || !st.Released || st.NotHeldFor < time.Minute {
		t.Errorf("stats: %+v, want released leases", st)
	}
}

func TestRelease(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(t *testing.T, s *harness) {
		t.Helper()
		session := intercepttest.Packet{Network: "tcp", To: netip.AddrPortFrom(addr4, 53), Established: true}
		if err := s.Release(t.Context(), 5*time.Second); err != nil {
			t.Fatal(err)
		}
		if _, none := s.held(); !none {
			t.Error("a lease is held after Release")
		}
		if way := s.kernel.Route(session).Decision; way != intercepttest.ToAgent {
			t.Errorf("a session goes way %d while it drains, want to the agent", way)
		}
		time.Sleep(5 * time.Second)
		if way := s.kernel.Route(session).Decision; way != intercepttest.Rejected {
			t.Errorf("a session goes way %d when it was drained, want rejected", way)
		}
		checkReleased(t, s)
		// The rules are still maintained.
		s.SetFallback([]netip.AddrPort{fallback4})
		s.waitFor("fallback changed", func() bool { return len(s.kernel.Rules().Fallback) == 1 })
		if err := s.Release(t.Context(), 0); err != nil {
			t.Errorf("once more: %v", err)
		}
		s.Start()
		checkReleased(t, s)
	})
}

func TestReleaseBeforeRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHarness(t, intercepttest.NewFake(time.Now), "ours", nil)
		if err := s.Release(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
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
		runHeld(t, prepare, func(t *testing.T, s *harness) {
			t.Helper()
			time.Sleep(after)
			if err := s.Release(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			checkReleased(t, s)
		})
	}
}

// TestReleaseWithRenewalsInFlight runs renewals that reach the kernel after the release.
func TestReleaseWithRenewalsInFlight(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(t *testing.T, s *harness) {
		t.Helper()
		unblock := s.kernel.Block(intercepttest.CallRenew)
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
		checkReleased(t, s)
	})
}

// A lateRenewal unblocks hanging renewals right after a release, before the release
// returns.
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

// TestReleaseOvertaken runs renewals that reach the kernel last, but return before Release
// checks for them.
func TestReleaseOvertaken(t *testing.T) {
	t.Parallel()
	backend := &lateRenewal{}
	prepare := func(cfg *intercept.Config, _ *harness) {
		backend.Backend = cfg.Backend
		cfg.Backend = backend
	}
	runHeld(t, prepare, func(t *testing.T, s *harness) {
		t.Helper()
		backend.then = s.kernel.Block(intercepttest.CallRenew)
		time.Sleep(2 * renew)
		if err := s.Release(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if _, none := s.held(); !none {
			t.Error("Release returned while a lease was held")
		}
		checkReleased(t, s)
	})
}

// TestReleaseTimeout does not wait for hanging calls; the lease ends by itself.
func TestReleaseTimeout(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(t *testing.T, s *harness) {
		t.Helper()
		unblock := s.kernel.Block(intercepttest.CallRenew)
		time.Sleep(2 * renew)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := s.Release(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Release: %v, want the error of its context", err)
		}
		unblock()
		synctest.Wait() // the renewals reach the kernel
		checkDuration(t, "lapsing", s.waitLapsed(), lease)
		checkReleased(t, s)
	})
}

func TestReleaseDuringBlockedApply(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(t *testing.T, s *harness) {
		t.Helper()
		unblock := s.kernel.Block(intercepttest.CallApply)
		defer unblock()
		s.kernel.Notify()
		time.Sleep(time.Second)
		begun := time.Now()
		if err := s.Release(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		checkDuration(t, "the release", time.Since(begun), 0)
		checkReleased(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Remove(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Remove: %v, want to wait for the Apply in vain", err)
		}
	})
}

func TestReleaseFails(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(t *testing.T, s *harness) {
		t.Helper()
		broken := errors.New("broken")
		s.kernel.Fail(intercepttest.CallRelease, 1, broken)
		if err := s.Release(t.Context(), 0); !errors.Is(err, broken) {
			t.Errorf("Release: %v, want the kernel's error", err)
		}
		checkDuration(t, "lapsing", s.waitLapsed(), lease)
		checkReleased(t, s)
	})
}

func TestRemove(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(t *testing.T, s *harness) {
		t.Helper()
		if err := s.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.kernel.Notify()
		s.SetFallback([]netip.AddrPort{fallback4})
		s.stays("without rules", 10*time.Minute, func() bool { return s.kernel.Rules() == nil })
		if err := s.Remove(t.Context()); err != nil {
			t.Errorf("once more: %v", err)
		}
		if way := s.decision(addr4); way != intercepttest.Direct {
			t.Errorf("a packet goes way %d without rules, want where it is addressed to", way)
		}
	})
}

// TestRemoveWaitsForApply: an Apply that ends after Remove would write the rules again.
func TestRemoveWaitsForApply(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(t *testing.T, s *harness) {
		t.Helper()
		unblock := s.kernel.Block(intercepttest.CallApply)
		s.kernel.Notify()
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

func TestRemoveLeavesOtherRules(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(t *testing.T, s *harness) {
		t.Helper()
		s.kernel.Overwrite(nodeRules("newer"))
		if err := s.Remove(t.Context()); !errors.Is(err, rules.ErrOwned) {
			t.Errorf("Remove: %v, want ErrOwned", err)
		}
		if r := s.kernel.Rules(); r == nil || r.Owner != "newer" {
			t.Errorf("rules are %v, want the newer agent's", r)
		}
	})
}
