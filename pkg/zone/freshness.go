// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"math"
	"sync/atomic"
	"time"
)

// A view is how far the store's picture of one kind can be trusted.
type syncState struct {
	expected    atomic.Bool
	synced      atomic.Bool
	restored    atomic.Bool               // came from a dump: complete once, and stale until it is synced
	confirmed   atomic.Pointer[time.Time] // last proven right; nil: never
	alwaysFresh atomic.Bool
}

// Expect says which kinds will be filled at all. Nobody ever tells the store of
// the others. Services always count as expected.
func (s *Store) Expect(kinds ...Kind) {
	for i := range s.states {
		s.states[i].expected.Store(false)
	}
	for _, k := range kinds {
		s.states[k].expected.Store(true)
	}
}

// SetSynced says that the first list of the kind is complete, from now on for good.
func (s *Store) SetSynced(kind Kind) { s.states[kind].synced.Store(true) }

// Synced tells whether the first list of the kind is complete.
func (s *Store) Synced(kind Kind) bool { return s.states[kind].synced.Load() }

// Restored tells whether the picture of the kind is that of a dump, and no list has been complete since.
func (s *Store) Restored(kind Kind) bool {
	return s.states[kind].restored.Load() && !s.Synced(kind)
}

// Slept adds the length of a suspend to the age of what was seen before it: the
// monotonic clock of [time.Time] stands still in one (CLOCK_MONOTONIC).
func (s *Store) AddSuspend(d time.Duration) { s.suspended.Add(int64(d)) }

// Moment is a reading of the clock with the suspends so far. Differences of such
// moments are ages.
func (s *Store) BootTime(now time.Time) time.Time { return now.Add(time.Duration(s.suspended.Load())) }

// Seen says that the picture of the kind was right at a [Store.Moment]: an event or a
// bookmark came. An earlier one than the last changes nothing.
func (s *Store) ConfirmFresh(kind Kind, at time.Time) {
	seen := &s.states[kind].confirmed
	for last := seen.Load(); last == nil || at.After(*last); last = seen.Load() {
		if seen.CompareAndSwap(last, &at) {
			return
		}
	}
}

// SeenForever says that the picture of the kind cannot grow old: it comes from
// this machine.
func (s *Store) SetAlwaysFresh(kind Kind) { s.states[kind].alwaysFresh.Store(true) }

// Age is how long ago the picture of the kind was last proven right: 0 for one
// that cannot grow old, the longest duration for one that never was.
func (s *Store) Age(kind Kind, now time.Time) time.Duration {
	v := &s.states[kind]
	if v.alwaysFresh.Load() {
		return 0
	}
	seen := v.confirmed.Load()
	if seen == nil {
		return math.MaxInt64
	}
	return max(0, s.BootTime(now).Sub(*seen))
}
