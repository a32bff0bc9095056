// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Config says whom a pool asks and with what means.
type Config struct {
	// Targets is a route's list, in the order of the configuration.
	Targets []Target
	// Dial opens a connected socket; network is "udp" or "tcp". It must heed
	// ctx. Nil: a net.Dialer.
	Dial func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	// Rand gives message IDs. It is read from many goroutines at once. Nil:
	// crypto/rand.
	Rand io.Reader
	// Now measures latency and nothing else. Nil: time.Now.
	Now func() time.Time
	// Log takes warnings about upstreams that are left out. Nil: none.
	Log *slog.Logger
	// Self tells whether an address leads back to our own listener. Nil: never.
	Self func(netip.AddrPort) bool
	// SystemdResolvConf is read in place of a resolv.conf that only names the
	// stub of systemd-resolved. Empty: /run/systemd/resolve/resolv.conf.
	SystemdResolvConf string
}

// A Target is one entry of a route's list: an address, or a file of addresses.
type Target struct {
	Network    string // "udp" or "tcp"; unused with ResolvConf
	Addr       netip.AddrPort
	ResolvConf string // path of a resolv.conf, which stands for its nameservers
}

// A Pool asks a route's upstreams. Its methods may be called from any goroutine.
type Pool struct {
	*common
	sources []source // one per target, in order; after New only Run touches them
	list    atomic.Pointer[[]*endpoint]
	leaving []*endpoint // fell out of the list, may still have connections; only Run touches it
}

// common is what all upstreams of a pool share.
type common struct {
	dial    func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	rand    io.Reader
	now     func() time.Time
	log     *slog.Logger
	scratch sync.Pool // of *scratch
	panics  atomic.Uint64
}

// A source gives a part of the list: one fixed address, or a followed file.
type source struct {
	network string
	addr    netip.AddrPort
	file    *resolvConf // nil: the address
}

// New makes a pool. It reads the resolv.conf files, opens no socket and starts
// no goroutine. It fails when a target cannot be used or a file cannot be read,
// and with [ErrNoUpstream] when there are only addresses and all were left out.
func New(cfg Config) (*Pool, error) {
	cfg = withDefaults(cfg)
	p := &Pool{common: &common{dial: cfg.Dial, rand: cfg.Rand, now: cfg.Now, log: cfg.Log}}
	p.scratch.New = func() any { return new(scratch) }
	files := 0
	var left []netip.AddrPort
	for i, t := range cfg.Targets {
		src, err := newSource(cfg, t)
		if err != nil {
			return nil, fmt.Errorf("reading target %d: %w", i, err)
		}
		if src.file != nil {
			files++
		} else if cfg.Self(t.Addr) {
			left = append(left, t.Addr)
			continue
		}
		p.sources = append(p.sources, src)
	}
	p.rebuild()
	if len(*p.list.Load()) == 0 {
		if files == 0 {
			return nil, ErrNoUpstream
		}
		cfg.Log.Warn("no upstream in any resolv.conf")
	}
	for _, addr := range left {
		cfg.Log.Warn("upstream left out: it leads back here", "upstream", addr)
	}
	return p, nil
}

func withDefaults(cfg Config) Config {
	if cfg.Dial == nil {
		cfg.Dial = dial
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.Reader
	}
	if cfg.Now == nil {
		cfg.Now = time.Now //nolint:forbidigo // the default of an injected clock
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Self == nil {
		cfg.Self = func(netip.AddrPort) bool { return false }
	}
	if cfg.SystemdResolvConf == "" {
		cfg.SystemdResolvConf = "/run/systemd/resolve/resolv.conf"
	}
	return cfg
}

func newSource(cfg Config, t Target) (source, error) {
	if t.ResolvConf != "" {
		f := &resolvConf{path: t.ResolvConf, systemd: cfg.SystemdResolvConf, self: cfg.Self, log: cfg.Log}
		return source{file: f}, f.first()
	}
	if t.Network != "udp" && t.Network != "tcp" {
		return source{}, fmt.Errorf("network %q: %w", t.Network, errors.ErrUnsupported)
	}
	if !t.Addr.IsValid() || t.Addr.Port() == 0 {
		return source{}, fmt.Errorf("address %q: %w", t.Addr, ErrNoUpstream)
	}
	return source{network: t.Network, addr: t.Addr}, nil
}

// rebuild publishes the list the sources give now. What was in the list before
// keeps its endpoint, and with it latency, counters and connections. It returns
// the endpoints that fell out.
func (p *Pool) rebuild() []*endpoint {
	type key struct {
		network string
		addr    netip.AddrPort
	}
	known := map[key]*endpoint{}
	if old := p.list.Load(); old != nil {
		for _, e := range *old {
			known[key{e.network, e.addr}] = e
		}
	}
	list, seen := []*endpoint{}, map[key]bool{}
	add := func(network string, addr netip.AddrPort) {
		k := key{network, addr}
		if seen[k] {
			return
		}
		seen[k] = true
		e := known[k]
		if e == nil {
			e = newEndpoint(p.common, network, addr)
		}
		delete(known, k)
		list = append(list, e)
	}
	for _, src := range p.sources {
		if src.file == nil {
			add(src.network, src.addr)
			continue
		}
		for _, addr := range src.file.servers {
			add("udp", addr)
		}
	}
	p.list.Store(&list)
	gone := make([]*endpoint, 0, len(known))
	for _, e := range known {
		gone = append(gone, e)
	}
	return gone
}

// Run follows the resolv.conf files until ctx ends. Then it closes the TCP
// connections, each after its last query, and returns nil when all are closed.
// Exchange works before, during and after; afterwards it keeps no connection.
func (p *Pool) Run(ctx context.Context) error {
	p.follow(ctx)
	leaving := slices.Concat(p.leaving, *p.list.Load())
	for _, e := range leaving {
		e.streams.retire()
	}
	for _, e := range leaving {
		e.streams.wait()
	}
	return nil
}

// choose picks the upstreams of one exchange, the best first.
func (p *Pool) choose() []side {
	list := *p.list.Load()
	now := p.now()
	sides := make([]side, 0, maxSides+1)
	var scores [maxSides + 1]time.Duration
	for _, e := range list {
		score, patience := e.score(now)
		at := len(sides)
		sides = append(sides, side{})
		for ; at > 0 && scores[at-1] > score; at-- {
			sides[at], scores[at] = sides[at-1], scores[at-1]
		}
		sides[at], scores[at] = side{ep: e, patience: patience}, score
		sides = sides[:min(len(sides), maxSides)]
	}
	if len(sides) == maxSides {
		// The first may be one that fared badly and is due to be tried again.
		// The client need not wait for it longer than for the other.
		sides[0].patience = min(sides[0].patience, sides[1].patience)
	}
	return sides
}

// recovered counts and logs a panic at the root of a goroutine. It is of use
// only when deferred there; then tell ends what the goroutine was to do.
func (c *common) recovered(ctx context.Context, tell func()) {
	r := recover()
	if r == nil {
		return
	}
	c.panics.Add(1)
	c.log.ErrorContext(ctx, "panic recovered", "panic", r, "stack", string(debug.Stack()))
	tell()
}
