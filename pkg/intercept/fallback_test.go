// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/intercepttest"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// endpoints returns n endpoints of a family, in order.
func endpoints(v6 bool, n int) []netip.AddrPort {
	list := make([]netip.AddrPort, n)
	for i := range list {
		a := netip.AddrFrom4([4]byte{10, 244, 1, byte(i)})
		if v6 {
			a = netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(i)})
		}
		list[i] = netip.AddrPortFrom(a, 53)
	}
	return list
}

func TestSetFallback(t *testing.T) {
	t.Parallel()
	start := []netip.AddrPort{fallback4, fallback6}
	at := netip.MustParseAddrPort
	tests := []struct {
		name    string
		set     []netip.AddrPort
		want    []netip.AddrPort
		omitted int
	}{
		{name: "nothing known changes nothing", set: nil, want: start},
		{name: "nothing of use changes nothing", set: []netip.AddrPort{{}, at("0.0.0.0:53"), at("10.0.0.1:0")}, want: start},
		{name: "one", set: []netip.AddrPort{at("10.1.1.1:53")}, want: []netip.AddrPort{at("10.1.1.1:53")}},
		{name: "another order is no change", set: []netip.AddrPort{fallback6, fallback4}, want: start},
		{
			name: "each once, in order", want: []netip.AddrPort{at("10.1.1.1:53"), at("10.1.1.2:53"), at("10.1.1.2:5353")},
			set: []netip.AddrPort{at("10.1.1.2:5353"), at("10.1.1.2:53"), at("10.1.1.1:53"), at("[::ffff:10.1.1.1]:53")},
		},
		{
			name: "never the agent itself", want: []netip.AddrPort{at("10.1.1.1:53")}, omitted: 2,
			set: []netip.AddrPort{netip.AddrPortFrom(addr4, 53), netip.AddrPortFrom(addr6, 5353), at("10.1.1.1:53")},
		},
		{
			name: "no odd ones", omitted: 4, want: []netip.AddrPort{at("10.1.1.1:53")},
			set: []netip.AddrPort{{}, at("224.0.0.1:53"), at("[fe80::1%eth0]:53"), at("10.0.0.1:0"), at("10.1.1.1:53")},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			runHeld(t, nil, func(s *harness) {
				time.Sleep(time.Second)
				given := slices.Clone(tt.set)
				s.SetFallback(given)
				clear(given) // the caller may change it
				time.Sleep(200 * time.Millisecond)
				synctest.Wait()
				byText := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
				assert.Same(s.t, "in the kernel", tt.want, s.kernel.Rules().Fallback, byText)
				st := s.Stats()
				assert.Same(s.t, "in the stats", tt.want, st.Fallback, byText)
				assert.Equal(s.t, "omitted", tt.omitted, st.FallbackOmitted)
				if all, _ := s.held(); !all {
					s.t.Error("the lease was lost meanwhile")
				}
				s.kernel.Flush() // the Keeper also has the list
				time.Sleep(200 * time.Millisecond)
				assert.Same(s.t, "after a flush", tt.want, s.kernel.Rules().Fallback, byText)
			})
		})
	}
}

// TestTooManyEndpoints checks that each agent selects some and keeps them.
func TestTooManyEndpoints(t *testing.T) {
	t.Parallel()
	const most, all = 16, 100
	chosen := map[netip.AddrPort]bool{}
	for range 10 {
		runHeld(t, nil, func(s *harness) {
			many := append(endpoints(true, all), endpoints(false, all)...)
			s.SetFallback(many)
			s.waitFor("chosen", func() bool { return len(s.kernel.Rules().Fallback) == 2*most })
			first := s.kernel.Rules().Fallback
			if !slices.IsSortedFunc(first, netip.AddrPort.Compare) || !first[most-1].Addr().Is4() || !first[most].Addr().Is6() {
				s.t.Errorf("the choice is %v, want %d of each family in order", first, most)
			}
			slices.Reverse(many)
			s.SetFallback(many)
			s.stays("as it was", time.Second, func() bool { return slices.Equal(s.kernel.Rules().Fallback, first) })
			assert.Equal(s.t, "omitted", 2*(all-most), s.Stats().FallbackOmitted)
			for _, e := range first {
				chosen[e] = true
			}
		})
	}
	if len(chosen) <= 2*most {
		t.Errorf("ten agents chose the same %d endpoints", len(chosen))
	}
}

// TestEmptyFallbackAndFlush sets an empty list when the kernel has none either.
func TestEmptyFallbackAndFlush(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		time.Sleep(time.Second)
		s.SetFallback([]netip.AddrPort{})
		s.kernel.Flush()
		s.waitHeld()
		if got := s.kernel.Rules().Fallback; len(got) != 2 {
			s.t.Errorf("fallback is %v, want what was known", got)
		}
	})
}

