// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/retry"
)

const (
	// The agents of a cluster ask all endpoints of its DNS: 5,000 agents and ten endpoints are 330 queries a second.
	testInterval = 5 * time.Minute  // time between two tests of the fallback without a reason
	testBroken   = time.Minute      // the same while it is broken
	testSpread   = 30 * time.Second // a test comes at random up to so much later: a changed endpoint is news for all agents at once
	testGap      = 2 * time.Second  // shortest time between two tests, and until one that failed is repeated
)

// testLoop tests the fallback of each lease until ctx ends: once the first rules are written, soon after each change of them, and at
// an interval. It changes no lease.
func (k *Keeper) testLoop(ctx context.Context) {
	if k.cfg.TestFallback == nil {
		return
	}
	select {
	case <-k.retest:
	case <-ctx.Done():
		return
	}
	for ctx.Err() == nil {
		repeat := k.testFallback(ctx)
		_ = retry.Sleep(ctx, testGap) // the loop checks ctx
		if repeat {
			continue
		}
		space := testInterval
		if k.fallbackBroken() {
			space = testBroken
		}
		next := time.NewTimer(space - testGap)
		select {
		case <-k.retest:
		case <-next.C:
		case <-ctx.Done():
		}
		next.Stop()
		_ = retry.Sleep(ctx, rand.N(testSpread)) //nolint:gosec // no secret
	}
}

// testFallback tests the fallback of each lease, but for those of other servers: nothing is changed there, and they need not know the
// cluster. It reports whether the test should be repeated soon: one failed for the first time,
// or the rules changed meanwhile.
func (k *Keeper) testFallback(ctx context.Context) (repeat bool) {
	for _, l := range k.leases {
		if k.cfg.Rules.IsServer(l.Key) {
			continue
		}
		before := k.ruleChanges.Load()
		r := k.cfg.Rules
		r.Fallback = k.Stats().Fallback
		result := FallbackResult{FallbackUnverified, "the test failed: it panicked"}
		_ = k.guard(ctx, "testing the fallback", func() error {
			result = k.cfg.TestFallback(ctx, &r, l.Lease)
			return nil
		})
		if ctx.Err() != nil {
			return false
		}
		if k.ruleChanges.Load() != before {
			return true
		}
		repeat = l.recordTest(result, before) || repeat
	}
	return repeat
}

// fallbackBroken reports whether the last test of any lease failed.
func (k *Keeper) fallbackBroken() bool {
	return slices.ContainsFunc(k.leases, func(l *lease) bool { return k.fallbackResult(l).State == FallbackBroken })
}

// rulesChanged requests a test of the fallback, and makes a running one not count.
func (k *Keeper) rulesChanged() {
	k.ruleChanges.Add(1)
	select {
	case k.retest <- struct{}{}:
	default: // a test is requested already
	}
}

// recordTest stores the result of a test of the rules after so many changes. It keeps the one before if this is the first failure in a
// row, and reports whether it is.
func (l *lease) recordTest(r FallbackResult, changes uint64) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first = r.State == FallbackBroken && !l.testFailed
	l.testFailed = r.State == FallbackBroken
	if !first {
		l.fallback, l.testedAfter = r, changes
	}
	return first
}

// fallbackResult returns the state of the fallback of a lease. That it worked before the rules changed proves nothing.
func (k *Keeper) fallbackResult(l *lease) FallbackResult {
	l.mu.Lock()
	result, changes := l.fallback, l.testedAfter
	l.mu.Unlock()
	if result.State != FallbackWorks {
		return result
	}
	if changes != k.ruleChanges.Load() {
		return FallbackResult{FallbackUnverified, "it was not tested since the rules changed"}
	}
	switch way := k.cfg.PodsWay(l.Lease); way.State {
	case FallbackBroken:
		return FallbackResult{FallbackBroken, "its endpoints answer this node, but not pods: " + way.Why}
	case FallbackUnverified:
		return FallbackResult{FallbackUnverified, "its endpoints answer this node, but the pods' way there is not tested: " + way.Why}
	default:
		return result
	}
}
