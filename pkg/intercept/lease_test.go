// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/intercepttest"
)

func TestLeaseAfterStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHarness(t, intercepttest.NewFake(time.Now), "ours", nil)
		s.waitFor("rules written", func() bool { return s.kernel.Rules() != nil })
		s.staysLapsed(10 * time.Second)
		if way := s.decision(addr4); way != intercepttest.ToFallback {
			t.Errorf("before Start a packet goes way %d, want to the fallback", way)
		}
		if got := s.Stats(); got.Renewals != 0 || got.NotHeldFor < 10*time.Second || got.NoneHeldFor < 10*time.Second {
			t.Errorf("before Start: %d renewals, not held for %s, none for %s", got.Renewals, got.NotHeldFor, got.NoneHeldFor)
		}
		s.Start()
		s.Start() // a second call does nothing
		s.checkDuration("taking the lease", s.waitHeld(), 50*time.Millisecond)
		s.staysHeld(time.Minute)
		st := s.Stats()
		if !st.Leases[0].Held || !st.Leases[1].Held || st.NotHeldFor != 0 || st.Leases[0].Problem+st.Leases[1].Problem != "" || st.Released || st.Backend != "fake" {
			t.Errorf("stats: %+v, want both leases held", st)
		}
		if st.Renewals < 115 || st.Renewals > 125 {
			t.Errorf("%d renewals of two leases in a minute, want one of each in a second", st.Renewals)
		}
	})
}

// TestLeaseBeforeRules adds rules for an agent that already serves.
func TestLeaseBeforeRules(t *testing.T) {
	t.Parallel()
	const await = time.Second
	for _, tt := range []struct {
		name    string
		spoil   func(*harness)
		unasked bool // Start is not called
		after   time.Duration
		way     intercepttest.Decision // after the rules are written
	}{
		{name: "both at once", way: intercepttest.ToAgent},
		{name: "the agent is not to take leases", unasked: true, after: await, way: intercepttest.ToFallback},
		{name: "the agent does not answer", spoil: func(s *harness) { s.agent.silence(addr4, addr6) }, after: await, way: intercepttest.ToFallback},
		{name: "it does not at one address", spoil: func(s *harness) { s.agent.silence(addr6) }, after: await, way: intercepttest.ToAgent},
		{name: "renewals fail", spoil: func(s *harness) { s.kernel.Fail(intercepttest.CallRenew, 4, errLocked) }, after: renew / 5, way: intercepttest.ToAgent},
		{name: "nothing can be prepared", spoil: func(s *harness) { s.kernel.Fail(intercepttest.CallPrepare, 1, errLocked) }, way: intercepttest.ToAgent},
		{name: "a defect in preparing", spoil: func(s *harness) { s.kernel.Panic(intercepttest.CallPrepare, 1) }, way: intercepttest.ToAgent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newHarness(t, intercepttest.NewFake(time.Now), "ours", func(cfg *intercept.Config, s *harness) {
					cfg.AwaitLease = await
					if tt.spoil != nil {
						tt.spoil(s)
					}
				})
				if !tt.unasked {
					s.Start()
				}
				took := s.waitFor("rules written", func() bool { return s.kernel.Rules() != nil })
				if took < tt.after || took > tt.after+50*time.Millisecond {
					t.Errorf("rules after %s, want after %s", took, tt.after)
				}
				if way := s.decision(addr4); way != tt.way {
					t.Errorf("with the rules a packet goes way %d, want %d", way, tt.way)
				}
				if n := s.log.count("lease not acquired"); tt.spoil == nil && n > 0 {
					t.Errorf("warned of a start that went well:\n%s", s.log)
				}
			})
		})
	}
}

