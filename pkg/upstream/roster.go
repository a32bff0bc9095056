// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"net/netip"
	"slices"
)

// A roster is the upstreams of a pool at one moment. A published one never
// changes.
type roster struct {
	all  []*endpoint      // in order, the last resorts at the end
	last []*endpoint      // the end of all: not asked while one of the others is any good
	from *membership      // what it was made from; nil without endpoints to follow
	self []netip.AddrPort // of from, but left out: they lead back here
}

// A listing is what makes an upstream what it is: two that are equal are one.
type listing struct {
	network string
	addr    netip.AddrPort
	name    string // of the server's certificate
	ca      string // path of a PEM file; empty: the system's
	path    string // of HTTPS
	method  string // of HTTPS
	near    bool   // in this machine's zone, or zones are not told apart
}

func (t *Target) listing() listing {
	return listing{network: t.Network, addr: t.Addr, name: t.Name, ca: t.CAFile, path: t.Path, method: t.Method, near: true}
}

// target is what the carriers want to know.
func (l *listing) target(network string) Target {
	return Target{Network: network, Addr: l.addr, Name: l.name, CAFile: l.ca, Path: l.path, Method: l.method}
}

// Empty tells whether there is nobody to ask now. It is as cheap as reading a
// variable, but for the first call after the list has changed.
func (p *Pool) Empty() bool { return len(p.current().all) == 0 }

// Hopeless tells whether asking now would most likely be in vain: each upstream failed when it was last asked, and no
// probe has come back since.
func (p *Pool) Hopeless() bool {
	return !slices.ContainsFunc(p.current().all, (*endpoint).hopeful)
}

// why is what tells most of why all upstreams are down.
func (r *roster) why() Reason {
	why := Network
	for _, e := range r.all {
		why = max(why, Reason(e.fault.Load()))
	}
	return why
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
			entries = append(entries, src.target.listing())
			continue
		}
		for _, addr := range src.file.servers {
			entries = append(entries, listing{network: "udp", addr: addr, near: true})
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
		known[e.listing] = e
	}
	seen := map[listing]bool{}
	add := func(entries []listing) {
		for _, l := range entries {
			if !seen[l] {
				seen[l] = true
				next.all = append(next.all, p.takeLocked(known, l))
			}
		}
	}
	add(entries)
	firsts := len(next.all)
	add(last)
	next.last = next.all[firsts:]
	p.list.Store(next)
	for _, e := range known {
		e.leave()
		if !p.ended {
			p.leaving = append(p.leaving, e)
		}
	}
}

// takeLocked takes an upstream over from those that are known, or makes it.
func (p *Pool) takeLocked(known map[listing]*endpoint, l listing) *endpoint {
	if e := known[l]; e != nil {
		delete(known, l)
		e.guard.again() // what is behind it may have changed as well
		return e
	}
	e := newEndpoint(p.common, l)
	if p.ended {
		e.retire()
	}
	return e
}

// sweep forgets the upstreams that have left and have no connection any more.
func (p *Pool) sweep() {
	p.mu.Lock()
	var closed []*endpoint
	p.leaving = slices.DeleteFunc(p.leaving, func(e *endpoint) bool {
		if e.open() > 0 {
			return false
		}
		closed = append(closed, e)
		return true
	})
	p.mu.Unlock()
	for _, e := range closed {
		e.wait() // its goroutines are about to end
	}
}
