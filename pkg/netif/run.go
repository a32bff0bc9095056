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
	gap        = 10 * time.Millisecond  // between two looks, whatever the events
	firstRetry = 100 * time.Millisecond // after a look that left something missing; doubles up to Poll
	burst      = 20                     // repairs that are made at once
	refill     = 500 * time.Millisecond // for one more
)

// Run looks at the link on every event of the kernel that concerns it, and each Poll,
// and repairs it, until ctx ends. It then leaves everything as it is and returns nil.
// What something else undoes again and again is repaired at most 2 times a second.
func (l *Link) Run(ctx context.Context) error {
	r := &runner{Link: l, wake: make(chan struct{}, 1), pace: pace{burst: burst, refill: refill}}
	defer r.hangUp()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for retry := firstRetry; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-timer.C:
		}
		if err := r.look(ctx); ctx.Err() != nil {
			return nil
		} else if err == nil {
			retry = firstRetry
			timer.Reset(l.config.Poll)
		} else {
			timer.Reset(retry)
			retry = min(2*retry, l.config.Poll)
		}
		if err := sleep(ctx, max(gap, r.pace.wait(l.config.Now()))); err != nil {
			return nil
		}
	}
}

// sleep waits d, or until ctx ends.
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
func (l *Link) String() string { return "link " + l.at() }

// at is the name of what carries the addresses.
func (l *Link) at() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.config.Kind == Loopback || l.took == Loopback {
		return "lo"
	}
	return l.config.Name
}

// A runner is a Run.
type runner struct {
	*Link
	k       kernel // nil: not open
	told    events
	reading sync.WaitGroup
	broken  chan struct{} // closed when told ended by itself
	wake    chan struct{}
	pace    pace
	polled  time.Time // when all links were looked at
	said    string    // the last error that was logged
}

// look opens the kernel if need be and looks once.
func (r *runner) look(ctx context.Context) error {
	if err := r.dial(); err != nil {
		r.update(func(s *Stats) { s.LastError = err.Error() })
		r.say(ctx, err)
		return err
	}
	now := r.config.Now()
	changes, err := r.Link.look(ctx, r.k, false)
	if len(changes) > 0 {
		r.pace.spend(now)
		r.update(func(s *Stats) { s.Repairs++ })
	}
	r.contest(ctx, now, changes)
	r.say(ctx, err)
	if now.Sub(r.polled) >= r.config.Poll {
		r.polled = now
		r.elsewhere(ctx, r.k)
	}
	return err
}

// contest logs repairs, and that there are too many.
func (r *runner) contest(ctx context.Context, now time.Time, changes []string) {
	was := r.Stats()
	contested := r.pace.wait(now) > 0 || was.Contested && !r.pace.full(now)
	if contested != was.Contested {
		r.update(func(s *Stats) { s.Contested = contested })
	}
	switch {
	case contested && !was.Contested:
		r.config.Log.WarnContext(ctx, "something on the node undoes repairs of the link, they are made less often from here on",
			"link", r.at(), "repairs", was.Repairs, "last", changes, "hint", "tell networkd or NetworkManager that the link is unmanaged")
	case !contested && was.Contested:
		r.config.Log.InfoContext(ctx, "repairs of the link are not undone any more", "link", r.at(), "repairs", was.Repairs)
	case len(changes) > 0 && !contested:
		r.config.Log.WarnContext(ctx, "link repaired", "link", r.at(), "changes", changes)
	}
}

// say logs an error when it is another than before.
func (r *runner) say(ctx context.Context, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == r.said || ctx.Err() != nil {
		return
	}
	r.said = text
	if err != nil {
		r.config.Log.WarnContext(ctx, "link is not as wanted", "link", r.at(), "err", err)
		return
	}
	r.config.Log.InfoContext(ctx, "link is as wanted again", "link", r.at())
}

// dial opens the kernel, before the first look, and again when its events ended.
func (r *runner) dial() error {
	if r.k != nil {
		select {
		case <-r.broken:
			r.hangUp()
		default:
			return nil
		}
	}
	k, err := r.open()
	if err != nil {
		return err
	}
	told, err := k.events(r.config.Name, r.config.Addresses)
	if err != nil {
		k.close()
		return fmt.Errorf("asking for the events of links: %w", err)
	}
	r.k, r.told, r.broken = k, told, make(chan struct{})
	r.reading.Go(func() { r.follow(told, r.broken) })
	return nil
}

// follow wakes Run at events. Many while it is busy are one.
func (r *runner) follow(told events, broken chan<- struct{}) {
	defer r.poke()
	defer close(broken)
	for told.next() == nil {
		r.poke()
	}
}

func (r *runner) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *runner) hangUp() {
	if r.k == nil {
		return
	}
	r.told.close()
	r.reading.Wait()
	r.k.close()
	r.k = nil
}

// elsewhere finds out which other links have the addresses too. That does no harm to
// the agent, but whoever wonders where its queries go wants to know.
func (l *Link) elsewhere(ctx context.Context, k kernel) {
	list, err := k.addresses(0)
	if err != nil {
		return // the next poll looks again
	}
	own := loIndex
	if at := l.at(); at != "lo" {
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
		if name, err := k.name(a.index); err == nil {
			found[a.prefix.Addr()] = name
		}
	}
	l.mu.Lock()
	before := l.stats.Elsewhere
	l.stats.Elsewhere = found
	l.mu.Unlock()
	if maps.Equal(before, found) {
		return
	}
	for a, name := range found {
		l.config.Log.WarnContext(ctx, "another link has the address as well", "addr", a, "on", name)
	}
}

// A pace bounds repairs: burst at once, and one more each refill.
type pace struct {
	burst  int
	refill time.Duration
	whole  time.Time // when all that were spent are there again
}

// spend takes one.
func (p *pace) spend(now time.Time) {
	if p.whole.Before(now) {
		p.whole = now
	}
	p.whole = p.whole.Add(p.refill)
}

// wait says how long it is until there is one.
func (p *pace) wait(now time.Time) time.Duration {
	return max(0, p.whole.Add(-time.Duration(p.burst-1)*p.refill).Sub(now))
}

// full says whether none is spent.
func (p *pace) full(now time.Time) bool { return !p.whole.After(now) }
