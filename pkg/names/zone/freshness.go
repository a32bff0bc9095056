// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"math"
	"sync/atomic"
	"time"
)

// kindStates say how far the objects of each kind can be trusted.
type kindStates struct {
	states [kindCount]struct {
		expected    atomic.Bool               // see Expect
		synced      atomic.Bool               // the first list is complete
		restored    atomic.Bool               // loaded from a dump: complete in another process, and stale until synced
		confirmed   atomic.Pointer[time.Time] // time of the last confirmation; nil: never
		alwaysFresh atomic.Bool               // see SetAlwaysFresh
	}
	suspended atomic.Int64 // total length of the host's suspends, in ns
}

// Expect sets the kinds that will be filled; the others count as unwatched. Services are always expected.
func (s *kindStates) Expect(kinds ...Kind) {
	for i := range s.states {
		s.states[i].expected.Store(false)
	}
	for _, k := range kinds {
		s.states[k].expected.Store(true)
	}
}

// SetSynced marks the first list of the kind as complete. This cannot be undone.
func (s *kindStates) SetSynced(kind Kind) { s.states[kind].synced.Store(true) }

// Synced reports whether the first list of the kind is complete.
func (s *kindStates) Synced(kind Kind) bool { return s.states[kind].synced.Load() }

// Restored reports whether the objects of the kind come from a dump, without a complete list since.
func (s *kindStates) Restored(kind Kind) bool {
	return s.states[kind].restored.Load() && !s.Synced(kind)
}

// AddSuspend adds the length of a suspend to the age of earlier confirmations: the monotonic clock of [time.Time] stops
// during a suspend (CLOCK_MONOTONIC).
func (s *kindStates) AddSuspend(d time.Duration) { s.suspended.Add(int64(d)) }

// BootTime returns now plus all suspends so far, as CLOCK_BOOTTIME counts. The difference of two boot times is an age.
func (s *kindStates) BootTime(now time.Time) time.Time {
	return now.Add(time.Duration(s.suspended.Load()))
}

// ConfirmFresh records that the objects of the kind were up to date at a [Store.BootTime], because of an event or a
// bookmark. A time before the last one has no effect.
func (s *kindStates) ConfirmFresh(kind Kind, at time.Time) {
	seen := &s.states[kind].confirmed
	for last := seen.Load(); last == nil || at.After(*last); last = seen.Load() {
		if seen.CompareAndSwap(last, &at) {
			return
		}
	}
}

// SetAlwaysFresh marks the kind as always up to date: its objects are files of this host.
func (s *kindStates) SetAlwaysFresh(kind Kind) { s.states[kind].alwaysFresh.Store(true) }

// Age returns the time since the last confirmation of the kind: 0 if it is always fresh, the maximum duration if it was
// never confirmed.
func (s *kindStates) Age(kind Kind, now time.Time) time.Duration {
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

// A kindSet is the set of kinds that an answer depends on.
type kindSet uint8

// The sets in use.
const (
	needsNothing    kindSet = 0 // the shape of the name, or a record in the store, is enough
	needsServices   kindSet = 1 << Services
	needsSlices     kindSet = 1 << Slices
	needsNamespaces kindSet = 1 << Namespaces
	needsPods       kindSet = 1 << Pods
	needsEndpoints          = needsServices | needsSlices
)

// A freshness is how far the data of a kind can be trusted.
type freshness uint8

// From worst to best.
const (
	unsynced  freshness = iota // the first list is not complete
	unwatched                  // the kind is not expected
	stale                      // complete, but not confirmed recently, or only restored from a dump
	fresh
)

func kindFreshness(z *Zone, k Kind, now time.Time) freshness {
	s := z.cfg.Store
	if k == Namespaces {
		s = z.namespaceStore()
	}
	switch {
	case k != Services && !s.states[k].expected.Load():
		return unwatched
	case s.states[k].synced.Load():
	case s.states[k].restored.Load():
		return stale
	default:
		return unsynced
	}
	if s.Age(k, now) > z.cfg.StaleAfter {
		return stale
	}
	return fresh
}
