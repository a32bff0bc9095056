// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/rules"
	"github.com/nodecache/node-cache/pkg/static"
	"github.com/nodecache/node-cache/pkg/status"
	"github.com/nodecache/node-cache/pkg/task"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// A generation is one applied configuration.
type generation struct {
	config  config.Config
	cache   *cache.Cache
	routes  []route // in the order of the configuration
	cluster *cluster
	// fallback is asked while all upstreams of a route are down; nil: there is none.
	fallback *fallbackPool
	probes   []*configuredProbe
	static   *staticAnswers // nil: there are no hosts and no templates
	replaced chan struct{}  // closed once another configuration is in use
}

// A route is a configured route and its pool. The pool, with what it has learned, survives a reload that does
// not change the route's upstreams.
type route struct {
	config.Route
	pool *upstream.Pool
}

// samePool reports whether the pool of one route can serve another.
func samePool(a, b config.Route) bool {
	a.ClientSubnet = b.ClientSubnet
	a.MinTTL, a.MaxTTL, a.NegativeTTL, a.NoCache, a.NoFallback = b.MinTTL, b.MaxTTL, b.NegativeTTL, b.NoCache, b.NoFallback
	return reflect.DeepEqual(a, b)
}

// noGeneration is what the first generation follows.
func noGeneration() *generation { return &generation{cluster: new(cluster)} }

// build makes the parts that cfg asks for and reuses unchanged parts of old. It opens and starts nothing, so
// a failure, even a panic, leaves old as it is.
func (a *Agent) build(cfg config.Config, old *generation) (r *generation, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			guard := task.Guard{Where: "config", Log: a.log, Count: &a.panics}
			r, err = nil, fmt.Errorf("building what the configuration asks for: %w", guard.Recovered(context.Background(), panicked))
		}
	}()
	r = &generation{config: cfg, replaced: make(chan struct{})}
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
	if r.static, err = a.staticFor(&r.config, old); err != nil {
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
		return &status.HintError{Err: err, Hint: "all upstreams of this zone are node-cache's own addresses; set another server"}
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission):
		return &status.HintError{Err: err, Hint: "set a resolv.conf that this user can read, or an upstream address"}
	}
	return err
}

// probesFor makes the probes of cfg and reuses unchanged ones of old.
func (a *Agent) probesFor(cfg *config.Config, old *generation) (list []*configuredProbe, err error) {
	for i, configured := range cfg.Probes {
		target, err := targetOf(configured, cfg)
		if err != nil {
			return nil, fmt.Errorf("probes[%d]: %w", i, err)
		}
		p := old.findProbe(target)
		if p == nil {
			if p, err = a.newProbe(target); err != nil {
				return nil, fmt.Errorf("probes[%d]: %w", i, err)
			}
		}
		list = append(list, p)
	}
	return list, nil
}

// poolFor returns old's pool if the route's upstreams are unchanged, else a new one.
func (a *Agent) poolFor(cfg config.Config, forward config.Route, old *generation) (*upstream.Pool, error) {
	for _, r := range old.routes {
		if samePool(r.Route, forward) {
			return r.pool, nil
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
		Self:         func(addr netip.AddrPort) bool { return isOwnListener(addr, cfg.Listen) },
	})
}

func policies() map[string]upstream.Policy {
	return map[string]upstream.Policy{
		config.PolicyFastest: upstream.Fastest, config.PolicySequential: upstream.Sequential, config.PolicyRandom: upstream.Random,
	}
}

// mark returns the mark of upstream sockets: the agent's own rules leave marked packets alone.
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
		method := map[string]string{config.MethodPost: http.MethodPost, config.MethodGet: http.MethodGet}[route.Method]
		return upstream.Target{Network: "https", Addr: to.Addr, Name: to.Name, CAFile: route.CA, Path: to.Path, Method: method}
	case config.ResolvConf:
		return upstream.Target{ResolvConf: to.Path}
	case config.Plain:
	}
	return upstream.Target{Network: "udp", Addr: to.Addr}
}

