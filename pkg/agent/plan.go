// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/rules"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// A running is one configuration put to work.
type running struct {
	config  config.Config
	cache   *cache.Cache
	routes  []route  // in the order of the configuration
	cluster *cluster // nil: there is none
	// fallback is asked while all upstreams of a route are down; nil: no server is.
	fallback *fallbackPool
	probes   []*probing
	fixture  *fixture // nil: there are no hosts and no templates
}

// A route is a part of the configuration and its pool. The pool outlives a reload
// that leaves the zone's upstreams as they are, with what it knows of them.
type route struct {
	config.Route
	pool *upstream.Pool
}

// samePool tells whether the pool of one route can serve another.
func samePool(a, b config.Route) bool {
	a.ClientSubnet = b.ClientSubnet
	a.MinTTL, a.MaxTTL, a.NegativeTTL, a.NoCache, a.NoFallback = b.MinTTL, b.MaxTTL, b.NegativeTTL, b.NoCache, b.NoFallback
	return reflect.DeepEqual(a, b)
}

// build makes what cfg asks for, taking over from old what stays. It opens
// nothing and starts nothing, so that a failure leaves old as it is; a defect
// is such a failure.
func (a *Agent) build(cfg config.Config, old *running) (r *running, err error) {
	defer func() {
		if defect := recover(); defect != nil {
			a.panics.Add(1)
			a.log.Error("recovered from a panic", "where", "config", "panic", fmt.Sprint(defect), "stack", string(debug.Stack()))
			r, err = nil, fmt.Errorf("building what the configuration asks for: %w", errDefect)
		}
	}()
	r = &running{config: cfg}
	for i, forward := range cfg.Forward {
		pool, err := a.poolFor(cfg, forward, old)
		if err != nil {
			return nil, poolProblem(fmt.Errorf("forward[%d]: zone %q to %s: %w", i, forward.Zone, forward.To, err))
		}
		r.routes = append(r.routes, route{Route: forward, pool: pool})
	}
	if r.cache, err = a.cacheFor(cfg.Cache, old); err != nil {
		return nil, fmt.Errorf("making the cache: %w", err)
	}
	if r.cluster, err = a.clusterFor(&r.config, old); err != nil {
		return nil, err
	}
	if r.fallback, err = a.fallbackFor(r, old); err != nil {
		return nil, fmt.Errorf("intercept.fallback: %w", err)
	}
	if r.fixture, err = a.fixtureFor(&r.config, old); err != nil {
		return nil, err
	}
	if r.probes, err = a.probesFor(&r.config, old); err != nil {
		return nil, err
	}
	return r, nil
}

func poolProblem(err error) error {
	switch {
	case errors.Is(err, upstream.ErrNoUpstream):
		return &HintError{Err: err, Hint: "every upstream of this zone is an address that node-cache itself listens on; name another server"}
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission):
		return &HintError{Err: err, Hint: "name a resolv.conf that this user can read, or an upstream's address"}
	}
	return err
}

// poolFor is old's pool of the zone if its upstreams are the same, else a new one.
func (a *Agent) poolFor(cfg config.Config, forward config.Route, old *running) (*upstream.Pool, error) {
	if old != nil {
		for _, r := range old.routes {
			if samePool(r.Route, forward) {
				return r.pool, nil
			}
		}
	}
	upstreams := forward.Upstreams()
	targets := make([]upstream.Target, 0, len(upstreams))
	for _, to := range upstreams {
		targets = append(targets, target(to, forward))
	}
	suffix, err := wireName(forward.Zone)
	if err != nil {
		return nil, err
	}
	return upstream.New(upstream.Config{
		Targets:      targets,
		Policy:       policies()[forward.Policy],
		Connections:  forward.Connections,
		Rate:         float64(forward.Rate),
		NoRandomCase: forward.PlainCase,
		TrustAD:      forward.TrustAD,
		LoopDetector: a.loops,
		Zone:         suffix,
		Dial:         a.options.Dial,
		Mark:         mark(&cfg),
		Log:          a.log.With("zone", forward.Zone),
		Self:         func(addr netip.AddrPort) bool { return leadsBack(addr, cfg.Listen) },
	})
}

func policies() map[config.Policy]upstream.Policy {
	return map[config.Policy]upstream.Policy{
		config.PolicyFastest: upstream.Fastest, config.PolicySequential: upstream.Sequential, config.PolicyRandom: upstream.Random,
	}
}

// mark is what the sockets to upstreams carry, so that a rule of ours that leads to
// the agent leaves their packets alone.
func mark(cfg *config.Config) uint32 {
	if cfg.Intercept.Manage {
		return rules.Mark
	}
	return 0
}

