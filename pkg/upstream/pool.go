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

// Config says whom a pool asks and with what means.
type Config struct {
	// Targets is a route's list, in the order of the configuration.
	Targets []Target
	// Policy is the order in which they are asked.
	Policy Policy
	// Follow is servers that come and go, asked over TCP. It stands in place of
	// Targets.
	Endpoints *Endpoints
	// Connections is how many connections of TCP or TLS, or sessions of HTTPS, the queries to one upstream share, 1 to
	// 16. There are up to twice as many and two more while some are full or silent, or give way to new ones. 0: 1.
	Connections int
	// Rate is the most queries a second that each upstream gets, with a tenth of them at once; what is more goes to
	// another. 0: no bound.
	Rate float64
	// PlainCase leaves the letters of names as they are. They are otherwise sent over UDP in random case, to be held
	// against the answer's, unless an upstream has shown that it does not keep them.
	NoRandomCase bool
	// TrustAD leaves the AD flag of answers as it came. Otherwise that is only done of answers over TLS and HTTPS: on
	// other ways anybody between may set it (RFC 6840 section 5.8 allows it over secure ways only).
	TrustAD bool
	// Loops finds the upstreams that lead back to this process. Nil: they are not looked for.
	LoopDetector *LoopDetector
	// Zone is the name at or below which the pool is asked, canonical and in wire form: what Loops asks for is below it.
	// It is of use with Loops only.
	Zone []byte
	// Dial opens a connected socket; network is "udp" or "tcp". It must heed
	// ctx. Nil: a net.Dialer.
	Dial func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	// Mark is the mark of the packets to the upstreams (SO_MARK), where Dial is nil.
	// Without the right to it, which is NET_ADMIN, the sockets stay as they are and
	// Log takes one error. 0: none.
	Mark uint32
	// Rand gives IDs, the case of letters and the draw of sockets. It is read from many goroutines at once. Nil:
	// crypto/rand.
	Rand io.Reader
	// Now is the clock, which must go as fast as timers do. Nil: time.Now.
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
	Network    string // "udp", "tcp", "tls" or "https"; unused with ResolvConf
	Addr       netip.AddrPort
	Name       string // TLS and HTTPS: the host that the certificate must be for; empty: the address
	CAFile     string // TLS and HTTPS: path of the authorities in PEM, read again when it changes; empty: the system's
	Path       string // HTTPS: of the URL; empty: /dns-query
	Method     string // HTTPS: "GET" or "POST"; empty: POST
	ResolvConf string // path of a resolv.conf, which stands for its nameservers
}

// A Pool asks a route's upstreams. Its methods may be called from any goroutine.
type Pool struct {
	*common
	sources       []source   // one per target, in order; after New only Run touches them
	endpoints     *Endpoints // nil: sources
	policy        Policy     // of sources
	hedgeBudget   hedgeBudget
	timers        timerHeap
	self          func(netip.AddrPort) bool // Config's
	maxCandidates int                       // upstreams asked for one query
	snapshot      atomic.Pointer[snapshot]  // of one moment; current has that of now

	mu       sync.Mutex  // guards replacing list, and the fields below
	draining []*endpoint // fell out of the list, may still have connections
	runEnded bool        // Run has: keep no connection without a query
}

// common is what all upstreams of a pool share.
type common struct {
	dial         func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	rand         io.Reader
	now          func() time.Time
	log          *slog.Logger
	connections  int     // per upstream
	rate         float64 // queries a second to each; 0: no bound
	randomCase   bool
	trustAD      bool
	loopDetector *LoopDetector // nil: none are looked for
	zone         []byte        // the names that are asked for
	panics       atomic.Uint64
}

// A source gives a part of the list: one fixed address, or a followed file.
type source struct {
	target     Target
	resolvConf *resolvConf // nil: the target's address
}

