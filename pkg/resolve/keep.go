// SPDX-License-Identifier: Apache-2.0

package resolve

import "time"

// store keeps the judged answer to f for life. One that may not be kept takes with it
// what is held: that is known to be old.
func (d *desk) store(f *flight, life time.Duration, now time.Time) {
	if f.route.NoStore {
		return
	}
	c := f.plan.Cache
	if d.answer.Owner = nil; f.plan.Owner != nil {
		d.answer.Owner, d.answer.QueriedAt = f.plan.Owner(f.name()), f.r.epoch.Add(f.began)
	}
	if life <= 0 {
		// An answer from before its owner's last event says nothing of what came after.
		if d.answer.Owner == nil || !c.ChangedSince(d.answer.Owner, d.answer.QueriedAt) {
			c.Remove(f.key)
		}
		return
	}
	d.answer.Msg, d.answer.Lifetime = d.result.msg, life
	c.Put(f.key, &d.answer, now)
	if d.answer.NXDomain {
		f.r.cuts.note(f.name(), f.r.age(now)+life)
	}
	if plan := f.r.plan.Load(); plan != f.plan && plan.noStore(f.name()) {
		// A reload turned keeping off, and may have emptied the cache before this came.
		c.Remove(f.key)
	}
}

// name is the canonical name that the flight asks for.
func (f *flight) name() []byte {
	end := 0
	for f.key[end] != 0 {
		end += 1 + int(f.key[end])
	}
	return f.key[:end+1]
}

// owner is what Owner gives, nil without one.
func (p *Plan) owner(name []byte) []byte {
	if p.Owner == nil {
		return nil
	}
	return p.Owner(name)
}

// noStore tells whether no answer to a name is kept.
func (p *Plan) noStore(name []byte) bool {
	route := p.route(name)
	return route != nil && route.NoStore
}

// joinableLocked is the flight for key, the worker's query's, that the query may join,
// nil if there is none: one that began before the last event of the name's owner has
// an answer from before. Another begins beside it then, and is found first.
func (l *Worker) joinableLocked(hash uint64, key []byte) *flight {
	f := l.r.flights.findLocked(hash, key)
	if f == nil {
		return nil
	}
	if owner := l.plan.owner(l.q.Name()); owner != nil && l.plan.Cache.ChangedSince(owner, l.r.epoch.Add(f.began)) {
		return nil
	}
	return f
}
