// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// kindStates say how far each can be trusted.
type kindStates struct {
	states [kindCount]struct {
		expected    atomic.Bool
		synced      atomic.Bool
		restored    atomic.Bool               // loaded from a dump: complete in another process, and stale until synced
		confirmed   atomic.Pointer[time.Time] // time of the last confirmation; nil: never
		alwaysFresh atomic.Bool
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

// SetAlwaysFresh marks the kind as always up to date: it comes from this host.
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

// FreshFor returns how long every answer of the zones stays fresh without another confirmation: 0 if one is not.
func (zs Zones) FreshFor(now time.Time) time.Duration {
	shortest := time.Duration(math.MaxInt64)
	for _, z := range zs {
		s := z.cfg.Store
		for k := range Kind(kindCount) {
			switch {
			case k != Services && !s.states[k].expected.Load():
			case !s.states[k].synced.Load():
				return 0
			default:
				shortest = min(shortest, max(0, z.cfg.StaleAfter-s.Age(k, now)))
			}
		}
	}
	return shortest
}

// A kindSet is the set of kinds that an answer depends on.
type kindSet uint8

// The sets in use.
const (
	needsNothing    kindSet = 0 // the shape of the name, or a record in the store
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
	stale                      // complete, but not confirmed recently, or never by this process
	fresh
)

// freshnessOf returns the worst freshness of the kinds.
func (r *reply) freshnessOf(g kindSet) freshness {
	worst := fresh
	for k := range Kind(kindCount) {
		if g&(1<<k) == 0 {
			continue
		}
		worst = min(worst, kindFreshness(r.z, k, r.now))
		if r.other != nil {
			worst = min(worst, kindFreshness(r.other, k, r.now))
		}
	}
	return worst
}

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

// positive ends the message with its records as the answer. Stale records are given, too, and marked.
func (r *reply) positive(g kindSet) Result {
	if r.freshnessOf(g) == stale {
		r.ede = wire.EDEStaleAnswer
	}
	return r.finish(wire.RcodeSuccess, 0)
}

// nxdomain denies the name. One that falls through, or the alias that led to it, is left to a route.
func (r *reply) nxdomain(g kindSet) Result {
	switch {
	case !r.within(r.z.fallthroughs) || r.freshnessOf(g) == unsynced:
		return r.deny(g, wire.RcodeNXDomain, wire.EDEStaleNXDomain)
	case r.answer > 0:
		return r.leave(r.name)
	}
	return r.abandon(NotInZone, wire.EDENone)
}

// nodata denies the type at a name that exists.
func (r *reply) nodata(g kindSet) Result { return r.deny(g, wire.RcodeSuccess, wire.EDEStaleAnswer) }

// deny denies the name or type if the kinds are fresh. Otherwise it leaves the answer to the fallback. Without a fallback,
// stale or unwatched kinds deny too, but unsynced kinds do not.
func (r *reply) deny(g kindSet, rcode byte, staleCode int) Result {
	if t := r.freshnessOf(g); t != fresh {
		switch {
		case r.z.cfg.HasFallback() && (t != stale || !r.fallbackFailed):
			return r.abandon(UseFallback, wire.EDENone)
		case t == unsynced:
			return r.abandon(NotReady, wire.EDENotReady)
		case t == stale:
			r.ede = staleCode
		}
	}
	r.appendSOA()
	return r.finish(rcode, 1)
}

// denyUnlessFallback denies a name that the fallback may know and this zone cannot, if there is no fallback.
func (r *reply) denyUnlessFallback(g kindSet) Result {
	if r.z.cfg.HasFallback() {
		return r.abandon(UseFallback, wire.EDENone)
	}
	return r.nxdomain(g)
}

// complete reports whether every record of the kinds is there, so that a set of them is an answer.
func (r *reply) complete(g kindSet) bool { return r.freshnessOf(g) >= stale }

// answerUnknown ends the answer for a name whose objects the store has not got: the fallback answers it, if there is one.
func (r *reply) answerUnknown() Result {
	if r.z.cfg.HasFallback() {
		return r.abandon(UseFallback, wire.EDENone)
	}
	return r.abandon(NotReady, wire.EDENotReady)
}
