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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Config configures a pool.
type Config struct {
	// Targets are the upstreams of a route, in the order of the configuration.
	Targets []Target
	// Policy is the order in which targets are asked.
	Policy Policy
	// Endpoints are servers that change over time, asked over TCP. They replace Targets.
	Endpoints *Endpoints
	// Connections is how many TCP, TLS or HTTPS connections the queries to one upstream share, 1 to 16. There are up
	// to twice as many and two more while some are full, silent or being replaced. 0: 1.
	Connections int
	// Rate is the limit of queries per second to each upstream, with bursts of a tenth of it. Excess queries go to
	// another upstream. 0: no limit.
	Rate float64
	// NoRandomCase turns off 0x20. Otherwise names are sent over UDP in random case, which the answer must repeat,
	// unless the upstream is known to change the case.
	NoRandomCase bool
	// TrustAD keeps the AD flag of all answers. By default only answers over TLS and HTTPS keep it: on other
	// transports any host on the path may set it (RFC 6840 section 5.8).
	TrustAD bool
	// LoopDetector finds the upstreams that lead back to this process. Nil: no detection.
	LoopDetector *LoopDetector
	// Zone is the name at or below which the pool is asked, canonical and in wire form. Loop probes ask for names
	// below it.
	Zone []byte
	// Dial opens a connected socket; network is "udp" or "tcp". It must honor ctx. Nil: a net.Dialer.
	Dial func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	// Mark is the SO_MARK of the packets to the upstreams if Dial is nil. Without the capability NET_ADMIN the
	// sockets stay unmarked and Log gets one error. 0: none.
	Mark uint32
	// Rand is the source of IDs, case and ports. It must be safe for concurrent use. Nil: crypto/rand.
	Rand io.Reader
	// Now is the clock, which must run as fast as timers do. Nil: time.Now.
	Now func() time.Time
	// Log gets warnings about excluded upstreams. Nil: none.
	Log *slog.Logger
	// Self reports whether an address is one of this process's listeners. Nil: never.
	Self func(netip.AddrPort) bool
	// SystemdResolvConf is read instead of a resolv.conf that names only the stub of systemd-resolved. Empty:
	// /run/systemd/resolve/resolv.conf.
	SystemdResolvConf string
}

// A Target is one entry of a route's list: an address, or a file of addresses.
type Target struct {
	Network    string // "udp", "tcp", "tls" or "https"; unused with ResolvConf
	Addr       netip.AddrPort
	Name       string // TLS and HTTPS: server name in the certificate; empty: the address
	CAFile     string // TLS and HTTPS: path of the CA certificates in PEM, reloaded when the file changes; empty: those of the system
	Path       string // HTTPS: of the URL; empty: /dns-query
	Method     string // HTTPS: "GET" or "POST"; empty: POST
	ResolvConf string // path of a resolv.conf with the nameservers to use
	far        bool   // [Server].Far
}

// A Pool asks the upstreams of a route. Its methods are safe for concurrent use.
type Pool struct {
	*common
	sources       []source   // one per target, in order; after New only Run uses them
	endpoints     *Endpoints // nil: sources
	policy        Policy     // for sources
	hedgeBudget   hedgeBudget
	timers        timerHeap
	self          func(netip.AddrPort) bool // Config.Self
	maxCandidates int                       // upstreams asked for one query
	snapshot      atomic.Pointer[snapshot]  // may be outdated; currentSnapshot returns the current one

	mu       sync.Mutex  // guards changes of snapshot, and the fields below
	draining []*endpoint // removed from the list, may still have connections
	runEnded bool        // Run has returned: keep no idle connections
}

// common is what all upstreams of a pool share.
type common struct {
	dial         func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	rand         io.Reader
	now          func() time.Time
	log          *slog.Logger
	connections  int     // per upstream
	rate         float64 // queries per second to each; 0: no limit
	randomCase   bool
	trustAD      bool
	loopDetector *LoopDetector // nil: no detection
	zone         []byte        // the names that the pool is asked for
	panics       atomic.Uint64
}

// A source provides a part of the list: one address, or the addresses of a file.
type source struct {
	target     Target
	resolvConf *resolvConf // nil: the target's address
}

