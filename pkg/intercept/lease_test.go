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

	"github.com/nodecache/node-cache/pkg/intercept"
)

func TestLeaseIsTakenAfterStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, intercept.NewFake(time.Now), "ours", nil)
		s.until("rules written", func() bool { return s.kernel.Rules() != nil })
		s.staysLapsed(10 * time.Second)
		if way := s.way(addr4); way != intercept.ToFallback {
			t.Errorf("before Start a packet goes way %d, want to the fallback", way)
		}
		if got := s.Stats(); got.Renewals != 0 || got.SinceHeld < 10*time.Second || got.SinceAny < 10*time.Second {
			t.Errorf("before Start: %d renewals, not held for %s, none for %s", got.Renewals, got.SinceHeld, got.SinceAny)
		}
		s.Start()
		s.Start() // once more is no harm
		within(t, "taking the lease", s.untilHeld(), 50*time.Millisecond)
		s.staysHeld(time.Minute)
		st := s.Stats()
		if !st.Held[addr4] || !st.Held[addr6] || st.SinceHeld != 0 || len(st.Problems) != 0 || st.Released || st.Backend != "fake" {
			t.Errorf("stats: %+v, want both leases held", st)
		}
		if st.Renewals < 230 || st.Renewals > 250 {
			t.Errorf("%d renewals of two leases in a minute, want two of each in a second", st.Renewals)
		}
	})
}

// TestLeaseAheadOfRules has an agent that is asked already, without rules, get them.
func TestLeaseAheadOfRules(t *testing.T) {
	t.Parallel()
	const await = time.Second
	for _, tt := range []struct {
		name    string
		spoil   func(*scene)
		unasked bool // to take leases
		after   time.Duration
		way     intercept.Way // once there are rules
	}{
		{name: "both at once", way: intercept.ToAgent},
		{name: "the agent is not to take leases", unasked: true, after: await, way: intercept.ToFallback},
		{name: "the agent does not answer", spoil: func(s *scene) { s.agent.mute(addr4, addr6) }, after: await, way: intercept.ToFallback},
		{name: "it does not at one address", spoil: func(s *scene) { s.agent.mute(addr6) }, after: await, way: intercept.ToAgent},
		{name: "renewals fail", spoil: func(s *scene) { s.kernel.Fail(intercept.CallRenew, 4, errLocked) }, after: renew, way: intercept.ToAgent},
		{name: "nothing can be prepared", spoil: func(s *scene) { s.kernel.Fail(intercept.CallPrepare, 1, errLocked) }, way: intercept.ToAgent},
		{name: "a defect in preparing", spoil: func(s *scene) { s.kernel.Panic(intercept.CallPrepare, 1) }, way: intercept.ToAgent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t, intercept.NewFake(time.Now), "ours", func(cfg *intercept.Config, s *scene) {
					cfg.Await = await
					if tt.spoil != nil {
						tt.spoil(s)
					}
				})
				if !tt.unasked {
					s.Start()
				}
				took := s.until("rules written", func() bool { return s.kernel.Rules() != nil })
				if took < tt.after || took > tt.after+50*time.Millisecond {
					t.Errorf("rules after %s, want after %s", took, tt.after)
				}
				if way := s.way(addr4); way != tt.way {
					t.Errorf("with the rules a packet goes way %d, want %d", way, tt.way)
				}
				if n := s.log.count("lease not taken"); tt.spoil == nil && n > 0 {
					t.Errorf("warned of a start that went well:\n%s", s.log)
				}
			})
		})
	}
}