// isOwnListener reports whether a query sent to addr would reach a listener of this agent.
func isOwnListener(addr netip.AddrPort, listen config.Listen) bool {
	if addr.Port() != listen.Port {
		return false
	}
	ip := addr.Addr()
	switch ip { // resolv.conf(5) files contain these; the kernel sends them to the loopback address
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

// isLocal reports whether an address belongs to this host.
func isLocal(addr netip.Addr) bool {
	return addr.IsLoopback() || slices.Contains(localAddrs(), addr.WithZone(""))
}

// localClients returns a function that reports whether a client is on this host. Such a client asks from a
// loopback address, or, by the kernel's choice, from the address that it asks. For a wildcard listener that
// is any address that the host has now.
func localClients(listen []netip.Addr) func(netip.Addr) bool {
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

// localAddrs returns this host's addresses, none on an error.
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

// cacheFor returns old's cache if there is one, else a new one. resize changes its size later, when nothing
// can fail any more.
func (a *Agent) cacheFor(cfg config.Cache, old *generation) (*cache.Cache, error) {
	if old.cache != nil {
		return old.cache, nil
	}
	return cache.New(cacheConfig(cfg), time.Now())
}

// resize gives r's cache, which is old's, its configured size. After it old's cache is empty and forwards to
// the new one.
func (r *generation) resize(old *generation) error {
	if old.config.Cache.Size == r.config.Cache.Size {
		return nil
	}
	resized, err := old.cache.Resize(r.config.Cache.Size, time.Now())
	if err != nil {
		return fmt.Errorf("resizing the cache: %w", err)
	}
	r.cache = resized
	return nil
}

func cacheConfig(cfg config.Cache) cache.Config {
	return cache.Config{
		Size:       cfg.Size,
		Prefetch:   cache.Prefetch{Hits: cfg.Prefetch.Hits, Remaining: cfg.Prefetch.Remaining},
		ServeStale: cache.ServeStale{Window: cfg.ServeStale.For, TTL: cfg.ServeStale.TTL},
	}
}

// plan returns the resolver's plan for r.
func (a *Agent) plan(r *generation) (*resolve.Plan, error) {
	cfg := &r.config
	inflight, waiting := a.memory.share.Load().queryBounds()
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
		Local:      localClients(cfg.Listen.Addresses),
	}
	if p.Hostname == "auto" {
		name, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("reading the host name for identity.hostname: %w", err)
		}
		p.Hostname = name
	}
	var err error
	if p.Zone, err = r.cluster.newZone(cfg); err != nil {
		return nil, fmt.Errorf("making the cluster zone: %w", err)
	}
	p.Owner = r.cluster.owner()
	if r.cluster.central != nil {
		p.Unreachable = r.cluster.central.AllDown
	}
	if r.cluster.centralEndpoints != nil {
		r.cluster.centralEndpoints.setZone(r.cluster.topologyZone(cfg.Cluster.NodeZone))
	}
	if p.Routes, err = r.planRoutes(); err != nil {
		return nil, err
	}
	if err := r.planRewrites(p); err != nil {
		return nil, err
	}
	return p, nil
}

// planRoutes returns the routes of the plan: the configured ones, then those to the central resolver.
func (r *generation) planRoutes() (list []resolve.Route, err error) {
	for _, route := range r.routes {
		suffix, err := wireName(route.Zone)
		if err != nil {
			return nil, err
		}
		list = append(list, resolve.Route{
			Suffix: suffix, Upstream: r.upstreamOf(route), Subnet: route.ClientSubnet, NoStore: route.NoCache,
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

// wireName returns the canonical wire form of an absolute name.
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

// A part runs in the background while a configuration uses it.
type part interface {
	Run(ctx context.Context) error
}

// parts returns the parts of r that run.
func (r *generation) parts() []part {
	var list []part
	for _, route := range r.routes {
		list = append(list, route.pool)
	}
	if c := r.cluster; c.source != nil {
		list = append(list, c.source)
	}
	if c := r.cluster; c.central != nil {
		list = append(list, c.central)
	}
	if r.fallback != nil {
		list = append(list, r.fallback)
	}
	if r.static != nil {
		list = append(list, r.static.answers.Hosts())
	}
	for _, p := range r.probes {
		list = append(list, p)
	}
	return list
}

// staticAnswers are the configured answers and their configuration. They survive a reload that does not
// change that. If only the hosts are unchanged, the new ones reuse what was read from hosts files.
type staticAnswers struct {
	hosts     config.Hosts
	templates []config.Template
	answers   *static.Static
}

// staticFor returns old's hosts and templates if unchanged, else new ones; nil: there are none.
func (a *Agent) staticFor(cfg *config.Config, old *generation) (*staticAnswers, error) {
	if len(cfg.Hosts.Names)+len(cfg.Hosts.Files)+len(cfg.Templates) == 0 {
		return nil, nil //nolint:nilnil // hosts and templates are optional
	}
	f := &staticAnswers{hosts: cfg.Hosts, templates: cfg.Templates}
	if old.static != nil && reflect.DeepEqual(old.static.hosts, f.hosts) && reflect.DeepEqual(old.static.templates, f.templates) {
		return old.static, nil
	}
	s := static.Config{Files: f.hosts.Files, TTL: f.hosts.TTL, NoReverse: f.hosts.NoReverse, Log: a.log}
	if old.static != nil {
		s.Predecessor = old.static.answers
	}
	for _, name := range slices.Sorted(maps.Keys(f.hosts.Names)) {
		s.Names = append(s.Names, static.Host{Name: name, Addresses: f.hosts.Names[name]})
	}
	for i := range f.templates {
		t, err := templateOf(&f.templates[i])
		if err != nil {
			return nil, fmt.Errorf("templates[%d]: %w", i, err)
		}
		s.Templates = append(s.Templates, t)
	}
	var err error
	if f.answers, err = static.New(s); err != nil {
		return nil, err
	}
	return f, nil
}

// templateOf parses the records of a configured template.
func templateOf(t *config.Template) (static.Template, error) {
	out := static.Template{Zone: t.Zone, Types: t.Types, Match: t.Match, Rcode: t.Rcode}
	for _, section := range []struct {
		to   *[]static.Record
		from []string
	}{{&out.Answer, t.Answer}, {&out.Authority, t.Authority}, {&out.Additional, t.Additional}} {
		for _, text := range section.from {
			record, err := config.ParseRecord(text)
			if err != nil {
				return out, err
			}
			*section.to = append(*section.to, func(q *static.Question) (dns.RR, error) { return record((*config.TemplateData)(q)) })
		}
	}
	return out, nil
}

// planRewrites adds rewrites, DNS64, and static answers to the plan.
func (r *generation) planRewrites(p *resolve.Plan) (err error) {
	cfg := &r.config
	if r.static != nil {
		p.Static = r.static.answers
	}
	if len(cfg.Rewrite) > 0 {
		kinds := map[string]resolve.RewriteKind{
			config.RewriteExact: resolve.RewriteExact, config.RewritePrefix: resolve.RewritePrefix, config.RewriteSuffix: resolve.RewriteSuffix,
		}
		rules := make([]resolve.Rewrite, 0, len(cfg.Rewrite))
		for _, rule := range cfg.Rewrite {
			kind, from := rule.Rule()
			rules = append(rules, resolve.Rewrite{Kind: kinds[kind], From: from, To: rule.To})
		}
		if p.Rewrites, err = resolve.NewRewrites(rules); err != nil {
			return err
		}
	}
	if cfg.DNS64.Prefix.IsValid() {
		p.DNS64, err = resolve.NewDNS64(cfg.DNS64.Prefix, cfg.DNS64.TranslateAll, cfg.DNS64.Clients == config.DNS64All)
	}
	return err
}

// staticStats returns the stats of hosts and templates; nil: there are none.
func (r *generation) staticStats() *static.Stats {
	if r.static == nil {
		return nil
	}
	st := r.static.answers.Stats()
	return &st
}