// New makes a pool. It reads the resolv.conf files, opens no socket and starts
// no goroutine. It fails when a target cannot be used or a file cannot be read,
// and with [ErrNoUpstream] when there are only addresses and all were left out.
// Endpoints to follow may be none.
func New(cfg Config) (*Pool, error) {
	cfg = withDefaults(cfg)
	if cfg.Connections < 1 || cfg.Connections > maxConnections {
		return nil, fmt.Errorf("reading connections %d: not between 1 and %d", cfg.Connections, maxConnections)
	}
	if cfg.Endpoints != nil && len(cfg.Targets) > 0 {
		return nil, fmt.Errorf("following endpoints beside targets: %w", errors.ErrUnsupported)
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

// readTargets makes the first list of a pool that follows no endpoints.
func (p *Pool) readTargets(cfg Config) error {
	files := 0
	var left []netip.AddrPort
	for i, t := range cfg.Targets {
		src, err := newSource(cfg, t)
		if err != nil {
			return fmt.Errorf("reading target %d: %w", i, err)
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
		cfg.Log.Warn("upstream left out: it leads back here", "upstream", addr)
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

// Run follows the resolv.conf files or endpoints until ctx ends. Then it closes
// sockets and connections, each after its last query, and returns nil when all are
// closed. Ask and Exchange work before, during and after; afterwards they keep
// nothing open.
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

// recovered counts and logs a panic at the root of a goroutine. It is of use
// only when deferred there; then tell ends what the goroutine was to do.
func (c *common) recoverPanic(ctx context.Context, tell func()) {
	r := recover()
	if r == nil {
		return
	}
	c.logPanic(ctx, r, debug.Stack())
	tell()
}

// defect counts and logs a panic that was recovered.
func (c *common) logPanic(ctx context.Context, panicked any, stack []byte) {
	c.panics.Add(1)
	c.log.ErrorContext(ctx, "panic recovered", "panic", panicked, "stack", string(stack))
}

// Ask asks q, a whole query whose ID does not matter and whose EDNS size is not above 4096. It calls to.Answered once,
// at the deadline until at the latest and maybe before it returns: with the whole answer, which has q's ID and the
// response code NOERROR or NXDOMAIN, and AD only where it is to be believed ([Config.TrustAD]), or with a [*Failure].
// The answer's question has the letters that it was asked with, which may be mixed: they tell what else the server has
// copied them to, see [wire.Message.CanonicalizeQuestion]. q is kept and must not change any more, not even then: a try that
// lost to another may still be on its way. Queries leave when later is flushed at the latest.
func (p *Pool) Ask(q []byte, until time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	if _, failure := p.start(q, until, to, batch); failure != nil {
		to.Answered(nil, failure, batch)
	}
}

// begin begins a race, unless it is lost from the start.
func (p *Pool) start(q []byte, until time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) (*exchange, *Failure) {
	if len(q) < wire.HeaderLen {
		return nil, &Failure{Reason: Malformed, Err: errShortQuery}
	}
	snap := p.currentSnapshot()
	if len(snap.all) == 0 {
		return nil, p.noUpstreamFailure()
	}
	now := p.now()
	x := &exchange{pool: p, query: q, deadline: until, asker: to, snapshot: snap, candidates: p.selectCandidates(snap, q, now)}
	if x.candidates.count == 0 {
		return nil, &Failure{Reason: snap.downReason(), Err: errAllDown}
	}
	p.hedgeBudget.earn()
	if x.start(now, batch) {
		return nil, &x.failure
	}
	return x, nil
}

// nobody is the failure of a query when there is no upstream.
func (p *Pool) noUpstreamFailure() *Failure {
	if p.endpoints != nil {
		return &Failure{Reason: NoUpstream, Err: errNoEndpoint}
	}
	return &Failure{Reason: NoUpstream, Err: ErrNoUpstream}
}

// Exchange is Ask for those who wait. It appends the answer to dst, its question in the letters of q, and ends with ctx,
// which should carry a deadline. Its error is a [*Failure], and dst then as it was. q is not changed and, like dst, not kept.
func (p *Pool) Exchange(ctx context.Context, q, dst []byte) ([]byte, error) {
	until, limited := ctx.Deadline()
	if !limited {
		until = p.now().Add(time.Hour)
	}
	var batch wire.SendBatch
	w := waiter{answer: dst, done: make(chan struct{})}
	x, failure := p.start(append([]byte(nil), q...), until, &w, &batch) //nolint:contextcheck // ctx is looked at below
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

// An exchange waits for its answer.
type waiter struct {
	answer []byte // what it begins with is the caller's
	err    error
	done   chan struct{} // closed when the fields above are final
}

// Answered implements [wire.AnswerReceiver].
func (w *waiter) Answered(answer []byte, err error, _ *wire.SendBatch) {
	w.answer, w.err = append(w.answer, answer...), err
	close(w.done)
}

// check says what is wrong with a target that is an address. The authorities must be readable: a typing error in the
// path is not to be found out by the first query.
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
	if t.CAFile == "" {
		return nil
	}
	_, err := readCAFile(t.CAFile)
	return err
}

// checkWeb looks at what only HTTPS has.
func (t Target) checkHTTPS() error {
	if t.Method != "" && t.Method != "GET" && t.Method != "POST" {
		return fmt.Errorf("method %q: %w", t.Method, errors.ErrUnsupported)
	}
	if t.Path != "" && (!strings.HasPrefix(t.Path, "/") || strings.ContainsAny(t.Path, "?# ")) {
		return fmt.Errorf("path %q: not a path from the root, without a query", t.Path)
	}
	return nil
}