// New makes a pool. It reads the resolv.conf files, but opens no socket and starts no goroutine. It fails if a target
// is invalid or a file cannot be read. It fails with [ErrNoUpstream] if there are only addresses and all were
// excluded. Endpoints may be empty.
func New(cfg Config) (*Pool, error) {
	cfg = withDefaults(cfg)
	if cfg.Connections < 1 || cfg.Connections > maxConnections {
		return nil, fmt.Errorf("connections %d: not between 1 and %d", cfg.Connections, maxConnections)
	}
	if cfg.Endpoints != nil && len(cfg.Targets) > 0 {
		return nil, fmt.Errorf("endpoints together with targets: %w", errors.ErrUnsupported)
	}
	p := &Pool{endpoints: cfg.Endpoints, policy: cfg.Policy, self: cfg.Self, maxCandidates: targetCandidates, common: &common{
		dial: cfg.Dial, rand: cfg.Rand, now: cfg.Now, log: cfg.Log, connections: cfg.Connections,
		rate: cfg.Rate, randomCase: !cfg.NoRandomCase, trustAD: cfg.TrustAD, loopDetector: cfg.LoopDetector, zone: cfg.Zone,
	}}
	p.timers.common = p.common
	p.snapshot.Store(&snapshot{})
	if p.endpoints != nil {
		p.maxCandidates = endpointCandidates
		p.currentSnapshot()
		return p, nil
	}
	if err := p.readTargets(cfg); err != nil {
		return nil, err
	}
	return p, nil
}

// readTargets builds the first list of a pool with targets.
func (p *Pool) readTargets(cfg Config) error {
	files := 0
	var left []netip.AddrPort
	for i, t := range cfg.Targets {
		src, err := newSource(cfg, t)
		if err != nil {
			return fmt.Errorf("target %d: %w", i, err)
		}
		if src.resolvConf != nil {
			files++
		} else if cfg.Self(t.Addr) {
			left = append(left, t.Addr)
			continue
		}
		p.sources = append(p.sources, src)
	}
	p.publishSources()
	if p.Empty() {
		if files == 0 {
			return ErrNoUpstream
		}
		cfg.Log.Warn("no upstream in any resolv.conf")
	}
	for _, addr := range left {
		cfg.Log.Warn("upstream excluded", "reason", "own address", "upstream", addr)
	}
	return nil
}

func withDefaults(cfg Config) Config {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Dial == nil {
		cfg.Dial = (&dialer{mark: cfg.Mark, log: cfg.Log}).dial
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.Reader
	}
	if cfg.Now == nil {
		cfg.Now = time.Now //nolint:forbidigo // the default of an injected clock
	}
	if cfg.Self == nil {
		cfg.Self = func(netip.AddrPort) bool { return false }
	}
	if cfg.Connections == 0 {
		cfg.Connections = 1
	}
	if cfg.SystemdResolvConf == "" {
		cfg.SystemdResolvConf = "/run/systemd/resolve/resolv.conf"
	}
	return cfg
}

func newSource(cfg Config, t Target) (source, error) {
	if t.ResolvConf != "" {
		f := &resolvConf{path: t.ResolvConf, systemdPath: cfg.SystemdResolvConf, self: cfg.Self, log: cfg.Log}
		return source{resolvConf: f}, f.load()
	}
	if err := t.check(); err != nil {
		return source{}, err
	}
	return source{target: t}, nil
}

// Run watches the resolv.conf files or endpoints until ctx ends. Then it closes each socket and connection after its
// last query, and returns nil when all are closed. Ask and Exchange work before, during and after Run; afterwards
// they keep nothing open.
func (p *Pool) Run(ctx context.Context) error {
	if p.endpoints != nil {
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
		e.closeIdle()
	}
	for _, e := range leaving {
		e.wait()
	}
	return nil
}

// recoverPanic counts and logs a panic at the root of a goroutine, and then calls onPanic. It must be deferred
// directly.
func (c *common) recoverPanic(ctx context.Context, onPanic func()) {
	r := recover()
	if r == nil {
		return
	}
	c.logPanic(ctx, r, debug.Stack())
	onPanic()
}

// logPanic counts and logs a recovered panic.
func (c *common) logPanic(ctx context.Context, panicked any, stack []byte) {
	c.panics.Add(1)
	c.log.ErrorContext(ctx, "panic recovered", "panic", panicked, "stack", string(stack))
}

// Ask sends q, a whole query with any ID and an EDNS size of at most 4096. It calls to.Answered once, at the latest
// at deadline and possibly before Ask returns: with a whole answer or with a [*Failure]. The answer has q's ID, the
// response code NOERROR or NXDOMAIN, and AD only as [Config.TrustAD] permits.
//
// The question in the answer has the case that was sent, which may be random. The case shows which other names the
// server copied from it, see [wire.Message.CanonicalizeQuestion].
//
// Ask keeps q, which must not change any more, not even after Answered: a losing attempt may still be sending it.
// Queries leave when batch is flushed at the latest.
func (p *Pool) Ask(q []byte, deadline time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	if _, failure := p.start(q, deadline, to, batch); failure != nil {
		to.Answered(nil, failure, batch)
	}
}

