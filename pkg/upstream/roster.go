// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"net/netip"
	"slices"
	"time"
)

// A roster is the upstreams of a pool at one moment. A published one never
// changes.
type roster struct {
	all  []*endpoint      // in order, the last resorts at the end
	last []*endpoint      // the end of all: not asked while one of the others is any good
	from *membership      // what it was made from; nil without endpoints to follow
	self []netip.AddrPort // of from, but left out: they lead back here
}

// A listing is an upstream's entry in the list that a roster is made from.
type listing struct {
	network string
	addr    netip.AddrPort
}

// Empty tells whether there is nobody to ask now. It is as cheap as reading a
// variable, but for the first call after the list has changed.
func (p *Pool) Empty() bool { return len(p.current().all) == 0 }

// Hopeless tells whether asking now would most likely be in vain: each upstream
// failed when it was last asked, and none is due to be tried again.
func (p *Pool) Hopeless() bool {
	now := p.now()
	return !slices.ContainsFunc(p.current().all, func(e *endpoint) bool { return e.hopeful() || e.standing(now).due })
}

// current is the roster of now.
func (p *Pool) current() *roster {
	list := p.list.Load()
	if p.follow == nil || list.from == p.follow.load() {
		return list
	}
	return p.refresh()
}

// rebuild publishes what the sources give now.
func (p *Pool) rebuild() {
	var entries []listing
	for _, src := range p.sources {
		if src.file == nil {
			entries = append(entries, listing{src.network, src.addr})
			continue
		}
		for _, addr := range src.file.servers {
			entries = append(entries, listing{"udp", addr})
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.publishLocked(&roster{}, entries, nil)
}

// publishLocked fills next and puts it in place of the roster there is. What
// was in that one keeps its endpoint, and with it latency, counters and
// connections. What falls out gets no query any more.
func (p *Pool) publishLocked(next *roster, entries, last []listing) {
	known := map[listing]*endpoint{}
	for _, e := range p.list.Load().all {
		known[listing{e.network, e.addr}] = e
	}
	seen := map[listing]bool{}
	add := func(entries []listing) {
		for _, l := range entries {
			if seen[l] {
				continue
			}
			seen[l] = true
			e := known[l]
			if e == nil {
				e = newEndpoint(p.common, l.network, l.addr)
				e.streams.retired = p.ended
			}
			delete(known, l)
			next.all = append(next.all, e)
		}
	}
	add(entries)
	firsts := len(next.all)
	add(last)
	next.last = next.all[firsts:]
	p.list.Store(next)
	for _, e := range known {
		e.streams.leave()
		if !p.ended {
			p.leaving = append(p.leaving, e)
		}
	}
}

// sweep forgets the upstreams that have left and have no connection any more.
func (p *Pool) sweep() {
	p.mu.Lock()
	var closed []*endpoint
	p.leaving = slices.DeleteFunc(p.leaving, func(e *endpoint) bool {
		open, _ := e.streams.stats()
		if open == 0 {
			closed = append(closed, e)
		}
		return open == 0
	})
	p.mu.Unlock()
	for _, e := range closed {
		e.streams.wait() // its goroutines are about to end
	}
}

// choose picks the upstreams of one exchange from the roster, the best first.
//
// Last resorts come after all others, and only if these are few. Once each of
// the others has failed, and has not answered since, they take part like any;
// then one of the failed is asked first whenever it is due, to see it come back.
func (p *Pool) choose(list *roster) []side {
	now := p.now()
	firsts := list.all[:len(list.all)-len(list.last)]
	given := len(list.last) > 0 && !slices.ContainsFunc(firsts, (*endpoint).hopeful)
	o := order{sides: make([]side, 0, p.maxSides+1), limit: p.maxSides}
	probed := false
	for _, e := range firsts {
		s := e.standing(now)
		if given && s.due && !probed {
			s.score, probed = 0, true
		}
		o.add(e, s)
	}
	if !given {
		o.settled = len(o.sides)
	}
	for _, e := range list.last {
		o.add(e, e.standing(now))
	}
	if sides := o.sides; len(sides) > 1 {
		// The first may be one that fared badly and is due to be tried again.
		// The client need not wait for it longer than for the other.
		sides[0].patience = min(sides[0].patience, sides[1].patience)
	}
	return o.sides
}

// An order is the best upstreams so far.
type order struct {
	sides   []side // sorted from settled on; has room for one more than limit
	scores  [maxSides + 1]time.Duration
	limit   int
	settled int // the first so many keep their places
}

// add sorts an upstream in. The one that is then too many falls out.
func (o *order) add(e *endpoint, s standing) {
	at := len(o.sides)
	o.sides = append(o.sides, side{})
	for ; at > o.settled && o.scores[at-1] > s.score; at-- {
		o.sides[at], o.scores[at] = o.sides[at-1], o.scores[at-1]
	}
	o.sides[at], o.scores[at] = side{ep: e, patience: s.patience}, s.score
	o.sides = o.sides[:min(len(o.sides), o.limit)]
}
