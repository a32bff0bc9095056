// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/zone"
)

// A view is what is known of one kind: by one feed, or by one for each namespace. It is as fresh as the oldest of them.
type kindStatus struct {
	kind  zone.Kind
	store *zone.Store // nil: nobody is told of freshness

	events, restarts, failures atomic.Uint64
	arrival, change            histogram

	mu    sync.Mutex // guards what follows
	feeds []*feedStatus
}

// A part is what one feed has to do with a view. It is guarded by the view's mutex.
type feedStatus struct {
	confirmedAt time.Time // the moment of the store when it was last proven right; zero: never
	synced      bool      // it was proven once, or the server forbids it
	reason      string    // of the last error; empty: proven right since
	lastError   string
}

// add makes a part for one more feed.
func (v *kindStatus) add() *feedStatus {
	p := new(feedStatus)
	v.mu.Lock()
	v.feeds = append(v.feeds, p)
	v.mu.Unlock()
	return p
}

// proven says that the feed's part was right at that time. It tells whether the part is settled by this, and whether an
// error is over.
func (v *kindStatus) confirmed(p *feedStatus, at time.Time) (settled, healed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if at = v.bootTime(at); at.After(p.confirmedAt) {
		p.confirmedAt = at
	}
	settled, healed = !p.synced, p.reason != ""
	p.synced, p.reason, p.lastError = true, "", ""
	if oldest := v.oldestConfirmedLocked(); v.store != nil && !oldest.IsZero() {
		v.store.ConfirmFresh(v.kind, oldest)
		v.store.SetSynced(v.kind)
	}
	return settled, healed
}

// failed notes an error, and tells whether it has another reason than the one before.
func (v *kindStatus) failed(p *feedStatus, reason, text string) (news bool) {
	v.failures.Add(1)
	v.mu.Lock()
	defer v.mu.Unlock()
	news = reason != p.reason
	p.reason, p.lastError = reason, text
	return news
}

// refused says that the server forbids the feed's part. It tells whether the part is settled by this.
func (v *kindStatus) refused(p *feedStatus) (settled bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	settled = !p.synced
	p.synced = true
	return settled
}

// age gives how long ago the feed's part was proven right, and false if it never was.
func (v *kindStatus) age(p *feedStatus, now time.Time) (time.Duration, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return max(0, v.bootTime(now).Sub(p.confirmedAt)), !p.confirmedAt.IsZero()
}

// moment is a reading of the clock with the suspends that the store knows of.
func (v *kindStatus) bootTime(now time.Time) time.Time {
	if v.store == nil {
		return now
	}
	return v.store.BootTime(now)
}

// oldestLocked gives the time at which the whole view was last right, zero if it never was.
func (v *kindStatus) oldestConfirmedLocked() time.Time {
	oldest := v.feeds[0].confirmedAt
	for _, p := range v.feeds[1:] {
		if p.confirmedAt.Before(oldest) {
			oldest = p.confirmedAt
		}
	}
	return oldest
}

// stats reads the counters.
func (v *kindStatus) stats(now time.Time) KindStats {
	s := KindStats{
		Kind:     v.kind,
		Events:   v.events.Load(),
		Restarts: v.restarts.Load(),
		Failures: v.failures.Load(),
		Arrival:  v.arrival.read(),
		Change:   v.change.read(),
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if oldest := v.oldestConfirmedLocked(); !oldest.IsZero() {
		s.Synced, s.Age = true, max(0, v.bootTime(now).Sub(oldest))
	}
	for _, p := range v.feeds {
		if p.lastError != "" {
			s.LastError = p.lastError
			break
		}
	}
	return s
}