// start starts an exchange, or returns why it failed at once.
func (p *Pool) start(q []byte, deadline time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) (*exchange, *Failure) {
	if len(q) < wire.HeaderLen {
		return nil, &Failure{Reason: Malformed, Err: errShortQuery}
	}
	snap := p.currentSnapshot()
	if len(snap.all) == 0 {
		if p.endpoints != nil {
			return nil, &Failure{Reason: NoUpstream, Err: errNoEndpoint}
		}
		return nil, &Failure{Reason: NoUpstream, Err: ErrNoUpstream}
	}
	now := p.now()
	x := &exchange{pool: p, query: q, deadline: deadline, receiver: to, snapshot: snap, candidates: p.selectCandidates(snap, q, now)}
	if x.candidates.count == 0 {
		return nil, &Failure{Reason: snap.downReason(), Err: errAllDown}
	}
	p.hedgeBudget.earn()
	if x.start(now, batch) {
		return nil, &x.failure
	}
	return x, nil
}

// Exchange is a blocking Ask. It appends the answer to dst, with the question in the case of q. It ends with ctx,
// which should have a deadline. On error, a [*Failure], it returns dst unchanged. It does not change q, and keeps
// neither q nor dst.
func (p *Pool) Exchange(ctx context.Context, q, dst []byte) ([]byte, error) {
	deadline, limited := ctx.Deadline()
	if !limited {
		deadline = p.now().Add(time.Hour)
	}
	var batch wire.SendBatch
	w := waiter{answer: dst, done: make(chan struct{})}
	x, failure := p.start(append([]byte(nil), q...), deadline, &w, &batch) //nolint:contextcheck // ctx is used below
	batch.Flush()
	if failure != nil {
		return dst, failure
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		if x.abort(ctx.Err()) {
			return dst, &x.failure
		}
		<-w.done
	}
	if w.err == nil {
		wire.CopyQuestion(w.answer[len(dst):], q)
	}
	return w.answer, w.err
}

// A waiter waits for the answer of an exchange.
type waiter struct {
	answer []byte // begins with the caller's bytes
	err    error
	done   chan struct{} // closed when the fields above are final
}

// Answered implements [wire.AnswerReceiver].
func (w *waiter) Answered(answer *wire.Message, err error, _ *wire.SendBatch) {
	if w.err = err; err == nil {
		w.answer = append(w.answer, answer.Raw...)
	}
	close(w.done)
}

// check validates a target with an address. It reads the CA file, so that a wrong path is reported before the first
// query.
func (t Target) check() error {
	if !t.Addr.IsValid() || t.Addr.Port() == 0 {
		return fmt.Errorf("address %q: %w", t.Addr, ErrNoUpstream)
	}
	secure, web := t.Name != "" || t.CAFile != "", t.Path != "" || t.Method != ""
	switch t.Network {
	case "udp", "tcp":
		if secure || web {
			return fmt.Errorf("name, authorities, path or method with network %q: %w", t.Network, errors.ErrUnsupported)
		}
	case "tls":
		if web {
			return fmt.Errorf("path or method with network %q: %w", t.Network, errors.ErrUnsupported)
		}
	case "https":
		if err := t.checkHTTPS(); err != nil {
			return err
		}
	default:
		return fmt.Errorf("network %q: %w", t.Network, errors.ErrUnsupported)
	}
	_, _, err := readCAFile(t.CAFile)
	return err
}

// checkHTTPS validates the fields that only HTTPS has.
func (t Target) checkHTTPS() error {
	if t.Method != "" && t.Method != "GET" && t.Method != "POST" {
		return fmt.Errorf("method %q: %w", t.Method, errors.ErrUnsupported)
	}
	if t.Path != "" && (!strings.HasPrefix(t.Path, "/") || strings.ContainsAny(t.Path, "?# ")) {
		return fmt.Errorf("path %q: must begin with / and have no query", t.Path)
	}
	return nil
}

// currentSnapshot returns the current list.
func (p *Pool) currentSnapshot() *snapshot {
	snap := p.snapshot.Load()
	if p.endpoints == nil || snap.members == p.endpoints.load() {
		return snap
	}
	return p.refreshSnapshot()
}
