// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"net/netip"
	"slices"
)

// A roster is the upstreams of a pool at one moment. A published one never
// changes.
type snapshot struct {
	all        []*endpoint      // in order, the last resorts at the end
	lastResort []*endpoint      // the end of all: not asked while one of the others is any good
	members    *memberList      // what it was made from; nil without endpoints to follow
	selfAddrs  []netip.AddrPort // of from, but left out: they lead back here
}

// A listing is what makes an upstream what it is: two that are equal are one.
type endpointKey struct {
	network string
	addr    netip.AddrPort
	name    string // of the server's certificate
	ca      string // path of a PEM file; empty: the system's
	path    string // of HTTPS
	method  string // of HTTPS
	near    bool   // in this machine's zone, or zones are not told apart
}

func (t *Target) key() endpointKey {
	return endpointKey{network: t.Network, addr: t.Addr, name: t.Name, ca: t.CAFile, path: t.Path, method: t.Method, near: true}
}

// target is what the carriers want to know.
func (l *endpointKey) target(network string) Target {
	return Target{Network: network, Addr: l.addr, Name: l.name, CAFile: l.ca, Path: l.path, Method: l.method}
}

// Empty tells whether there is nobody to ask now. It is as cheap as reading a
// variable, but for the first call after the list has changed.
func (p *Pool) Empty() bool { return len(p.currentSnapshot().all) == 0 }

// AllDown reports whether asking now would most likely be in vain: each upstream failed when it was last asked, and no
// probe has come back since.
func (p *Pool) AllDown() bool {
	return !slices.ContainsFunc(p.currentSnapshot().all, (*endpoint).healthy)
}

// why is what tells most of why all upstreams are down.
func (s *snapshot) downReason() Reason {
	why := Network
	for _, e := range s.all {
		why = max(why, Reason(e.lastReason.Load()))
	}
	return why
}

// current is the roster of now.
func (p *Pool) currentSnapshot() *snapshot {
	snap := p.snapshot.Load()
	if p.endpoints == nil || snap.members == p.endpoints.load() {
		return snap
	}
	return p.refreshSnapshot()
}

// rebuild publishes what the sources give now.
func (p *Pool) publishSources() {
	var entries []endpointKey
	for _, src := range p.sources {
		if src.resolvConf == nil {
			entries = append(entries, src.target.key())
			continue
		}
		for _, addr := range src.resolvConf.servers {
			entries = append(entries, endpointKey{network: "udp", addr: addr, near: true})
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.publishLocked(&snapshot{}, entries, nil)
}

// publishLocked fills next and puts it in place of the roster there is. What
// was in that one keeps its endpoint, and with it latency, counters and
// connections. What falls out gets no query any more.
func (p *Pool) publishLocked(next *snapshot, entries, last []endpointKey) {
	known := map[endpointKey]*endpoint{}
	for _, e := range p.snapshot.Load().all {
		known[e.endpointKey] = e
	}
	seen := map[endpointKey]bool{}
	add := func(entries []endpointKey) {
		for _, l := range entries {
			if !seen[l] {
				seen[l] = true
				next.all = append(next.all, p.endpointLocked(known, l))
			}
		}
	}
	add(entries)
	firsts := len(next.all)
	add(last)
	next.lastResort = next.all[firsts:]
	p.snapshot.Store(next)
	for _, e := range known {
		e.shutdown()
		if !p.runEnded {
			p.draining = append(p.draining, e)
		}
	}
}

// takeLocked takes an upstream over from those that are known, or makes it.
func (p *Pool) endpointLocked(known map[endpointKey]*endpoint, l endpointKey) *endpoint {
	if e := known[l]; e != nil {
		delete(known, l)
		e.loopMonitor.recheck() // what is behind it may have changed as well
		return e
	}
	e := newEndpoint(p.common, l)
	if p.runEnded {
		e.closeIdle()
	}
	return e
}

// sweep forgets the upstreams that have left and have no connection any more.
func (p *Pool) reapDrained() {
	p.mu.Lock()
	var closed []*endpoint
	p.draining = slices.DeleteFunc(p.draining, func(e *endpoint) bool {
		if e.openCount() > 0 {
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
