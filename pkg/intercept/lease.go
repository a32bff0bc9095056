// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/rules"
)

// wedgedAgain is how much sooner a round follows that found nothing wrong but a reader
// at work for too long.
const wedgedAgain = 5

// A lease is one address's, with what is known of it.
type lease struct {
	rules.Lease
	gate  *gate         // of renewals
	again chan struct{} // of one place: a round is wanted now
	first chan struct{} // closed by the first renewal

	foreign time.Time // when another process answered a probe; the goroutine of keep has it

	mu       sync.Mutex // guards what follows
	until    time.Time  // the kernel holds the lease until then, if nobody else ended it
	lastHeld time.Time  // the end of the last one, or when the Keeper was made
	problem  string     // of the last round; empty: it was renewed
	held     bool       // as it was told last
	told     uint32     // bits of causes that were logged since it was held
}

func newLease(l rules.Lease, now time.Time) *lease {
	return &lease{Lease: l, gate: newGate(), again: make(chan struct{}, 1), first: make(chan struct{}), lastHeld: now}
}

func (l *lease) wantRound() {
	select {
	case l.again <- struct{}{}:
	default:
	}
}

// end notes that the lease is given up.
func (l *lease) end(now time.Time) {
	l.gate.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Before(l.until) {
		l.until, l.lastHeld = now, now
	}
}

// keep renews one lease from Start on until ctx ends.
func (k *Keeper) keep(ctx context.Context, l *lease) {
	select {
	case <-k.started:
	case <-ctx.Done():
		return
	}
	// Not a ticker, whose tick may be due already after a slow round: Go 1.26 crashes
	// under the race detector when two of those are taken at once in one bubble.
	next := time.NewTimer(k.cfg.Renew)
	defer next.Stop()
	for ctx.Err() == nil {
		begun := k.cfg.Now()
		cause, err := k.round(ctx, l)
		if ctx.Err() != nil || l.gate.isClosed() {
			return
		}
		k.noteRound(ctx, l, cause, err)
		space := k.cfg.Renew
		if cause == Wedged { // it does answer: once the reader is free nothing else is wanting
			space /= wedgedAgain
		}
		next.Reset(max(space-k.cfg.Now().Sub(begun), time.Millisecond))
		select {
		case <-ctx.Done():
		case <-next.C:
		case <-l.again:
		}
	}
}

// round has the lease renewed if the agent proves that it answers.
func (k *Keeper) round(ctx context.Context, l *lease) (Cause, error) {
	begun := k.cfg.Now()
	ctx, cancel := context.WithTimeout(ctx, k.cfg.Lease/2) // no proof is of use after that
	defer cancel()
	err := k.guard(ctx, "probing the agent", func() error { return k.cfg.Probe(ctx, l.Probe) })
	if err != nil {
		if errors.Is(err, errForeign) {
			l.foreign = begun
		}
		return causeOf(err), fmt.Errorf("probing %s: %w", l.Probe, err)
	}
	// One that answers few of the queries is met by few probes: those between two of them
	// must not renew the lease.
	if ago := begun.Sub(l.foreign); ago < 2*k.cfg.Lease {
		return Wrong, fmt.Errorf("probing %s: %w, as of %s ago", l.Probe, errForeign, ago.Round(time.Millisecond))
	}
	if !l.gate.enter() {
		return NoProof, context.Canceled
	}
	defer l.gate.leave()
	if busy := k.cfg.Busy(); busy > k.cfg.Renew/2 {
		return Wedged, fmt.Errorf("a reader has been at one batch of queries for %s", busy)
	}
	// The lease runs from when the proof was asked for. What the way to here took is
	// not given a second time.
	now := k.cfg.Now()
	age := now.Sub(begun)
	if age > k.cfg.Lease/2 {
		return Late, fmt.Errorf("the proof is %s old", age)
	}
	left := k.cfg.Lease - age
	err = k.guard(ctx, "renewing the lease", func() error {
		return k.cfg.Backend.Renew(ctx, []netip.Addr{l.Key}, left)
	})
	if err != nil {
		return Kernel, fmt.Errorf("renewing the lease on %s: %w", l.Key, err)
	}
	l.taken(begun.Add(k.cfg.Lease))
	return 0, nil
}

// taken notes a renewal; not after the end, when it is about to be taken back.
func (l *lease) taken(until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gate.isClosed() {
		return
	}
	l.until, l.lastHeld = until, until
	select {
	case <-l.first:
	default:
		close(l.first)
	}
}

// noteRound counts a round and logs what changed with it. A round that failed is
// nothing to worry about, the next follows soon; a lease that is not held is.
func (k *Keeper) noteRound(ctx context.Context, l *lease, cause Cause, err error) {
	if err == nil {
		k.count.renewals.Add(1)
	} else {
		k.count.renewalFailures[cause].Add(1)
	}
	if cause == Kernel && err != nil && k.count.applies.Load() == 0 && !l.wasHeld() {
		return // there are no rules yet: if that is a problem the rules loop tells it
	}
	taken, lapsed, news := l.note(k.cfg.Now(), cause, err)
	switch {
	case taken:
		k.log.InfoContext(ctx, "lease taken", "address", l.Key, "backend", k.cfg.Backend.String())
	case lapsed:
		k.log.WarnContext(ctx, "lease lapsed", "address", l.Key, "cause", cause.String(), "error", err)
	case news:
		k.log.WarnContext(ctx, "lease not taken", "address", l.Key, "cause", cause.String(), "error", err)
	}
}

// note takes down how a round ended, and says what about it is worth telling: the
// lease is held again, it no longer is, or there is one more cause why it still is not.
func (l *lease) note(now time.Time, cause Cause, err error) (taken, lapsed, news bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := now.Before(l.until)
	taken, lapsed = held && !l.held, !held && l.held
	l.held, l.problem = held, ""
	if err != nil {
		l.problem = err.Error()
	}
	if held {
		l.told = 0
	} else if err != nil && l.told&(1<<cause) == 0 {
		l.told |= 1 << cause
		news = true
	}
	return taken, lapsed, news
}

// wasHeld tells whether the lease is held by what was told last.
func (l *lease) wasHeld() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// look returns the state of the lease: held or not, for how long not, and why.
func (l *lease) look(now time.Time) (held bool, since time.Duration, problem string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held = now.Before(l.until)
	if !held {
		since = max(now.Sub(l.lastHeld), 0)
	}
	return held, since, l.problem
}
