// SPDX-License-Identifier: Apache-2.0

package zone

import "github.com/nodecache/node-cache/pkg/wire"

// grounds are the kinds that a statement rests on, as a set.
type grounds uint8

// The sets that are used.
const (
	onRecord    grounds = 0 // on the shape of the name, or on a record that is held
	onServices  grounds = 1 << Services
	onSlices    grounds = 1 << Slices
	onSpaces    grounds = 1 << Namespaces
	onPods      grounds = 1 << Pods
	onEndpoints         = onServices | onSlices
)

// A trust is how far grounds carry.
type trust uint8

// From worst to best.
const (
	unsynced trust = iota // the first list is not complete
	blind                 // nobody ever tells us of a kind
	stale                 // complete once, and not proven right for a while, or never by this process
	fresh
)

// trust gives the worst of the grounds' kinds.
func (r *reply) trust(g grounds) trust {
	worst := fresh
	for k := range Kind(kindCount) {
		if g&(1<<k) != 0 {
			worst = min(worst, r.trustKind(k))
		}
	}
	return worst
}

func (r *reply) trustKind(k Kind) trust {
	s := r.z.store
	switch {
	case k != Services && !s.views[k].expected.Load():
		return blind
	case s.views[k].synced.Load():
	case s.views[k].restored.Load():
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
func (r *reply) positive(g grounds) Result {
	if r.trust(g) == stale {
		r.ede = wire.EDEStaleAnswer
	}
	return r.finish(wire.RcodeSuccess, 0)
}

// nxdomain denies the name.
func (r *reply) nxdomain(g grounds) Result {
	return r.deny(g, wire.RcodeNXDomain, wire.EDEStaleNXDomain)
}

// nodata denies the type at a name that exists.
func (r *reply) nodata(g grounds) Result { return r.deny(g, wire.RcodeSuccess, wire.EDEStaleAnswer) }

// deny says no, if the grounds carry it: or else whoever knows better is asked.
// Without such a one a stale or narrow view is the best there is, but what was
// never complete is no view.
func (r *reply) deny(g grounds, rcode byte, staleCode int) Result {
	if t := r.trust(g); t != fresh {
		switch {
		case r.z.elsewhere() && (t != stale || !r.last):
			return r.none(Elsewhere, wire.EDENone)
		case t == unsynced:
			return r.none(Unready, wire.EDENotReady)
		case t == stale:
			r.ede = staleCode
		}
	}
	r.appendSOA()
	return r.finish(rcode, 1)
}

// outside denies a name of which somebody else may know more than this zone ever
// will, if there is nobody else.
func (r *reply) outside(g grounds) Result {
	if r.z.elsewhere() {
		return r.none(Elsewhere, wire.EDENone)
	}
	return r.nxdomain(g)
}

// complete tells whether every record of the kinds is there: a set of them may
// be given out as a whole.
func (r *reply) complete(g grounds) bool { return r.trust(g) >= stale }
