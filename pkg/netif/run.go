// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/nodecache/node-cache/pkg/retry"
)

const (
	minInterval    = 10 * time.Millisecond  // minimum time between two checks
	firstRetry     = 100 * time.Millisecond // delay after a check with an error; doubles with each further error, up to Poll
	repairBurst    = 20                     // number of repairs without a delay
	repairInterval = 500 * time.Millisecond // minimum time between repairs after that
)

// Run checks the link on every kernel event that concerns it and every Poll, and
// repairs it, until ctx ends. It then leaves everything in place and returns nil.
// If another program undoes the repairs, Run makes at most 2 a second.
func (l *Link) Run(ctx context.Context) error {
	r := &runner{Link: l, wake: make(chan struct{}, 1), repairs: rate.NewLimiter(rate.Every(repairInterval), repairBurst)}
	defer r.disconnect()
	timer := time.NewTimer(0)
	defer timer.Stop()
	backoff := retry.Backoff{First: firstRetry, Last: l.config.Poll * 2 / 3} // at most Poll, with the random part
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-timer.C:
		}
		if err := r.reconcile(ctx); err == nil {
			backoff.Reset()
			timer.Reset(l.config.Poll)
		} else {
			timer.Reset(backoff.Next())
		}
		if err := retry.Sleep(ctx, max(minInterval, r.untilRepair(l.config.Now()))); err != nil {
			return nil
		}
	}
}

// String names the task.
func (l *Link) String() string { return "link " + l.linkName() }

// linkName returns the name of the link that holds the addresses.
func (l *Link) linkName() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.config.Kind == Loopback || l.stats.Kind == Loopback {
		return "lo"
	}
	return l.config.Name
}

// A runner is the state of one Run.
type runner struct {
	*Link
	kernel         kernel // nil: not open
	stopEvents     func()
	watching       sync.WaitGroup
	eventsEnded    chan struct{} // closed by watch when reading events failed
	wake           chan struct{} // capacity 1: holds a value while a check is requested
	repairs        *rate.Limiter
	duplicatesRead time.Time // when findDuplicates last ran
	lastLogged     string    // error that was logged last; empty: none, or its end was logged
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
		r.repairs.ReserveN(now, 1) // the tokens may fall below zero
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

// untilRepair returns the time until the rate limit allows a repair.
func (r *runner) untilRepair(now time.Time) time.Duration {
	return max(0, time.Duration((1-r.repairs.TokensAt(now))*float64(repairInterval)))
}

// logRepairs logs repairs, and when another program starts or stops undoing them.
func (r *runner) logRepairs(ctx context.Context, now time.Time, changes []string) {
	was := r.Stats()
	contested := r.untilRepair(now) > 0 || was.Contested && r.repairs.TokensAt(now) < repairBurst
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
	next, stop, err := k.events(r.config.Name, r.config.Addresses)
	if err != nil {
		k.close()
		return fmt.Errorf("subscribing to link events: %w", err)
	}
	r.kernel, r.stopEvents, r.eventsEnded = k, stop, make(chan struct{})
	r.watching.Go(func() { r.watch(next, r.eventsEnded) })
	return nil
}

// watch wakes Run on events, and when reading them fails. Events that arrive while Run is busy cause one check.
func (r *runner) watch(next func() error, ended chan<- struct{}) {
	defer r.signal()
	defer close(ended)
	for next() == nil {
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
	r.stopEvents()
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
	var duplicates []string
	for _, a := range l.config.Addresses {
		if name := found[a]; name != "" {
			duplicates = append(duplicates, a.String()+": "+name)
		}
	}
	l.mu.Lock()
	before := l.stats.Duplicates
	l.stats.Duplicates = duplicates
	l.mu.Unlock()
	if slices.Equal(before, duplicates) {
		return
	}
	for a, name := range found {
		l.config.Log.WarnContext(ctx, "address also on another link", "addr", a, "link", name)
	}
}
