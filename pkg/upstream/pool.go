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
	sources       []*source  // one per target, in order; after New only Run uses them
	systemdPath   string     // Config.SystemdResolvConf
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
	p := &Pool{endpoints: cfg.Endpoints, policy: cfg.Policy, self: cfg.Self, systemdPath: cfg.SystemdResolvConf, maxCandidates: targetCandidates, common: &common{
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
		src := &source{target: t, pool: p}
		check := t.check
		if src.isFile() {
			check = src.load
			files++
		}
		if err := check(); err != nil {
			return fmt.Errorf("target %d: %w", i, err)
		}
		if !src.isFile() && p.self(t.Addr) {
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

// Stats are the counters of a pool since it was made.
type Stats struct {
	Servers []ServerStats // in the order of the configuration
	Panics  uint64        // recovered; each is also logged with its stack
}

// ServerStats are the counters of one upstream.
type ServerStats struct {
	Network     string // "udp", "tcp", "tls" or "https"
	Name        string // in the server's certificate, if configured
	Addr        netip.AddrPort
	Far         bool                       // in another zone
	LastResort  bool                       // used only while no other upstream is healthy
	Requests    uint64                     // attempts; TCP after a truncated answer is part of its attempt
	Failures    [NumCauses]uint64          // by Cause; one attempt may count several
	Truncated   uint64                     // UDP answers with TC set
	SRTT        time.Duration              // smoothed round trip, including penalties; 0: unknown
	P95         time.Duration              // of recent round trips, approximate; 0: unknown
	RTTs        [len(rttBounds) + 1]uint64 // good answers by round trip, see RTTBounds; the last bucket has no bound
	RTTSum      time.Duration              // sum of these round trips
	Hedged      uint64                     // late attempts that were hedged
	Won         uint64                     // good answers to hedges and to retries
	Outstanding int                        // pending attempts
	Failing     bool                       // the latest attempts failed; it is being probed
	Down        bool                       // failing for so long that it gets no queries
	Looped      bool                       // queries to it come back here; it gets none
	Probes      uint64                     // sent while it failed
	Limitations []string                   // what it is known not to support
	Sockets     int                        // open UDP sockets
	Open        int                        // connections open or opening
	Opened      uint64                     // connections ever opened
	Resumed     uint64                     // of them, resumed TLS sessions
	LastError   string                     // why the latest connection ended before an answer came on it; empty once one has come
}

// A State summarizes the health of an upstream.
type State uint8

// The states, a closed set. The last one that applies counts.
const (
	StateGood    State = iota
	StateFailing       // its latest attempts failed: it is asked after all others, and probed
	StateDown          // failing for so long that it gets only probes
	StateLooped        // queries to it come back here: it gets only probes
	NumStates          // number of states
)

// String returns the state as a metric label.
func (s State) String() string { return label(int(s), "good", "failing", "down", "looped") }

// State returns the state of the upstream.
func (s *ServerStats) State() State {
	switch {
	case s.Looped:
		return StateLooped
	case s.Down:
		return StateDown
	case s.Failing:
		return StateFailing
	}
	return StateGood
}

// counters are the counters of one upstream.
type counters struct {
	requests  atomic.Uint64
	failures  [NumCauses]atomic.Uint64
	truncated atomic.Uint64
	resumed   atomic.Uint64 // TLS sessions
	hedged    atomic.Uint64
	won       atomic.Uint64
	probes    atomic.Uint64
	rtts      [len(rttBounds) + 1]atomic.Uint64
	rttSum    atomic.Int64 // ns
}

// rttBounds are the upper bounds of the round trip histogram.
var rttBounds = [...]time.Duration{ //nolint:gochecknoglobals // a constant in all but name
	250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
	500 * time.Millisecond, time.Second, 2500 * time.Millisecond,
}

// RTTBounds returns the upper bounds of [ServerStats].RTTs.
func RTTBounds() []time.Duration { return rttBounds[:] }

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

func (e *endpoint) stats() ServerStats {
	s := ServerStats{
		Network: e.Network, Name: e.Name, Addr: e.Addr, Far: e.far,
		Requests: e.count.requests.Load(), Truncated: e.count.truncated.Load(),
		Hedged: e.count.hedged.Load(), Won: e.count.won.Load(), Probes: e.count.probes.Load(),
		RTTSum: time.Duration(e.count.rttSum.Load()), Outstanding: int(e.outstanding.Load()),
		Failing: e.failing.Load(), Down: e.down.Load(), Looped: e.loopMonitor.looping.Load(),
	}
	for i := range s.RTTs {
		s.RTTs[i] = e.count.rtts[i].Load()
	}
	for cause := range s.Failures {
		s.Failures[cause] = e.count.failures[cause].Load()
	}
	if e.sockets != nil {
		s.Sockets, _ = e.sockets.openCount()
	}
	s.Open, s.Opened = e.conns.openCount()
	s.Resumed, s.LastError = e.count.resumed.Load(), e.conns.lastError()
	now := e.now()
	e.mu.Lock()
	s.SRTT, s.P95 = e.latency.srtt, e.latency.p95
	s.Limitations = e.capabilities.limitations(now)
	e.mu.Unlock()
	return s
}
