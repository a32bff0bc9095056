// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

func fallbackChanged(n nodeHarness) {
	b := n.agent()
	r := n.fallingBack("first")
	n.apply(b, r)
	last := r.Fallback[len(r.Fallback)-1]
	r.Fallback = slices.DeleteFunc(slices.Clone(r.Fallback), func(f netip.AddrPort) bool { return f == last })
	if !n.apply(b, r) {
		n.t.Error("another fallback changed nothing")
	}
	n.expectFallback("one less", n.queries(n.asked()), r.Fallback)
	n.renew(b, n.asked(), time.Minute)
	r.Fallback = n.Fallbacks
	n.apply(b, r)
	n.expect("changed while leased", n.queries(n.asked()), Agent)
	n.release(b, n.asked(), 0)
	n.expectFallback("all again", n.queries(n.asked()), n.Fallbacks)
}

func fallbackOfOneFamily(n nodeHarness) {
	b := n.agent()
	for _, v6 := range []bool{false, true} {
		r := n.fallingBack("first")
		r.Fallback = ofFamily(n.Fallbacks, v6)
		n.apply(b, r)
		n.expectFallback("its family", n.queries(family(n.asked(), v6)), r.Fallback)
		n.expect("the other family", n.queries(family(n.asked(), !v6)), n.direct())
		n.renew(b, n.asked(), time.Minute)
		n.expect("leased", n.queries(n.asked()), Agent)
		n.release(b, n.asked(), 0)
	}
}

func noFallback(n nodeHarness) {
	b := n.agent()
	r := n.fallingBack("first")
	r.Fallback = nil
	n.apply(b, r)
	n.expect("not leased", n.queries(n.asked()), n.direct())
	n.renew(b, n.asked(), time.Minute)
	n.expect("leased", n.queries(n.asked()), Agent)
	n.release(b, n.asked(), 0)
	n.expect("released", n.queries(n.asked()), n.direct())
}

// noGap queries while rules are replaced: every query sees the old rules or the new ones.
func noGap(n nodeHarness) {
	b := n.agent()
	r := n.fallingBack("first")
	n.apply(b, r)
	first, second := n.Fallbacks[:0:0], n.Fallbacks[:0:0] // one of each family; the others
	for i, f := range ofFamily(n.Fallbacks, false) {
		six := ofFamily(n.Fallbacks, true)[i]
		if i == 0 {
			first = append(first, f, six)
		} else {
			second = append(second, f, six)
		}
	}
	stop := n.queryLoop(n.queries(n.asked()), func(q Query) []string { return n.fallbacks(q, n.Fallbacks) })
	defer stop()
	for range 5 {
		r.Fallback = first
		n.apply(b, r)
		r.Fallback = second
		n.apply(b, r)
	}
	n.t.Logf("%d queries while rules changed 10 times", stop())
}

// queryLoop sends the queries repeatedly until stop is called, which returns their number.
// It fails the test if a server answers that is not in want. A packet that is between two
// hooks while rules are replaced may traverse rules from before and after: two queries may
// have no answer if the same query has one right after.
func (n nodeHarness) queryLoop(queries []Query, want func(Query) []string) (stop func() int) {
	count, retries := 0, 2
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			for _, q := range queries {
				select {
				case <-end:
					return
				default:
				}
				count++
				got, want := n.askAgain(q, &retries), want(q)
				if !slices.Contains(want, got) {
					n.t.Errorf("query %d, while rules change: %s: %s answered, want one of %v", count, q, got, want)
					return
				}
			}
		}
	}()
	return sync.OnceValue(func() int {
		close(end)
		<-ended
		return count
	})
}

// askAgain sends a query, and sends it once more if it has no answer and retries are left.
func (n nodeHarness) askAgain(q Query, retries *int) string {
	got := n.ask(q)
	if got != NoAnswer || *retries == 0 {
		return got
	}
	*retries--
	return n.ask(q)
}

func applyRepeated(n nodeHarness) {
	b := n.agent()
	for _, r := range []rules.Rules{n.fallingBack("first"), n.transparent("first")} {
		if !n.apply(b, r) {
			n.t.Errorf("%s: the first Apply changed nothing", r.Mode)
		}
		want := n.state(b).Count
		if want == 0 {
			n.t.Errorf("%s: no rules are counted", r.Mode)
		}
		for range 20 {
			if n.apply(b, r) {
				n.t.Errorf("%s: applying the same rules again changed something", r.Mode)
				break
			}
		}
		assert.Equal(n.t, string(r.Mode)+": rules after many times the same", want, n.state(b).Count)
	}
}

func stateRead(n nodeHarness) {
	b, other := n.agent(), n.agent()
	if s := n.state(b); s.Present || s.Owner != "" || len(s.Leases) != 0 || len(s.Fallback) != 0 || s.Count != 0 {
		n.t.Errorf("without rules: state is %+v, want nothing", s)
	}
	n.apply(b, n.fallingBack("first"))
	n.renew(b, n.asked(), time.Minute)
	s := n.state(b)
	if !s.Present || s.Owner != "first" {
		n.t.Errorf("owner is %q (present %t), want first", s.Owner, s.Present)
	}
	got, want := slices.SortedFunc(slices.Values(s.Fallback), netip.AddrPort.Compare), slices.SortedFunc(slices.Values(n.Fallbacks), netip.AddrPort.Compare)
	if !slices.Equal(got, want) {
		n.t.Errorf("fallback is %v, want %v", got, want)
	}
	for _, a := range n.asked() {
		if left := s.Leases[a]; left <= 50*time.Second || left > time.Minute {
			n.t.Errorf("lease on %s has %s left, want nearly a minute", a, left)
		}
	}
	if seen := n.state(other); seen.Owner != "first" || !slices.Equal(seen.Fallback, s.Fallback) || len(seen.Leases) != len(s.Leases) {
		n.t.Errorf("another agent reads %+v, want what the owner reads: %+v", seen, s)
	}
}