// TestLeaseWithoutRules checks that a lease does not count as held if its rules cannot be written.
func TestLeaseWithoutRules(t *testing.T) {
	t.Parallel()
	t.Run("rules of another agent use it", func(t *testing.T) {
		t.Parallel()
		runHeld(t, func(cfg *intercept.Config, s *harness) {
			s.kernel.Overwrite(nodeRules("predecessor"))
			cfg.AwaitLease = time.Second
			s.kernel.Fail(intercepttest.CallApply, 1<<30, errLocked)
		}, func(s *harness) {
			time.Sleep(2 * time.Second)
			s.staysHeld(time.Minute)
			if st := s.Stats(); !st.Leases[0].Held || st.NoneHeldFor != 0 || st.Renewals == 0 {
				s.t.Errorf("stats: %+v, want leases held", st)
			}
		})
	})
	prepare := func(cfg *intercept.Config, s *harness) {
		cfg.AwaitLease = time.Second
		s.kernel.Fail(intercepttest.CallApply, 1<<30, errLocked)
	}
	run(t, prepare, func(s *harness) {
		time.Sleep(time.Minute)
		if st := s.Stats(); st.Leases[0].Held || st.NotHeldFor < time.Minute || st.NoneHeldFor < time.Minute || st.Renewals > 0 {
			s.t.Errorf("stats: %+v, want no lease held", st)
		}
		s.kernel.Fail(intercepttest.CallApply, 0, nil)
		s.checkDuration("taking the lease", s.waitHeld(), 5*time.Second+renew)
		if st := s.Stats(); !st.Leases[0].Held || st.NoneHeldFor != 0 || st.Renewals == 0 {
			s.t.Errorf("stats: %+v, want leases held", st)
		}
	})
}

// TestReleaseBeforeRules stops an agent that has not written its rules yet.
func TestReleaseBeforeRules(t *testing.T) {
	t.Parallel()
	for _, removed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newHarness(t, intercepttest.NewFake(time.Now), "ours", func(cfg *intercept.Config, s *harness) {
				cfg.AwaitLease = time.Second
				s.agent.silence(addr4)
			})
			s.Start()
			time.Sleep(100 * time.Millisecond)
			assert.NoError(t, s.Release(t.Context(), time.Second))
			if removed {
				assert.NoError(t, s.Remove(t.Context()))
			}
			s.agent.silence()
			time.Sleep(50 * time.Millisecond) // released leases are not awaited
			if _, none := s.held(); !none {
				t.Errorf("removed: %t, a lease is held", removed)
			}
			if there := s.kernel.Rules() != nil; there == removed {
				t.Errorf("removed: %t, rules are there: %t", removed, there)
			}
		})
	}
}

// TestNoWarningBeforeFirstRules: without Prepare a backend renews no lease before its first Apply.
func TestNoWarningBeforeFirstRules(t *testing.T) {
	t.Parallel()
	prepare := func(_ *intercept.Config, s *harness) {
		s.kernel.Fail(intercepttest.CallApply, 1, errLocked)
	}
	runHeld(t, prepare, func(s *harness) {
		if n := s.log.count("lease not acquired"); n != 0 {
			s.t.Errorf("warned %d times of a lease at a start that went well:\n%s", n, s.log)
		}
	})
}

// TestFullLoad loses half of all attempts, as an overloaded host does.
func TestFullLoad(t *testing.T) {
	t.Parallel()
	run(t, nil, func(s *harness) {
		s.agent.set(func(a *fakeAgent) {
			a.lost = func(string) bool { return rand.N(2) == 0 }
			a.delay = func() time.Duration { return rand.N(40 * time.Millisecond) }
		})
		s.waitHeld()
		s.staysHeld(time.Hour)
		st := s.Stats()
		s.t.Logf("%d renewals, failed rounds %v", st.Renewals, st.RenewalFailures)
		if st.Renewals < 5000 {
			s.t.Errorf("%d renewals in an hour, want most of 7200", st.Renewals)
		}
	})
}