// TestLeaseOfNoRules: a lease that was taken ahead of rules which cannot be written is not held for anybody.
func TestLeaseOfNoRules(t *testing.T) {
	t.Parallel()
	t.Run("another's rules look at it", func(t *testing.T) {
		t.Parallel()
		play(t, func(cfg *intercept.Config, s *scene) {
			s.kernel.Seize(nodeRules("former"))
			cfg.Await = time.Second
			s.kernel.Fail(intercept.CallApply, 1<<30, errLocked)
		}, func(s *scene) {
			t := s.t
			s.untilHeld()
			time.Sleep(2 * time.Second)
			s.staysHeld(time.Minute)
			if st := s.Stats(); !st.Held[addr4] || st.SinceAny != 0 || st.Renewals == 0 {
				t.Errorf("stats: %+v, want leases held", st)
			}
		})
	})
	prepare := func(cfg *intercept.Config, s *scene) {
		cfg.Await = time.Second
		s.kernel.Fail(intercept.CallApply, 1<<30, errLocked)
	}
	play(t, prepare, func(s *scene) {
		t := s.t
		time.Sleep(time.Minute)
		if st := s.Stats(); st.Held[addr4] || st.SinceHeld < time.Minute || st.SinceAny < time.Minute || st.Renewals > 0 {
			t.Errorf("stats: %+v, want no lease held", st)
		}
		s.kernel.Fail(intercept.CallApply, 0, nil)
		within(t, "taking the lease", s.untilHeld(), 5*time.Second+renew)
		if st := s.Stats(); !st.Held[addr4] || st.SinceAny != 0 || st.Renewals == 0 {
			t.Errorf("stats: %+v, want leases held", st)
		}
	})
}

// TestReleasedAheadOfRules ends an agent that has not written its rules yet.
func TestReleasedAheadOfRules(t *testing.T) {
	t.Parallel()
	for _, removed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newScene(t, intercept.NewFake(time.Now), "ours", func(cfg *intercept.Config, s *scene) {
				cfg.Await = time.Second
				s.agent.mute(addr4)
			})
			s.Start()
			time.Sleep(100 * time.Millisecond)
			if err := s.Release(t.Context(), time.Second); err != nil {
				t.Fatal(err)
			}
			if removed {
				if err := s.Remove(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			s.agent.mute()
			time.Sleep(50 * time.Millisecond) // what is given up is not waited for
			if _, none := s.held(); !none {
				t.Errorf("removed: %t, a lease is held", removed)
			}
			if there := s.kernel.Rules() != nil; there == removed {
				t.Errorf("removed: %t, rules are there: %t", removed, there)
			}
		})
	}
}

// TestNoWarningBeforeTheFirstRules: a backend takes no lease before its first Apply, if nothing was prepared.
func TestNoWarningBeforeTheFirstRules(t *testing.T) {
	t.Parallel()
	prepare := func(_ *intercept.Config, s *scene) {
		s.kernel.Fail(intercept.CallApply, 1, errLocked)
	}
	play(t, prepare, func(s *scene) {
		s.untilHeld()
		if n := s.log.count("lease not taken"); n != 0 {
			s.t.Errorf("warned %d times of a lease at a start that went well:\n%s", n, s.log)
		}
	})
}

// TestFullLoad loses half of all tries, as a machine does that has more to do than it can.
func TestFullLoad(t *testing.T) {
	t.Parallel()
	play(t, nil, func(s *scene) {
		t := s.t
		s.agent.set(func(a *simAgent) {
			a.lost = func(string) bool { return rand.N(2) == 0 }
			a.delay = func() time.Duration { return rand.N(40 * time.Millisecond) }
		})
		s.untilHeld()
		s.staysHeld(time.Hour)
		st := s.Stats()
		t.Logf("%d renewals, failed rounds %v", st.Renewals, st.RenewalFailures)
		if st.Renewals < 10000 {
			t.Errorf("%d renewals in an hour, want most of 14400", st.Renewals)
		}
	})
}