func target(to config.Target, route config.Route) upstream.Target {
	switch to.Kind {
	case config.TCP:
		return upstream.Target{Network: "tcp", Addr: to.Addr}
	case config.TLS:
		return upstream.Target{Network: "tls", Addr: to.Addr, Name: to.Name, CAFile: route.CA}
	case config.HTTPS:
		method := map[config.HTTPMethod]string{config.MethodPost: http.MethodPost, config.MethodGet: http.MethodGet}[route.Method]
		return upstream.Target{Network: "https", Addr: to.Addr, Name: to.Name, CAFile: route.CA, Path: to.Path, Method: method}
	case config.ResolvConf:
		return upstream.Target{ResolvConf: to.Path}
	case config.Plain:
	}
	return upstream.Target{Network: "udp", Addr: to.Addr}
}

// leadsBack tells whether a query sent to addr would reach a listener of ours.
func leadsBack(addr netip.AddrPort, listen config.Listen) bool {
	if addr.Port() != listen.Port {
		return false
	}
	ip := addr.Addr()
	switch ip { // resolv.conf(5) files have these, and the kernel sends what is for them to the loopback
	case netip.IPv4Unspecified():
		ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case netip.IPv6Unspecified():
		ip = netip.IPv6Loopback()
	}
	for _, own := range listen.Addresses {
		if own == ip || own.IsUnspecified() && isLocal(ip) {
			return true
		}
	}
	return false
}

// isLocal tells whether an address is this machine's.
func isLocal(addr netip.Addr) bool {
	return addr.IsLoopback() || slices.Contains(localAddrs(), addr.WithZone(""))
}

// localTo tells the clients on this machine from others, as far as the answers that
// they get tell who they are: they ask from a loopback address, or, as the kernel has
// it, from the very address that they ask. On a socket of all addresses that may be
// any that the machine has now.
func localTo(listen []netip.Addr) func(netip.Addr) bool {
	own := slices.Clone(listen)
	if slices.ContainsFunc(listen, netip.Addr.IsUnspecified) {
		own = append(own, localAddrs()...)
	}
	own = slices.DeleteFunc(own, netip.Addr.IsUnspecified)
	return func(client netip.Addr) bool {
		client = client.Unmap().WithZone("")
		return client.IsLoopback() || slices.Contains(own, client)
	}
}

// localAddrs are this machine's addresses, none if it does not tell.
func localAddrs() []netip.Addr {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	local := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			local = append(local, prefix.Addr())
		}
	}
	return local
}

// cacheFor is old's cache, whatever its size is to be, else a new one: resize makes old's
// as large as it is to be once nothing can go wrong any more.
func (a *Agent) cacheFor(cfg config.Cache, old *running) (*cache.Cache, error) {
	if old != nil {
		return old.cache, nil
	}
	return cache.New(cacheConfig(cfg), time.Now())
}

// resize makes the cache of r, which is old's, as large as it is to be. After that old's
// is empty and leads on to it.
func (r *running) resize(old *running) error {
	if old.config.Cache.Size == r.config.Cache.Size {
		return nil
	}
	resized, err := old.cache.Resized(cacheConfig(r.config.Cache), time.Now())
	if err != nil {
		return fmt.Errorf("resizing the cache: %w", err)
	}
	r.cache = resized
	return nil
}

func cacheConfig(cfg config.Cache) cache.Config {
	return cache.Config{
		Size:     cfg.Size,
		Prefetch: cache.Prefetch{Hits: cfg.Prefetch.Hits, Remaining: cfg.Prefetch.Remaining},
		Stale:    cache.Stale{For: cfg.ServeStale.For, TTL: cfg.ServeStale.TTL},
	}
}

