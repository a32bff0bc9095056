// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// maxEndpoints is how many servers of one Endpoints are used.
const maxEndpoints = 256

// Endpoints is the current list of servers behind a name. The zero value is empty. Several pools may share one, and
// its methods are safe for concurrent use.
type Endpoints struct {
	current atomic.Pointer[memberList] // nil before the first use
}

// A Server is one of several equivalent servers.
type Server struct {
	Addr netip.AddrPort
	Far  bool // in another zone than this node: used when those in this zone are much busier, or fail
}

// A memberList is the argument of one call of Set. It is immutable.
type memberList struct {
	ready, lastResort []Server
	replaced          chan struct{} // closed when a newer list replaces it
}

// Set replaces the servers. The servers of ready share the queries, those of this zone first. Those of lastResort are
// asked only while ready is empty, while each of ready fails, or if every ready server that a query was sent to timed
// out.
//
// A query that begins after Set has returned goes to no server outside the two lists. A query that was sent to such a
// server before may still get its answer from there; on failure or timeout it is sent to another one in the time that
// is left. A server that stays, with the same Far, keeps its connections and counters.
//
// Set ignores addresses that are invalid or lack a port, and all beyond 256. It copies both lists.
func (e *Endpoints) Set(ready, lastResort []Server) {
	next := &memberList{ready: sanitizeServers(ready), lastResort: sanitizeServers(lastResort), replaced: make(chan struct{})}
	for {
		old := e.load()
		if slices.Equal(old.ready, next.ready) && slices.Equal(old.lastResort, next.lastResort) {
			return
		}
		if e.current.CompareAndSwap(old, next) {
			close(old.replaced)
			return
		}
	}
}

// sanitizeServers returns a copy of the list with valid addresses only.
func sanitizeServers(servers []Server) []Server {
	list := make([]Server, 0, min(len(servers), maxEndpoints))
	for _, s := range servers {
		s.Addr = netip.AddrPortFrom(s.Addr.Addr().Unmap(), s.Addr.Port())
		if s.Addr.IsValid() && s.Addr.Port() != 0 && len(list) < maxEndpoints {
			list = append(list, s)
		}
	}
	return list
}

// load returns the current list.
func (e *Endpoints) load() *memberList {
	m := e.current.Load()
	if m == nil {
		e.current.CompareAndSwap(nil, &memberList{replaced: make(chan struct{})})
		m = e.current.Load()
	}
	return m
}

// refreshSnapshot publishes the current endpoints, unless another goroutine just did.
func (p *Pool) refreshSnapshot() *snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, old := p.endpoints.load(), p.snapshot.Load()
	if old.members == m {
		return old
	}
	next := &snapshot{members: m}
	others := func(servers []Server) []Target {
		list := make([]Target, 0, len(servers))
		for _, s := range servers {
			switch {
			case !p.self(s.Addr):
				list = append(list, Target{Network: "tcp", Addr: s.Addr, far: s.Far})
				continue
			case !slices.Contains(old.selfAddrs, s.Addr):
				p.log.Warn("upstream excluded", "reason", "own address", "upstream", s.Addr)
			}
			next.selfAddrs = append(next.selfAddrs, s.Addr)
		}
		return list
	}
	p.publishLocked(next, others(m.ready), others(m.lastResort))
	return next
}

// watchFiles reloads the resolv.conf files on every change until ctx ends.
func (p *Pool) watchFiles(ctx context.Context) {
	var paths []string
	for _, src := range p.sources {
		if src.isFile() {
			paths = append(paths, src.target.ResolvConf, p.systemdPath)
		}
	}
	if len(paths) == 0 {
		<-ctx.Done()
		return
	}
	interrupted := false // a panic interrupted the last reload
	filewatch.Watch(ctx, filewatch.Config{
		Paths: paths, Log: p.log,
		Check: func(bool) time.Duration {
			changed := interrupted
			interrupted = true
			p.reload(ctx, changed)
			interrupted = false
			return 0
		},
		OnPanic: func(panicked any, stack []byte) { p.logPanic(ctx, panicked, stack) },
	})
}

// reload reads the files and publishes a new list if one has changed, or if changed is set.
func (p *Pool) reload(ctx context.Context, changed bool) {
	for _, f := range p.sources {
		if f.isFile() && f.reload(ctx) {
			changed = true
			p.log.InfoContext(ctx, "resolv.conf changed", "path", f.target.ResolvConf, "upstreams", f.servers)
		}
	}
	p.reapDrained()
	if changed {
		p.publishSources()
	}
}

// watchEndpoints applies every change until ctx ends, so that connections to removed servers close without waiting
// for the next query.
func (p *Pool) watchEndpoints(ctx context.Context) {
	for {
		snap := p.currentSnapshot()
		p.reapDrained()
		select {
		case <-snap.members.replaced:
		case <-ctx.Done():
			return
		}
	}
}

// A snapshot is the list of a pool's upstreams at one time. A published snapshot is immutable.
type snapshot struct {
	all        []*endpoint      // in order, last resorts at the end
	lastResort []*endpoint      // the end of all: used only while no other upstream is healthy
	members    *memberList      // that it was made from; nil without Endpoints
	selfAddrs  []netip.AddrPort // members excluded as this process's own addresses
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

// publishSources publishes the current list of the sources.
func (p *Pool) publishSources() {
	var entries []Target
	for _, src := range p.sources {
		entries = append(entries, src.targets()...)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.publishLocked(&snapshot{}, entries, nil)
}

// publishLocked fills next and replaces the snapshot. An upstream in both keeps its endpoint, with latency, counters
// and connections. A removed upstream gets no more queries.
func (p *Pool) publishLocked(next *snapshot, entries, last []Target) {
	known := map[Target]*endpoint{}
	for _, e := range p.snapshot.Load().all {
		known[e.Target] = e
	}
	seen := map[Target]bool{}
	add := func(entries []Target) {
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
func (p *Pool) endpointLocked(known map[Target]*endpoint, k Target) *endpoint {
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