func TestWedgedAndRecovered(t *testing.T) {
	t.Parallel()
	faults := []struct {
		name  string
		begin func(*simAgent)
		end   func(*simAgent)
		cause intercept.Cause
		back  time.Duration // until the lease is held again; 0: a second
	}{
		{
			name: "silent", cause: intercept.Silent,
			begin: func(a *simAgent) { a.mute(addr4, addr6) }, end: func(a *simAgent) { a.mute() },
		},
		{
			name: "gone", cause: intercept.Refused,
			begin: func(a *simAgent) { a.set(func(a *simAgent) { a.down = true }) },
			end:   func(a *simAgent) { a.set(func(a *simAgent) { a.down = false }) },
		},
		{
			name: "one reader hangs", cause: intercept.Wedged, back: renew/5 + 10*time.Millisecond,
			begin: func(a *simAgent) { a.stuck.Store(int64(2*renew + 1)) }, end: func(a *simAgent) { a.stuck.Store(0) },
		},
		{
			name: "TCP only", cause: intercept.Silent,
			begin: func(a *simAgent) { a.set(func(a *simAgent) { a.lost = func(n string) bool { return n == "tcp" } }) },
			end:   func(a *simAgent) { a.set(func(a *simAgent) { a.lost = nil }) },
		},
		{
			name: "another agent answers", cause: intercept.Wrong,
			begin: func(a *simAgent) { a.set(func(a *simAgent) { a.other = func(string) string { return "theirs" } }) },
			end:   func(a *simAgent) { a.set(func(a *simAgent) { a.other = nil }) },
		},
	}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			play(t, nil, func(s *scene) {
				t := s.t
				s.untilHeld()
				for range 3 {
					time.Sleep(time.Duration(rand.Int64N(int64(time.Second))))
					f.begin(s.agent)
					within(t, "standing aside", s.untilLapsed(), lease+10*time.Millisecond)
					s.staysLapsed(time.Minute)
					if st := s.Stats(); st.SinceHeld < time.Minute || st.SinceAny < time.Minute {
						t.Errorf("not held for %s, none for %s, want a minute", st.SinceHeld, st.SinceAny)
					}
					f.end(s.agent)
					within(t, "coming back", s.untilHeld(), cmp.Or(f.back, time.Second))
					s.staysHeld(time.Minute)
				}
				st := s.Stats()
				if st.RenewalFailures[f.cause] == 0 {
					t.Errorf("failures by cause: %v, want some of %s", st.RenewalFailures, f.cause)
				}
				if n := s.log.count("lease lapsed"); n != 6 {
					t.Errorf("%d lines say that a lease lapsed, want one for each of two leases, three times", n)
				}
				if n := s.log.count("\n"); n > 30 {
					t.Errorf("%d lines were logged, want few:\n%s", n, s.log)
				}
			})
		})
	}
}

func TestSharedPort(t *testing.T) {
	t.Parallel()
	// While an agent that is taken over from still reads, each try meets one of the two.
	play(t, nil, func(s *scene) {
		t := s.t
		s.agent.set(func(a *simAgent) {
			a.other = func(string) string { return []string{"", "theirs"}[rand.N(2)] }
		})
		within(t, "taking the lease", s.untilHeld(), time.Second)
		s.staysHeld(10 * time.Minute)
	})
}

// TestForeignProcess has a process that is no agent answer a share of the queries.
func TestForeignProcess(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		of100   int           // UDP queries that it answers
		network string        // over which it answers
		lapses  time.Duration // within that time
	}{
		{"44 of 100", 44, "udp", lease + 10*renew},
		{"1 of 100", 1, "udp", 3 * time.Minute}, // 720 probes, each of which meets it with 3.9 %, from two leases
		{"44 of 100 sessions", 44, "tcp", lease + 10*renew},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			play(t, nil, func(s *scene) {
				t := s.t
				s.untilHeld()
				s.agent.set(func(a *simAgent) {
					a.other = func(network string) string {
						if network == tt.network && rand.N(100) < tt.of100 {
							return foreign
						}
						return ""
					}
				})
				within(t, "giving up a lease", s.until("lapsed", func() bool { all, _ := s.held(); return !all }), tt.lapses)
				if tt.network == "udp" && tt.of100 > 1 {
					s.untilLapsed()
					s.staysLapsed(time.Minute)
				}
				s.agent.set(func(a *simAgent) { a.other = nil })
				within(t, "coming back", s.untilHeld(), 2*lease+2*renew)
				s.staysHeld(time.Minute)
				if n := s.log.count("another process answers here"); n == 0 {
					t.Errorf("no line names the cause:\n%s", s.log)
				}
			})
		})
	}
}