// leaseBeforeRules adds rules for an agent that already answers: all queries reach it.
func leaseBeforeRules(n nodeHarness) {
	b := n.agent()
	for round := range 5 {
		if round > 0 {
			n.remove(b, "first")
		}
		stop := n.queryLoop(n.queries(n.asked()), func(Query) []string { return []string{Agent, n.direct()} })
		n.prepare(b, n.fallingBack("first"))
		n.renew(b, n.asked(), time.Minute)
		n.prepare(b, n.fallingBack("first")) // held leases stay
		if n.state(b).LeasesInUse {
			n.t.Error("LeasesInUse is true without rules")
		}
		n.apply(b, n.fallingBack("first"))
		if !n.state(b).LeasesInUse {
			n.t.Error("LeasesInUse is false with rules")
		}
		n.t.Logf("%d queries while rules were added", stop())
		n.expect("leased ahead", n.queries(n.asked()), Agent)
	}
	// Last, and once: the conntrack entry of a flow to the fallback outlives the rules, and
	// affects a new client that happens to have the same port.
	n.release(b, n.asked(), 0)
	n.expectFallback("released", n.queries(n.asked()), n.Fallbacks)
}

func leaseBeforeRulesTransparent(n nodeHarness) {
	b := n.agent()
	n.prepare(b, n.transparent("first"))
	n.renew(b, n.Services, time.Minute)
	n.expect("leased ahead of rules", n.queries(n.Services), Service)
	n.apply(b, n.transparent("first"))
	n.expect("leased ahead", n.queries(n.Services), Agent)
	n.remove(b, "first")
	n.prepare(b, n.transparent("first")) // without rules
	n.remove(b, "first")
	if s := n.state(b); s.Present {
		n.t.Errorf("the sets for leases stay: %+v", s)
	}
}

// leaseBeforeRulesOfOther prepares leases while another agent has rules, which stay its own.
func leaseBeforeRulesOfOther(n nodeHarness) {
	old, next := n.agent(), n.agent()
	n.apply(old, n.fallingBack("first"))
	n.renew(old, n.asked(), time.Minute)
	stop := n.queryLoop(n.queries(n.asked()), func(Query) []string { return []string{Agent} })
	n.prepare(next, n.fallingBack("second"))
	if s := n.state(next); s.Owner != "first" {
		n.t.Errorf("the rules are those of %q, want the first agent's", s.Owner)
	}
	n.renew(next, n.asked(), time.Minute)
	n.apply(next, n.fallingBack("second"))
	n.t.Logf("%d queries while rules were added", stop())
	if s := n.state(next); s.Owner != "second" {
		n.t.Errorf("the rules are those of %q, want the second agent's", s.Owner)
	}
}

// leaseBeforeRulesReleased releases a lease while the rules of another agent may use it.
func leaseBeforeRulesReleased(n nodeHarness) {
	old, next := n.agent(), n.agent()
	n.apply(old, n.fallingBack("first"))
	n.prepare(next, n.fallingBack("second"))
	n.renew(next, n.asked(), time.Minute)
	n.release(next, n.asked(), 0)
	n.expectFallback("released ahead of rules", n.queries(n.asked()), n.Fallbacks)
	if s := n.state(next); len(s.Leases) > 0 {
		n.t.Errorf("leases are held: %v", s.Leases)
	}
}

func withoutRules(n nodeHarness) {
	b := n.agent()
	if err := b.Renew(n.t.Context(), n.asked(), time.Second); err == nil {
		n.t.Error("a lease was renewed without rules")
	}
	n.release(b, n.asked(), time.Second) // there is no lease to end
	n.remove(b, "first")
	n.Flush(n.t)
	n.remove(b, "")
}

// flushed removes everything as another program may: the watch reports it, and the next
// Apply restores everything.
func flushed(n nodeHarness) {
	b := n.agent()
	var notified atomic.Int64
	ctx, cancel := context.WithCancel(n.t.Context())
	ended := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		ended <- b.Watch(ctx, func() {
			if notified.Add(1) == 1 {
				close(begun)
			}
		})
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			n.t.Errorf("watching: %v", err)
		}
	}()
	select {
	case <-begun:
	case <-time.After(waitLimit): // of the goroutine; the node's clock may be a virtual one
		n.t.Fatal("not notified at the start")
	}
	n.apply(b, n.fallingBack("first"))
	n.Elapse(time.Second) // the events of our own changes have arrived
	for range 2 {
		was := notified.Load()
		n.Flush(n.t)
		n.waitFor("notified of the flush", func() bool { return notified.Load() > was })
		if !n.apply(b, n.fallingBack("first")) {
			n.t.Error("nothing had to change after a flush")
		}
		n.renew(b, n.asked(), time.Minute)
		n.expect("back after a flush", n.queries(n.asked()), Agent)
		n.release(b, n.asked(), 0)
		n.expectFallback("back after a flush, released", n.queries(n.asked()), n.Fallbacks)
		n.Elapse(time.Second) // as above
	}
}
