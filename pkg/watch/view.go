// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/zone"
)

// A view is what is known of one kind: by one feed, or by one for each namespace. It is as fresh as the oldest of them.
type view struct {
	kind  zone.Kind
	store *zone.Store // nil: nobody is told of freshness

	events, restarts, failures atomic.Uint64
	arrival, change            histogram

	mu    sync.Mutex // guards what follows
	parts []*part
}

// A part is what one feed has to do with a view. It is guarded by the view's mutex.
type part struct {
	proof     time.Time // the moment of the store when it was last proven right; zero: never
	settled   bool      // it was proven once, or the server forbids it
	reason    string    // of the last error; empty: proven right since
	lastError string
}

// add makes a part for one more feed.
func (v *view) add() *part {
	p := new(part)
	v.mu.Lock()
	v.parts = append(v.parts, p)
	v.mu.Unlock()
	return p
}

// proven says that the feed's part was right at that time. It tells whether the part is settled by this, and whether an
// error is over.
func (v *view) proven(p *part, at time.Time) (settled, healed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if at = v.moment(at); at.After(p.proof) {
		p.proof = at
	}
	settled, healed = !p.settled, p.reason != ""
	p.settled, p.reason, p.lastError = true, "", ""
	if oldest := v.oldestLocked(); v.store != nil && !oldest.IsZero() {
		v.store.Seen(v.kind, oldest)
		v.store.SetSynced(v.kind)
	}
	return settled, healed
}

// failed notes an error, and tells whether it has another reason than the one before.
func (v *view) failed(p *part, reason, text string) (news bool) {
	v.failures.Add(1)
	v.mu.Lock()
	defer v.mu.Unlock()
	news = reason != p.reason
	p.reason, p.lastError = reason, text
	return news
}

// refused says that the server forbids the feed's part. It tells whether the part is settled by this.
func (v *view) refused(p *part) (settled bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	settled = !p.settled
	p.settled = true
	return settled
}

// age gives how long ago the feed's part was proven right, and false if it never was.
func (v *view) age(p *part, now time.Time) (time.Duration, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return max(0, v.moment(now).Sub(p.proof)), !p.proof.IsZero()
}

// moment is a reading of the clock with the suspends that the store knows of.
func (v *view) moment(now time.Time) time.Time {
	if v.store == nil {
		return now
	}
	return v.store.Moment(now)
}

// oldestLocked gives the time at which the whole view was last right, zero if it never was.
func (v *view) oldestLocked() time.Time {
	oldest := v.parts[0].proof
	for _, p := range v.parts[1:] {
		if p.proof.Before(oldest) {
			oldest = p.proof
		}
	}
	return oldest
}

// stats reads the counters.
func (v *view) stats(now time.Time) KindStats {
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
	if oldest := v.oldestLocked(); !oldest.IsZero() {
		s.Synced, s.Age = true, max(0, v.moment(now).Sub(oldest))
	}
	for _, p := range v.parts {
		if p.lastError != "" {
			s.LastError = p.lastError
			break
		}
	}
	return s
}