func TestWedgedAndRecovered(t *testing.T) {
	t.Parallel()
	faults := []struct {
		name  string
		begin func(*fakeAgent)
		end   func(*fakeAgent)
		cause intercept.Cause
		late  time.Duration // the lease may still be renewed for so long
		back  time.Duration // until the lease is held again; 0: a second
	}{
		{
			name: "silent", cause: intercept.Silent,
			begin: func(a *fakeAgent) { a.silence(addr4, addr6) }, end: func(a *fakeAgent) { a.silence() },
		},
		{
			name: "gone", cause: intercept.Refused,
			begin: func(a *fakeAgent) { a.set(func(a *fakeAgent) { a.down = true }) },
			end:   func(a *fakeAgent) { a.set(func(a *fakeAgent) { a.down = false }) },
		},
		{
			name: "one reader hangs", cause: intercept.Wedged, late: renew / 4, back: renew/5 + 10*time.Millisecond,
			begin: func(a *fakeAgent) { a.stuck.Store(time.Now().UnixNano()) }, end: func(a *fakeAgent) { a.stuck.Store(0) },
		},
		{
			name: "TCP only", cause: intercept.Silent,
			begin: func(a *fakeAgent) { a.set(func(a *fakeAgent) { a.lost = func(n string) bool { return n == "tcp" } }) },
			end:   func(a *fakeAgent) { a.set(func(a *fakeAgent) { a.lost = nil }) },
		},
		{
			name: "another agent answers", cause: intercept.Wrong,
			begin: func(a *fakeAgent) { a.set(func(a *fakeAgent) { a.other = func(string) string { return "other" } }) },
			end:   func(a *fakeAgent) { a.set(func(a *fakeAgent) { a.other = nil }) },
		},
	}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			runHeld(t, nil, func(s *harness) {
				const rounds = 10 // at as many times after a renewal
				for i := range rounds {
					time.Sleep(time.Duration(i) * renew / rounds)
					f.begin(s.agent)
					s.checkDuration("standing aside", s.waitLapsed(), lease+f.late+10*time.Millisecond)
					s.staysLapsed(time.Minute)
					if st := s.Stats(); st.NotHeldFor < time.Minute || st.NoneHeldFor < time.Minute {
						s.t.Errorf("not held for %s, none for %s, want a minute", st.NotHeldFor, st.NoneHeldFor)
					}
					f.end(s.agent)
					s.checkDuration("coming back", s.waitHeld(), cmp.Or(f.back, time.Second))
					s.staysHeld(time.Minute)
				}
				st := s.Stats()
				if st.RenewalFailures[f.cause] == 0 {
					s.t.Errorf("failures by cause: %v, want some of %s", st.RenewalFailures, f.cause)
				}
				if n := s.log.count("lease lapsed"); n != 2*rounds {
					s.t.Errorf("%d lines say that a lease lapsed, want one for each of two leases, %d times", n, rounds)
				}
				if n := s.log.count("\n"); n > 10*rounds {
					s.t.Errorf("%d lines were logged, want few:\n%s", n, s.log)
				}
			})
		})
	}
}

func TestSharedPort(t *testing.T) {
	t.Parallel()
	// While a predecessor still reads, each attempt reaches one of the two agents.
	run(t, nil, func(s *harness) {
		s.agent.set(func(a *fakeAgent) {
			a.other = func(string) string { return []string{"", "other"}[rand.N(2)] }
		})
		s.checkDuration("taking the lease", s.waitHeld(), time.Second)
		s.staysHeld(10 * time.Minute)
	})
}

// TestForeignProcess lets a foreign process answer a share of the queries.
func TestForeignProcess(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		of100   int           // UDP queries that it answers
		network string        // over which it answers
		lapses  time.Duration // within that time
	}{
		{"44 of 100", 44, "udp", lease + 10*renew},
		{"1 of 100", 1, "udp", 3 * time.Minute}, // 720 probes of two leases, each of which reaches it with probability 3.9 %
		{"44 of 100 sessions", 44, "tcp", lease + 10*renew},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			runHeld(t, nil, func(s *harness) {
				s.agent.set(func(a *fakeAgent) {
					a.other = func(network string) string {
						if network == tt.network && rand.N(100) < tt.of100 {
							return foreign
						}
						return ""
					}
				})
				s.checkDuration("giving up a lease", s.waitFor("lapsed", func() bool { all, _ := s.held(); return !all }), tt.lapses)
				if tt.network == "udp" && tt.of100 > 1 {
					s.waitLapsed()
					s.staysLapsed(time.Minute)
				}
				s.agent.set(func(a *fakeAgent) { a.other = nil })
				s.checkDuration("coming back", s.waitHeld(), 2*lease+2*renew)
				s.staysHeld(time.Minute)
				if n := s.log.count("another process answers here"); n == 0 {
					s.t.Errorf("no line names the cause:\n%s", s.log)
				}
			})
		})
	}
}