// TestFallbackManyChanges changes the list from several goroutines a thousand times a second.
func TestFallbackManyChanges(t *testing.T) {
	t.Parallel()
	runHeld(t, nil, func(s *harness) {
		before := s.kernel.Calls().Started[intercepttest.CallApply]
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				for range 2500 {
					s.SetFallback(endpoints(rand.N(2) == 0, rand.N(20)))
					time.Sleep(4 * time.Millisecond)
				}
			})
		}
		s.staysHeld(10 * time.Second)
		group.Wait()
		if n := s.kernel.Calls().Started[intercepttest.CallApply] - before; n > 110 {
			s.t.Errorf("rules were written %d times in 10 s, want ten times a second at most", n)
		}
		last := endpoints(false, 3)
		s.SetFallback(last)
		took := s.waitFor("the last list in the kernel", func() bool { return slices.Equal(s.kernel.Rules().Fallback, last) })
		s.checkDuration("writing the last list", took, 250*time.Millisecond)
	})
}

// TestFallbackOfPredecessor uses a predecessor's list until a newer one is set.
func TestFallbackOfPredecessor(t *testing.T) {
	t.Parallel()
	prepare := func(cfg *intercept.Config, s *harness) {
		r := nodeRules("predecessor")
		r.Fallback = endpoints(false, 2)
		s.kernel.Overwrite(r)
		cfg.Rules.Fallback = nil
	}
	run(t, prepare, func(s *harness) {
		s.SetFallback(nil)
		s.waitHeld()
		if got := s.kernel.Rules().Fallback; !slices.Equal(got, endpoints(false, 2)) {
			s.t.Errorf("fallback is %v, want the predecessor's", got)
		}
		s.kernel.Flush() // the Keeper has the list
		s.waitFor("restored", func() bool { return s.kernel.Rules() != nil })
		if got := s.kernel.Rules().Fallback; !slices.Equal(got, endpoints(false, 2)) {
			s.t.Errorf("fallback is %v after a flush, want the predecessor's", got)
		}
		s.SetFallback(endpoints(true, 1))
		s.waitFor("changed", func() bool { return slices.Equal(s.kernel.Rules().Fallback, endpoints(true, 1)) })
	})
}

// TestClearFallback leaves no fallback, not even that of a predecessor.
func TestClearFallback(t *testing.T) {
	t.Parallel()
	prepare := func(cfg *intercept.Config, s *harness) {
		s.kernel.Overwrite(nodeRules("predecessor"))
		cfg.Rules.Fallback = nil
	}
	run(t, prepare, func(s *harness) {
		s.ClearFallback()
		s.waitHeld()
		s.stays("without a fallback", 5*time.Second, func() bool { return len(s.kernel.Rules().Fallback) == 0 })
		s.SetFallback(endpoints(true, 1))
		s.waitFor("changed", func() bool { return slices.Equal(s.kernel.Rules().Fallback, endpoints(true, 1)) })
		s.ClearFallback()
		s.waitFor("cleared", func() bool { return len(s.kernel.Rules().Fallback) == 0 })
	})
}

func TestTransparentHasNoFallback(t *testing.T) {
	t.Parallel()
	service := netip.MustParseAddr("10.96.0.10")
	prepare := func(cfg *intercept.Config, s *harness) {
		s.kernel.Overwrite(nodeRules("predecessor"))
		cfg.Rules.Mode, cfg.Rules.Services = rules.Transparent, []netip.Addr{service}
	}
	run(t, prepare, func(s *harness) {
		s.waitFor("leased", func() bool { return s.decision(service) == intercepttest.ToAgent })
		s.SetFallback(endpoints(false, 1))
		s.stays("leased", 5*time.Second, func() bool { return s.decision(service) == intercepttest.ToAgent })
		if got := s.kernel.Rules(); len(got.Fallback) != 0 || len(s.Stats().Fallback) != 0 {
			s.t.Errorf("fallback is %v, want none", got.Fallback)
		}
		assert.NoError(s.t, s.Release(s.t.Context(), 0))
		if way := s.decision(service); way != intercepttest.Direct {
			s.t.Errorf("a packet goes way %d, want to the service", way)
		}
	})
}

// TestExcludedHasFallback: no data plane serves the Service, so the rules need the endpoints, and never the Service itself.
func TestExcludedHasFallback(t *testing.T) {
	t.Parallel()
	service := netip.MustParseAddr("10.96.0.10")
	prepare := func(cfg *intercept.Config, s *harness) {
		s.kernel.Overwrite(nodeRules("predecessor"))
		cfg.Rules.Mode, cfg.Rules.Services, cfg.Rules.Excluded, cfg.Rules.Fallback = rules.Transparent, []netip.Addr{service}, true, nil
	}
	run(t, prepare, func(s *harness) {
		s.waitFor("leased", func() bool { return s.decision(service) == intercepttest.ToAgent })
		if got := s.kernel.Rules().Fallback; !slices.Equal(got, nodeRules("predecessor").Fallback) {
			s.t.Errorf("fallback is %v, want that of the predecessor", got)
		}
		s.SetFallback(append(endpoints(false, 1), netip.AddrPortFrom(service, 53)))
		s.waitFor("changed", func() bool { return slices.Equal(s.kernel.Rules().Fallback, endpoints(false, 1)) })
		s.SetFallback([]netip.AddrPort{netip.AddrPortFrom(service, 53)}) // unusable: the last list stays
		assert.NoError(s.t, s.Release(s.t.Context(), 0))
		s.stays("with the last fallback", 5*time.Second, func() bool {
			return s.decision(service) == intercepttest.ToFallback && slices.Equal(s.kernel.Rules().Fallback, endpoints(false, 1))
		})
	})
}
