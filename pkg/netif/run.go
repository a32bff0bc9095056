// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	minInterval    = 10 * time.Millisecond  // between two checks, whatever the events
	firstRetry     = 100 * time.Millisecond // after a check that left something missing; doubles up to Poll
	repairBurst    = 20                     // repairs in a burst
	repairInterval = 500 * time.Millisecond // between repairs after the burst
)

// Run checks the link on every kernel event that concerns it and every Poll, and
// repairs it, until ctx ends. It then leaves everything in place and returns nil.
// If another program undoes the repairs, Run makes at most 2 a second.
func (l *Link) Run(ctx context.Context) error {
	r := &runner{Link: l, wake: make(chan struct{}, 1), repairs: bucket{burst: repairBurst, refill: repairInterval}}
	defer r.disconnect()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for retry := firstRetry; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-timer.C:
		}
		if err := r.reconcile(ctx); ctx.Err() != nil {
			return nil
		} else if err == nil {
			retry = firstRetry
			timer.Reset(l.config.Poll)
		} else {
			timer.Reset(retry)
			retry = min(2*retry, l.config.Poll)
		}
		if err := sleep(ctx, max(minInterval, r.repairs.wait(l.config.Now()))); err != nil {
			return nil
		}
	}
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// String names the task.
func (l *Link) String() string { return "link " + l.linkName() }

// linkName returns the name of the link that holds the addresses.
func (l *Link) linkName() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.config.Kind == Loopback || l.kind == Loopback {
		return "lo"
	}
	return l.config.Name
}

// A runner is the state of one Run.
type runner struct {
	*Link
	kernel         kernel // nil: not open
	events         events
	watching       sync.WaitGroup
	eventsEnded    chan struct{} // closed when events failed
	wake           chan struct{}
	repairs        bucket
	duplicatesRead time.Time // last time that all links were read
	lastLogged     string    // the last error that was logged
}

// reconcile connects to the kernel if necessary and checks the link once.
func (r *runner) reconcile(ctx context.Context) error {
	if err := r.connect(); err != nil {
		r.update(func(s *Stats) { s.LastError = err.Error() })
		r.logResult(ctx, err)
		return err
	}
	now := r.config.Now()
	changes, err := r.Link.reconcile(ctx, r.kernel, false)
	if len(changes) > 0 {
		r.repairs.take(now)
		r.update(func(s *Stats) { s.Repairs++ })
	}
	r.logRepairs(ctx, now, changes)
	r.logResult(ctx, err)
	if now.Sub(r.duplicatesRead) >= r.config.Poll {
		r.duplicatesRead = now
		r.findDuplicates(ctx, r.kernel)
	}
	return err
}

// logRepairs logs repairs, and when another program starts or stops undoing them.
func (r *runner) logRepairs(ctx context.Context, now time.Time, changes []string) {
	was := r.Stats()
	contested := r.repairs.wait(now) > 0 || was.Contested && !r.repairs.full(now)
	if contested != was.Contested {
		r.update(func(s *Stats) { s.Contested = contested })
	}
	switch {
	case contested && !was.Contested:
		r.config.Log.WarnContext(ctx, "link repairs contested, repair rate limited",
			"link", r.linkName(), "repairs", was.Repairs, "last", changes, "hint", "mark the link as unmanaged in systemd-networkd or NetworkManager")
	case !contested && was.Contested:
		r.config.Log.InfoContext(ctx, "link repairs no longer contested", "link", r.linkName(), "repairs", was.Repairs)
	case len(changes) > 0 && !contested:
		r.config.Log.WarnContext(ctx, "link repaired", "link", r.linkName(), "changes", changes)
	}
}

// logResult logs an error, or its end, when it differs from the last one.
func (r *runner) logResult(ctx context.Context, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == r.lastLogged || ctx.Err() != nil {
		return
	}
	r.lastLogged = text
	if err != nil {
		r.config.Log.WarnContext(ctx, "link not as configured", "link", r.linkName(), "err", err)
		return
	}
	r.config.Log.InfoContext(ctx, "link as configured again", "link", r.linkName())
}

// connect opens the kernel before the first check, and again after its events failed.
func (r *runner) connect() error {
	if r.kernel != nil {
		select {
		case <-r.eventsEnded:
			r.disconnect()
		default:
			return nil
		}
	}
	k, err := r.open()
	if err != nil {
		return err
	}
	events, err := k.events(r.config.Name, r.config.Addresses)
	if err != nil {
		k.close()
		return fmt.Errorf("subscribing to link events: %w", err)
	}
	r.kernel, r.events, r.eventsEnded = k, events, make(chan struct{})
	r.watching.Go(func() { r.watch(events, r.eventsEnded) })
	return nil
}

// watch wakes Run on events. Events that arrive while Run is busy are merged.
func (r *runner) watch(events events, ended chan<- struct{}) {
	defer r.signal()
	defer close(ended)
	for events.next() == nil {
		r.signal()
	}
}

func (r *runner) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *runner) disconnect() {
	if r.kernel == nil {
		return
	}
	r.events.close()
	r.watching.Wait()
	r.kernel.close()
	r.kernel = nil
}

// findDuplicates reads which other links have the addresses too. That does not harm the
// agent; the log helps to find out where queries go.
func (l *Link) findDuplicates(ctx context.Context, k kernel) {
	list, err := k.addresses(0)
	if err != nil {
		return // the next poll reads again
	}
	own := loIndex
	if at := l.linkName(); at != "lo" {
		dev, err := k.link(at)
		if err != nil {
			return
		}
		own = dev.index
	}
	found := map[netip.Addr]string{}
	for _, a := range list {
		if a.index == own || !slices.Contains(l.config.Addresses, a.prefix.Addr()) {
			continue
		}
		if name, err := k.linkName(a.index); err == nil {
			found[a.prefix.Addr()] = name
		}
	}
	l.mu.Lock()
	before := l.stats.Duplicates
	l.stats.Duplicates = found
	l.mu.Unlock()
	if maps.Equal(before, found) {
		return
	}
	for a, name := range found {
		l.config.Log.WarnContext(ctx, "address also on another link", "addr", a, "link", name)
	}
}

// A bucket is a token bucket that bounds repairs: burst at once, then one per refill.
type bucket struct {
	burst  int
	refill time.Duration
	fullAt time.Time // when all tokens are back
}

// take removes one token.
func (p *bucket) take(now time.Time) {
	if p.fullAt.Before(now) {
		p.fullAt = now
	}
	p.fullAt = p.fullAt.Add(p.refill)
}

// wait returns the time until a token is available.
func (p *bucket) wait(now time.Time) time.Duration {
	return max(0, p.fullAt.Add(-time.Duration(p.burst-1)*p.refill).Sub(now))
}

// full reports whether all tokens are available.
func (p *bucket) full(now time.Time) bool { return !p.fullAt.After(now) }