func TestLeasesAreIndependent(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		s.agent.silence(addr6)
		s.waitFor("lapsed for IPv6", func() bool { return s.decision(addr6) == intercepttest.ToFallback })
		s.stays("held for IPv4 only", time.Minute, func() bool {
			return s.decision(addr4) == intercepttest.ToAgent && s.decision(addr6) == intercepttest.ToFallback
		})
		st := s.Stats()
		if !st.Leases[0].Held || st.Leases[1].Held || st.Leases[1].Problem == "" || st.Leases[0].Problem != "" || st.NotHeldFor == 0 || st.NoneHeldFor != 0 {
			s.t.Errorf("stats: %+v, want the lease on %s only", st, addr4)
		}
	})
}

// TestLeaseStartsWithProbe checks that the duration of a probe does not extend the lease.
func TestLeaseStartsWithProbe(t *testing.T) {
	t.Parallel()
	var slow atomic.Int64
	probe := func(cfg *intercept.Config, _ *harness) {
		cfg.Probe = func(ctx context.Context, _ netip.Addr) (intercept.Cause, error) {
			select {
			case <-time.After(time.Duration(slow.Load())):
				return 0, nil
			case <-ctx.Done():
				return intercept.Silent, ctx.Err()
			}
		}
	}
	run(t, probe, func(s *harness) {
		slow.Store(int64(1200 * time.Millisecond))
		s.waitHeld()
		state, err := s.kernel.Open().State(s.t.Context())
		assert.NoError(s.t, err)
		if left := state.Leases[addr4]; left > lease-1190*time.Millisecond {
			s.t.Errorf("a lease has %s left after a proof that took 1.2 s, want %s", left, lease-1200*time.Millisecond)
		}
		s.staysHeld(time.Minute)
		slow.Store(int64(lease/2 + time.Millisecond))
		s.waitLapsed()
		s.staysLapsed(time.Minute)
		if got := s.Stats().RenewalFailures[intercept.Silent]; got == 0 {
			s.t.Error("no round failed, want all: their proofs were too old")
		}
	})
}

// TestStaleProbe runs a probe that ignores its context.
func TestStaleProbe(t *testing.T) {
	t.Parallel()
	prepare := func(cfg *intercept.Config, _ *harness) {
		cfg.Probe = func(context.Context, netip.Addr) (intercept.Cause, error) {
			time.Sleep(lease/2 + time.Millisecond)
			return 0, nil
		}
	}
	run(t, prepare, func(s *harness) {
		s.staysLapsed(time.Minute)
		if got := s.Stats(); got.Renewals != 0 || got.RenewalFailures[intercept.StaleProbe] < 70 {
			s.t.Errorf("%d renewals, failures %v, want all late", got.Renewals, got.RenewalFailures)
		}
	})
}

func TestRenewalsFail(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		before := s.Stats().RenewalFailures[intercept.RenewFailed]               // a first renewal may come before the rules
		s.kernel.Fail(intercepttest.CallRenew, 4, errors.New("no buffer space")) // about two renewals of each lease
		s.staysHeld(time.Minute)
		assert.Equal(s.t, "renewals failed in the kernel", 4, s.Stats().RenewalFailures[intercept.RenewFailed]-before)
		s.kernel.Panic(intercepttest.CallRenew, 2)
		s.staysHeld(time.Minute)
		assert.Equal(s.t, "panics", 2, s.Stats().Panics)
	})
}