// plan is what the resolver gets to see of r.
func (a *Agent) plan(r *running) (*resolve.Plan, error) {
	cfg := &r.config
	inflight, waiting := a.memory.known.Load().fit()
	p := &resolve.Plan{
		Cache:     r.cache,
		UDPSize:   cfg.Listen.UDPSize,
		Deadline:  cfg.Limits.Deadline,
		Inflight:  inflight,
		Waiting:   waiting,
		PerClient: cfg.Limits.PerClient,

		FailureTTL: cfg.Cache.FailureTTL,
		StaleAfter: cfg.Cache.ServeStale.After,
		Cut:        cfg.Cache.NXDomainCut,

		Keepalive: cfg.Limits.TCPIdle,
		Version:   cfg.Identity.Version,
		Hostname:  cfg.Identity.Hostname,
		QueryLog:  a.queryLog(cfg.Log.Queries),

		TransferTo: cfg.Cluster.TransferTo,
		Self:       a.token,
		Loop:       a.loops.Detected,
		Local:      localTo(cfg.Listen.Addresses),
	}
	if p.Hostname == "auto" {
		name, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("reading the machine's name for identity.hostname: %w", err)
		}
		p.Hostname = name
	}
	var err error
	if p.Zone, err = r.cluster.view(cfg); err != nil {
		return nil, fmt.Errorf("making the cluster zone: %w", err)
	}
	p.Owner = r.cluster.owner()
	if r.cluster != nil && r.cluster.central != nil {
		p.Unreachable = r.cluster.central.AllDown
		r.cluster.near.move(r.cluster.topologyZone(cfg.Cluster.NodeZone))
	}
	if p.Routes, err = r.planRoutes(); err != nil {
		return nil, err
	}
	if err := r.planDetours(p); err != nil {
		return nil, err
	}
	return p, nil
}

// planRoutes are the routes of r as the resolver gets to see them, those to the central
// resolver behind those of the configuration.
func (r *running) planRoutes() (list []resolve.Route, err error) {
	for _, route := range r.routes {
		suffix, err := wireName(route.Zone)
		if err != nil {
			return nil, err
		}
		list = append(list, resolve.Route{
			Suffix: suffix, Upstream: r.fallback.behind(route), Subnet: route.ClientSubnet, NoStore: route.NoCache,
			TTL: resolve.TTLs{Min: route.MinTTL, Max: route.MaxTTL, Negative: route.NegativeTTL},
		})
	}
	for _, name := range r.cluster.centralRoutes(&r.config) {
		suffix, err := wireName(name)
		if err != nil {
			return nil, err
		}
		list = append(list, resolve.Route{
			Suffix: suffix, Upstream: r.cluster.central, Exact: true,
			TTL: resolve.TTLs{Max: r.config.Cache.MaxTTL, Negative: r.config.Cache.NegativeTTL},
		})
	}
	return list, nil
}

// wireName is the canonical wire form of an absolute name.
func wireName(zone string) ([]byte, error) {
	buf := make([]byte, 256)
	n, err := dns.PackDomainName(dns.CanonicalName(zone), buf, 0, nil, false)
	if err != nil {
		return nil, fmt.Errorf("reading zone %q: %w", zone, err)
	}
	return buf[:n], nil
}

func (a *Agent) queryLog(q config.QueryLog) *resolve.QueryLog {
	l := &resolve.QueryLog{Log: a.log}
	switch q.Mode {
	case config.QueriesAll:
		l.All = true
	case config.QueriesErrors:
		l.Errors = true
	case config.QueriesSlow:
		l.Slow = true
	case config.QueriesSample:
		l.Sample = q.Sample
	default:
		return nil
	}
	return l
}

// A task is a part that runs in the background for as long as a configuration has
// use for it.
type task interface {
	Run(ctx context.Context) error
}

// tasks are the parts of r that run.
func (r *running) tasks() []task {
	var list []task
	for _, route := range r.routes {
		list = append(list, route.pool)
	}
	if c := r.cluster; c != nil && c.source != nil {
		list = append(list, c.source)
	}
	if c := r.cluster; c != nil && c.central != nil {
		list = append(list, c.central)
	}
	if r.fallback != nil {
		list = append(list, r.fallback)
	}
	if r.fixture != nil {
		list = append(list, r.fixture.answers.Hosts())
	}
	for _, p := range r.probes {
		list = append(list, p)
	}
	return list
}

// A taskSet runs tasks and stops those that no configuration uses any more.
type taskSet struct {
	ctx   context.Context //nolint:containedctx // of all tasks: it outlives each call and ends with Run
	begin func(func() error)
	stop  map[task]context.CancelFunc
}

func newTaskSet(ctx context.Context, begin func(func() error)) *taskSet {
	return &taskSet{ctx: ctx, begin: begin, stop: make(map[task]context.CancelFunc)}
}

// start runs the tasks of r that do not run yet.
func (s *taskSet) start(r *running) {
	for _, t := range r.tasks() {
		if s.stop[t] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(s.ctx)
		s.stop[t] = cancel
		s.begin(func() error { return t.Run(ctx) })
	}
}

// only ends every task that r has no use for. A flight that still uses an ended
// pool is answered all the same.
func (s *taskSet) only(r *running) {
	used := r.tasks()
	for t, cancel := range s.stop {
		if !slices.Contains(used, t) {
			cancel()
			delete(s.stop, t)
		}
	}
}
