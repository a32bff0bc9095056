// SPDX-License-Identifier: Apache-2.0

package zone

import "github.com/nodecache/node-cache/pkg/wire"

// grounds are the kinds that a statement rests on, as a set.
type kindSet uint8

// The sets that are used.
const (
	needsNothing    kindSet = 0 // on the shape of the name, or on a record that is held
	needsServices   kindSet = 1 << Services
	needsSlices     kindSet = 1 << Slices
	needsNamespaces kindSet = 1 << Namespaces
	needsPods       kindSet = 1 << Pods
	needsEndpoints          = needsServices | needsSlices
)

// A trust is how far grounds carry.
type freshness uint8

// From worst to best.
const (
	unsynced  freshness = iota // the first list is not complete
	unwatched                  // nobody ever tells us of a kind
	stale                      // complete once, and not proven right for a while, or never by this process
	fresh
)

// trust gives the worst of the grounds' kinds.
func (r *reply) freshnessOf(g kindSet) freshness {
	worst := fresh
	for k := range Kind(kindCount) {
		if g&(1<<k) != 0 {
			worst = min(worst, r.kindFreshness(k))
		}
	}
	return worst
}

func (r *reply) kindFreshness(k Kind) freshness {
	s := r.z.store
	switch {
	case k != Services && !s.states[k].expected.Load():
		return unwatched
	case s.states[k].synced.Load():
	case s.states[k].restored.Load():
		return stale
	default:
		return unsynced
	}
	if s.Age(k, r.now) > r.z.staleAfter {
		return stale
	}
	return fresh
}

// positive ends the message: its records are the answer. They are given out when
// the grounds are stale, too, and marked then.
func (r *reply) positive(g kindSet) Result {
	if r.freshnessOf(g) == stale {
		r.ede = wire.EDEStaleAnswer
	}
	return r.finish(wire.RcodeSuccess, 0)
}

// nxdomain denies the name.
func (r *reply) nxdomain(g kindSet) Result {
	return r.deny(g, wire.RcodeNXDomain, wire.EDEStaleNXDomain)
}

// nodata denies the type at a name that exists.
func (r *reply) nodata(g kindSet) Result { return r.deny(g, wire.RcodeSuccess, wire.EDEStaleAnswer) }

// deny says no, if the grounds carry it: or else whoever knows better is asked.
// Without such a one a stale or narrow view is the best there is, but what was
// never complete is no view.
func (r *reply) deny(g kindSet, rcode byte, staleCode int) Result {
	if t := r.freshnessOf(g); t != fresh {
		switch {
		case r.z.hasFallback() && (t != stale || !r.fallbackFailed):
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

// outside denies a name of which somebody else may know more than this zone ever
// will, if there is nobody else.
func (r *reply) denyUnlessFallback(g kindSet) Result {
	if r.z.hasFallback() {
		return r.abandon(UseFallback, wire.EDENone)
	}
	return r.nxdomain(g)
}

// complete tells whether every record of the kinds is there: a set of them may
// be given out as a whole.
func (r *reply) complete(g kindSet) bool { return r.freshnessOf(g) >= stale }
