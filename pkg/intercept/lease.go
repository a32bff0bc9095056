// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// Shares of Config.Renew.
const (
	failedShare = 5 // the interval after a renewal that failed
	wedgedShare = 4 // a reader that is busy for longer does not read. It may hang for so long before the last renewal
)

// A lease is the state of the lease on one address.
type lease struct {
	rules.Lease
	gate    *gate         // admits renewals
	wake    chan struct{} // capacity 1: a renewal is requested
	renewed chan struct{} // closed by the first renewal

	foreignAt time.Time // start of the last probe that another process answered; only renewLoop uses it

	mu           sync.Mutex // guards the fields below
	until        time.Time  // the kernel holds the lease until then, unless another program ended it
	lastHeld     time.Time  // end of the latest lease, which may be in the future; before the first lease: when New was called
	problem      string     // error of the last renewal; empty: it succeeded, or there was none
	held         bool       // record found the lease held at its last call
	loggedCauses uint32     // one bit for each Cause that was logged since the lease was last held
	fallback     FallbackResult
	testedAfter  uint64 // changes of the rules before the test that gave fallback
	testFailed   bool   // the last test of the fallback failed
}

func newLease(l rules.Lease, now time.Time) *lease {
	return &lease{Lease: l, gate: newGate(), wake: make(chan struct{}, 1), renewed: make(chan struct{}), lastHeld: now, fallback: FallbackResult{FallbackUnverified, "it was not tested yet"}}
}

func (l *lease) requestRenewal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// release stops renewals permanently and records that the lease ends now. It does not change the kernel.
func (l *lease) release(now time.Time) {
	l.gate.close()
	l.lapse(now)
}

// lapse records that the lease ends now.
func (l *lease) lapse(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Before(l.until) {
		l.until, l.lastHeld = now, now
	}
}

// renewLoop renews one lease from Start until ctx ends.
func (k *Keeper) renewLoop(ctx context.Context, l *lease) {
	select {
	case <-k.started:
	case <-ctx.Done():
		return
	}
	// A timer, because the next tick of a ticker may be due already after a slow renewal. Go 1.26 crashes
	// under the race detector when one synctest bubble receives two such ticks at once.
	next := time.NewTimer(k.cfg.Renew)
	defer next.Stop()
	for ctx.Err() == nil {
		begun, space := k.cfg.Now(), k.cfg.Renew
		if !k.standby.Load() {
			cause, err := k.renew(ctx, l)
			if ctx.Err() != nil || l.gate.isClosed() {
				return
			}
			if !k.standby.Load() {
				k.recordRenewal(ctx, l, cause, err)
			}
			if err != nil {
				space = k.cfg.Renew / failedShare
			}
		}
		next.Reset(max(space-k.cfg.Now().Sub(begun), time.Millisecond))
		select {
		case <-ctx.Done():
		case <-next.C:
		case <-l.wake:
		}
	}
}

// renew probes the agent and renews the lease if the probe succeeds.
func (k *Keeper) renew(ctx context.Context, l *lease) (Cause, error) {
	begun := k.cfg.Now()
	ctx, cancel := context.WithTimeout(ctx, k.cfg.Lease/2) // an answer after that time could not renew the lease, see StaleProbe
	defer cancel()
	cause := ProbeFailed
	err := k.guard(ctx, "probing the agent", func() (err error) {
		cause, err = k.cfg.Probe(ctx, l.Probe)
		return err
	})
	if err != nil {
		if errors.Is(err, errForeignAnswer) {
			l.foreignAt = begun
		}
		return cause, fmt.Errorf("probing %s: %w", l.Probe, err)
	}
	// A foreign process that answers few of the queries is seen by few probes. The probes
	// in between must not renew the lease.
	if ago := begun.Sub(l.foreignAt); ago < 2*k.cfg.Lease {
		return Wrong, fmt.Errorf("probing %s: %w, as of %s ago", l.Probe, errForeignAnswer, ago.Round(time.Millisecond))
	}
	if !l.gate.enter() {
		return ProbeFailed, context.Canceled
	}
	defer l.gate.leave()
	if k.standby.Load() {
		return ProbeFailed, context.Canceled
	}
	if busy := k.cfg.Busy(); busy > k.cfg.Renew/wedgedShare {
		return Wedged, fmt.Errorf("a reader has been in one batch of queries for %s", busy)
	}
	// The lease starts when the probe was sent. So the duration of the probe does not
	// extend it.
	now := k.cfg.Now()
	age := now.Sub(begun)
	if age > k.cfg.Lease/2 {
		return StaleProbe, fmt.Errorf("the probe took %s", age)
	}
	left := k.cfg.Lease - age
	err = k.guard(ctx, "renewing the lease", func() error {
		return k.cfg.Backend.Renew(ctx, []netip.Addr{l.Key}, left)
	})
	if err != nil {
		return RenewFailed, fmt.Errorf("renewing the lease on %s: %w", l.Key, err)
	}
	l.renewedUntil(begun.Add(k.cfg.Lease))
	return 0, nil
}

// renewedUntil records a renewal, unless the lease has been released: Keeper.Release then releases it in the kernel again.
func (l *lease) renewedUntil(until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gate.isClosed() {
		return
	}
	l.until, l.lastHeld = until, until
	select {
	case <-l.renewed:
	default:
		close(l.renewed)
	}
}

// recordRenewal counts a renewal or its failure. It logs that the lease was acquired, lapsed, or is
// not acquired for a new cause. It does not log a failure while the lease is still held.
func (k *Keeper) recordRenewal(ctx context.Context, l *lease, cause Cause, err error) {
	applies := uint64(0)
	k.update(func(s *Stats) {
		applies = s.Applies
		if err == nil {
			s.Renewals++
		} else {
			s.RenewalFailures[cause]++
		}
	})
	taken, lapsed, news := l.record(k.cfg.Now(), cause, err, applies > 0)
	switch {
	case taken:
		k.log.InfoContext(ctx, "lease acquired", "address", l.Key, "backend", k.cfg.Backend.String())
	case lapsed:
		k.log.WarnContext(ctx, "lease lapsed", "address", l.Key, "cause", cause.String(), "err", err)
	case news:
		k.log.WarnContext(ctx, "lease not acquired", "address", l.Key, "cause", cause.String(), "err", err)
	}
}

// record stores the result of a renewal. It returns what has to be logged: the lease is acquired (taken), it lapsed, or it is not
// held for a new cause (news). It ignores RenewFailed before the first rules (ruled is false): the rules loop logs that problem.
func (l *lease) record(now time.Time, cause Cause, err error, ruled bool) (taken, lapsed, news bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cause == RenewFailed && err != nil && !ruled && !l.held {
		return false, false, false
	}
	held := now.Before(l.until)
	taken, lapsed = held && !l.held, !held && l.held
	l.held, l.problem = held, ""
	if err != nil {
		l.problem = err.Error()
	}
	if held {
		l.loggedCauses = 0
	} else if err != nil && l.loggedCauses&(1<<cause) == 0 {
		l.loggedCauses |= 1 << cause
		news = true
	}
	return taken, lapsed, news
}

// read returns whether the lease is held, how long it has not been held, and the error of the last renewal.
func (l *lease) read(now time.Time) (held bool, since time.Duration, problem string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held = now.Before(l.until)
	if !held {
		since = max(now.Sub(l.lastHeld), 0)
	}
	return held, since, l.problem
}
