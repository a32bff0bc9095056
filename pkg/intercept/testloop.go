// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/retry"
)

const (
	testInterval = 27 * time.Second // shortest time between two tests of the fallback without a reason
	testJitter   = 6 * time.Second  // added at random, so that the agents of a cluster do not test at once
	testGap      = 2 * time.Second  // shortest time between two tests, and until one that failed is repeated
)

// testLoop tests the fallback of each lease until ctx ends: once the first rules are written, after each change of them, and at an
// interval. It changes no lease.
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
		next := time.NewTimer(testInterval - testGap + rand.N(testJitter)) //nolint:gosec // no secret
		select {
		case <-k.retest:
		case <-next.C:
		case <-ctx.Done():
		}
		next.Stop()
	}
}

// testFallback tests the fallback of each lease. It reports whether the test should be repeated soon: one failed for the first time,
// or the rules changed meanwhile.
func (k *Keeper) testFallback(ctx context.Context) (repeat bool) {
	for _, l := range k.leases {
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
		if result.State == FallbackWorks && k.cfg.Unproven != nil {
			if doubts := k.cfg.Unproven(); len(doubts) > 0 {
				result = FallbackResult{FallbackUnverified, "its endpoints answer this node, but the pods' way there is not tested: " + strings.Join(doubts, "; ")}
			}
		}
		repeat = l.recordTest(result) || repeat
	}
	return repeat
}

// rulesChanged requests a test of the fallback, and makes a running one not count.
func (k *Keeper) rulesChanged() {
	k.ruleChanges.Add(1)
	select {
	case k.retest <- struct{}{}:
	default: // a test is requested already
	}
}

// recordTest stores the result of a test. It keeps the one before if this is the first failure in a row, and reports whether it is.
func (l *lease) recordTest(r FallbackResult) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first = r.State == FallbackBroken && !l.testFailed
	l.testFailed = r.State == FallbackBroken
	if !first {
		l.fallback = r
	}
	return first
}

// fallbackResult returns the state of the fallback.
func (l *lease) fallbackResult() FallbackResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fallback
}