func TestLeasesAreIndependent(t *testing.T) {
	t.Parallel()
	play(t, nil, func(s *scene) {
		t := s.t
		s.untilHeld()
		s.agent.mute(addr6)
		s.until("lapsed for IPv6", func() bool { return s.way(addr6) == intercept.ToFallback })
		s.stays("held for IPv4 only", time.Minute, func() bool {
			return s.way(addr4) == intercept.ToAgent && s.way(addr6) == intercept.ToFallback
		})
		st := s.Stats()
		if !st.Held[addr4] || st.Held[addr6] || st.Problems[addr6] == "" || st.Problems[addr4] != "" || st.SinceHeld == 0 || st.SinceAny != 0 {
			t.Errorf("stats: %+v, want the lease on %s only", st, addr4)
		}
	})
}

// TestLeaseRunsFromTheProof has probes that take long: what they took is not given twice.
func TestLeaseRunsFromTheProof(t *testing.T) {
	t.Parallel()
	var slow atomic.Int64
	probe := func(cfg *intercept.Config, _ *scene) {
		cfg.Probe = func(ctx context.Context, _ netip.Addr) error {
			select {
			case <-time.After(time.Duration(slow.Load())):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	play(t, probe, func(s *scene) {
		t := s.t
		slow.Store(int64(1200 * time.Millisecond))
		s.untilHeld()
		state, err := s.kernel.Open().State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if left := state.Leases[addr4]; left > lease-1190*time.Millisecond {
			t.Errorf("a lease has %s left after a proof that took 1.2 s, want %s", left, lease-1200*time.Millisecond)
		}
		s.staysHeld(time.Minute)
		slow.Store(int64(lease/2 + time.Millisecond))
		s.untilLapsed()
		s.staysLapsed(time.Minute)
		if got := s.Stats().RenewalFailures[intercept.Silent]; got == 0 {
			t.Error("no round failed, want all: their proofs were too old")
		}
	})
}

// TestLateProof has a probe that heeds no context.
func TestLateProof(t *testing.T) {
	t.Parallel()
	prepare := func(cfg *intercept.Config, _ *scene) {
		cfg.Probe = func(context.Context, netip.Addr) error {
			time.Sleep(lease/2 + time.Millisecond)
			return nil
		}
	}
	play(t, prepare, func(s *scene) {
		t := s.t
		s.staysLapsed(time.Minute)
		if got := s.Stats(); got.Renewals != 0 || got.RenewalFailures[intercept.Late] < 70 {
			t.Errorf("%d renewals, failures %v, want all late", got.Renewals, got.RenewalFailures)
		}
	})
}

func TestRenewalsFail(t *testing.T) {
	t.Parallel()
	play(t, nil, func(s *scene) {
		t := s.t
		s.untilHeld()
		s.kernel.Fail(intercept.CallRenew, 4, errors.New("no buffer space")) // two rounds of each, or so
		s.staysHeld(time.Minute)
		if got := s.Stats().RenewalFailures[intercept.Kernel]; got != 4 {
			t.Errorf("%d renewals failed in the kernel, want 4", got)
		}
		s.kernel.Panic(intercept.CallRenew, 2)
		s.staysHeld(time.Minute)
		if got := s.Stats().Panics; got != 2 {
			t.Errorf("%d panics, want 2", got)
		}
	})
}
