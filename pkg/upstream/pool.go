// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// New makes a pool. It reads the resolv.conf files, but opens no socket and starts no goroutine. It fails if a target
// is invalid or a file cannot be read. It fails with [ErrNoUpstream] if there are only addresses and all were
// excluded. Endpoints may be empty. Without targets and endpoints every query fails.
func New(cfg Config) (*Pool, error) {
	p := &Pool{common: newCommon(cfg)}
	if p.Connections < 1 || p.Connections > maxConnections {
		return nil, fmt.Errorf("connections %d: not between 1 and %d", cfg.Connections, maxConnections)
	}
	p.timers.common = p.common
	p.explored.at.Store(p.Now().UnixNano())
	p.snapshot.Store(&snapshot{})
	switch {
	case p.Endpoints == nil:
		if err := p.readTargets(); err != nil {
			return nil, err
		}
	case len(p.Targets) > 0:
		return nil, fmt.Errorf("endpoints together with targets: %w", errors.ErrUnsupported)
	default:
		p.currentSnapshot()
	}
	return p, nil
}

// readTargets builds the first list of a pool with targets.
func (p *Pool) readTargets() error {
	files := 0
	var left []netip.AddrPort
	for i, t := range p.Targets {
		src := &source{common: p.common, target: t}
		check := t.check
		if src.isFile() {
			check = src.load
			files++
		}
		if err := check(); err != nil {
			return fmt.Errorf("target %d: %w", i, err)
		}
		if !src.isFile() && p.Self(t.Addr) {
			left = append(left, t.Addr)
			continue
		}
		p.sources = append(p.sources, src)
	}
	p.publishSources()
	if p.Empty() && len(p.Targets) > 0 {
		if files == 0 {
			return ErrNoUpstream
		}
		p.Log.Warn("no upstream in any resolv.conf")
	}
	for _, addr := range left {
		p.Log.Warn("upstream excluded", "reason", "own address", "upstream", addr)
	}
	return nil
}

// check validates a target with an address. It reads the CA file, so that a wrong path is reported before the first
// query.
func (t Target) check() error {
	if !t.Addr.IsValid() || t.Addr.Port() == 0 {
		return fmt.Errorf("address %q: %w", t.Addr, ErrNoUpstream)
	}
	if !slices.Contains([]string{"udp", "tcp", "tls", "https"}, t.Network) {
		return fmt.Errorf("network %q: %w", t.Network, errors.ErrUnsupported)
	}
	_, _, err := readCAFile(t.CAFile)
	return err
}

// Run watches the resolv.conf files or endpoints until ctx ends. Then it closes each socket and connection after its
// last query, and returns nil when all are closed. Ask works before, during and after Run; afterwards it keeps no socket
// or connection open.
func (p *Pool) Run(ctx context.Context) error {
	if p.Endpoints != nil {
		p.watchEndpoints(ctx)
	} else {
		p.watchFiles(ctx)
	}
	p.mu.Lock()
	p.runEnded = true
	leaving := slices.Concat(p.draining, p.snapshot.Load().all)
	p.draining = nil
	p.mu.Unlock()
	for _, e := range leaving {
		e.closeIdle(false)
	}
	for _, e := range leaving {
		e.wait()
	}
	return nil
}

// watchFiles reloads the resolv.conf files on every change until ctx ends.
func (p *Pool) watchFiles(ctx context.Context) {
	var paths []string
	for _, src := range p.sources {
		if src.isFile() {
			paths = append(paths, src.target.ResolvConf, p.SystemdResolvConf)
		}
	}
	if len(paths) == 0 {
		<-ctx.Done()
		return
	}
	interrupted := false // a panic interrupted the last reload
	filewatch.Watch(ctx, filewatch.Config{
		Paths: paths, Log: p.Log,
		Check: func(bool) time.Duration {
			changed := interrupted
			interrupted = true
			p.reload(ctx, changed)
			interrupted = false
			return 0
		},
		OnPanic: func(panicked any) { p.logPanic(ctx, panicked) },
	})
}

// reload reads the files and publishes a new list if one has changed, or if changed is set.
func (p *Pool) reload(ctx context.Context, changed bool) {
	for _, f := range p.sources {
		if f.isFile() && f.reload(ctx) {
			changed = true
			p.Log.InfoContext(ctx, "resolv.conf changed", "path", f.target.ResolvConf, "upstreams", f.servers)
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
		changed := p.Endpoints.nextChange()
		p.currentSnapshot()
		p.reapDrained()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
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

// reapDrained forgets the removed upstreams without open sockets and connections.
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
		e.wait() // not for long: without open sockets and connections, its goroutines are about to end
	}
}

// Healthy returns the servers that are expected to answer, without last resorts.
func (p *Pool) Healthy() (list []Server) {
	for _, e := range p.currentSnapshot().primary() {
		if e.healthy() {
			list = append(list, Server{Addr: e.Addr, Far: e.far})
		}
	}
	return list
}

// Has reports whether addr is one of the servers, as which last resorts do not count. It is true without a server.
func (p *Pool) Has(addr netip.AddrPort) bool {
	list := p.currentSnapshot().primary()
	return len(list) == 0 || slices.ContainsFunc(list, func(e *endpoint) bool { return e.Addr == addr })
}

// Open opens a connection to one of the servers, like those for queries: over TLS where the server is asked so.
func (p *Pool) Open(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	all := p.currentSnapshot().all
	i := slices.IndexFunc(all, func(e *endpoint) bool { return e.Addr == addr })
	if i < 0 {
		return nil, ErrNoUpstream
	}
	conn, err := p.Dial(ctx, "tcp", addr)
	if err != nil || all[i].conns.tlsClient == nil {
		return conn, err
	}
	secured, err := all[i].conns.tlsClient.handshake(ctx, conn)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secured, nil
}

// Empty reports whether the pool has no upstream. It costs an atomic load, except for the first call after a change.
func (p *Pool) Empty() bool { return len(p.currentSnapshot().all) == 0 }

// AllDown reports whether a query would most likely fail: each upstream leads back to this process, or failed when it
// was last asked and has answered no probe since.
func (p *Pool) AllDown() bool {
	return !slices.ContainsFunc(p.currentSnapshot().all, (*endpoint).healthy)
}

// Stats returns the counters of the current upstreams.
func (p *Pool) Stats() Stats {
	snap := p.currentSnapshot()
	s := Stats{Servers: make([]ServerStats, 0, len(snap.all)), Panics: p.panics.Load()}
	for i, e := range snap.all {
		server := e.stats()
		server.LastResort = i >= len(snap.all)-len(snap.lastResort)
		s.Servers = append(s.Servers, server)
	}
	return s
}
