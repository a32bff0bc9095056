// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"net/netip"
	"slices"
)

// A snapshot is the list of a pool's upstreams at one time. A published snapshot is immutable.
type snapshot struct {
	all        []*endpoint      // in order, last resorts at the end
	lastResort []*endpoint      // the end of all: used only while no other upstream is healthy
	members    *memberList      // that it was made from; nil without Endpoints
	selfAddrs  []netip.AddrPort // members excluded as this process's own addresses
}

// An endpointKey identifies an upstream: equal keys are one upstream.
type endpointKey struct {
	network string
	addr    netip.AddrPort
	name    string // of the server's certificate
	ca      string // path of a PEM file; empty: the system's
	path    string // of HTTPS
	method  string // of HTTPS
	near    bool   // in the zone of this node, or zones are not used
}

func (t *Target) key() endpointKey {
	return endpointKey{network: t.Network, addr: t.Addr, name: t.Name, ca: t.CAFile, path: t.Path, method: t.Method, near: true}
}

// target returns the key as a Target for a transport.
func (k *endpointKey) target(network string) Target {
	return Target{Network: network, Addr: k.addr, Name: k.name, CAFile: k.ca, Path: k.path, Method: k.method}
}

// Empty reports whether the pool has no upstream. It costs an atomic load, except for the first call after a change.
func (p *Pool) Empty() bool { return len(p.currentSnapshot().all) == 0 }

// AllDown reports whether a query would most likely fail: each upstream failed when it was last asked, and no probe
// has been answered since.
func (p *Pool) AllDown() bool {
	return !slices.ContainsFunc(p.currentSnapshot().all, (*endpoint).healthy)
}

// downReason returns the most specific reason why all upstreams are down.
func (s *snapshot) downReason() Reason {
	why := Network
	for _, e := range s.all {
		why = max(why, Reason(e.lastReason.Load()))
	}
	return why
}

// currentSnapshot returns the current list.
func (p *Pool) currentSnapshot() *snapshot {
	snap := p.snapshot.Load()
	if p.endpoints == nil || snap.members == p.endpoints.load() {
		return snap
	}
	return p.refreshSnapshot()
}

// publishSources publishes the current list of the sources.
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

// publishLocked fills next and replaces the snapshot. An upstream in both keeps its endpoint, with latency, counters
// and connections. A removed upstream gets no more queries.
func (p *Pool) publishLocked(next *snapshot, entries, last []endpointKey) {
	known := map[endpointKey]*endpoint{}
	for _, e := range p.snapshot.Load().all {
		known[e.endpointKey] = e
	}
	seen := map[endpointKey]bool{}
	add := func(entries []endpointKey) {
		for _, k := range entries {
			if !seen[k] {
				seen[k] = true
				next.all = append(next.all, p.endpointLocked(known, k))
			}
		}
	}
	add(entries)
	primary := len(next.all)
	add(last)
	next.lastResort = next.all[primary:]
	p.snapshot.Store(next)
	for _, e := range known {
		e.shutdown()
		if !p.runEnded {
			p.draining = append(p.draining, e)
		}
	}
}

// endpointLocked takes the endpoint out of known, or makes a new one.
func (p *Pool) endpointLocked(known map[endpointKey]*endpoint, k endpointKey) *endpoint {
	if e := known[k]; e != nil {
		delete(known, k)
		e.loopMonitor.recheck() // the server behind it may have changed too
		return e
	}
	e := newEndpoint(p.common, k)
	if p.runEnded {
		e.closeIdle()
	}
	return e
}

// reapDrained forgets the removed upstreams without open connections.
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
