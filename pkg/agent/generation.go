// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/cluster"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/dnstap"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/memory"
	"github.com/nodecache/node-cache/pkg/names/blocklist"
	"github.com/nodecache/node-cache/pkg/names/etcd"
	"github.com/nodecache/node-cache/pkg/names/localdata"
	"github.com/nodecache/node-cache/pkg/panics"
	"github.com/nodecache/node-cache/pkg/refresh"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A generation is one applied configuration.
type generation struct {
	config    config.Config
	cache     *cache.Cache
	routes    []route // in the order of the configuration
	cluster   *cluster.Cluster
	fallback  *fallback // asked while all upstreams of a route are down; nil: there is none
	probes    []*configuredProbe
	localData *localdata.Data  // hosts and templates; nil: there are none
	block     *blocklist.Lists // nil: there are none
	etcd      *etcd.Client     // nil: etcd is not used
	special   []*localdata.Special
	keep      *refresh.Refresher // refreshes the names of cache.keep; nil: there are none
	replaced  chan struct{}      // closed once another configuration is in use

	needRestart []string // keys whose new values at the source apply only after a restart
}

// A route is a configured route and its pool. The pool, with what it has learned, survives a reload that does
// not change the route's upstreams.
type route struct {
	config.Route
	suffix []byte // the zone, in canonical wire form
	pool   *upstream.Pool
}

// unchanged reports whether the configuration keys of a part have the same values in r and old. If so, a reload keeps the part.
func (r *generation) unchanged(old *generation, keys func(*config.Config) any) bool {
	return reflect.DeepEqual(keys(&r.config), keys(&old.config))
}

// Each function below returns the keys that configure one part.

func clusterKeys(c *config.Config) any { return []any{c.ClusterDomain, c.Cluster, c.Intercept, c.Pods} }

func memoryKeys(c *config.Config) any {
	return []any{c.Cache.Size, c.Limits, c.Snapshot, c.Kernel, c.Push}
}

func staticKeys(c *config.Config) any { return []any{c.Hosts, c.Templates} }

func blockKeys(c *config.Config) any { return c.Block }

func keepKeys(c *config.Config) any { return c.Cache.Keep.Names }

func specialKeys(c *config.Config) any { return c.SpecialNames }

func fallbackKeys(c *config.Config) any {
	return []any{usesFallback(c), c.Intercept.Fallback, c.Cluster.Central}
}

// pushKeys and dns64 decide about the answers of the cluster's names, and who may subscribe to them.
func pushKeys(c *config.Config) any {
	return []any{c.ClusterDomain, c.Cluster, c.Push, c.Hosts, c.Templates, c.Rewrite, c.Etcd, c.Forward}
}

// usesFallback reports whether any route may use the fallback.
func usesFallback(c *config.Config) bool {
	return slices.ContainsFunc(c.Forward, func(r config.Route) bool { return !r.NoFallback })
}

// samePool reports whether one pool can serve both routes.
func samePool(a, b config.Route) bool {
	a.ClientSubnet = b.ClientSubnet
	a.MinTTL, a.MaxTTL, a.NegativeTTL, a.NoCache, a.NoFallback = b.MinTTL, b.MaxTTL, b.NegativeTTL, b.NoCache, b.NoFallback
	return reflect.DeepEqual(a, b)
}

// A builder makes the parts of a configuration.
type builder struct {
	log      *slog.Logger
	token    string // identifies this agent
	dial     func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	loops    *upstream.LoopDetector // shared by all pools
	memory   *memory.Keeper
	clusters *cluster.Maker
	tap      *dnstap.Tap
	tapOn    atomic.Pointer[dnstap.Tap] // equals tap, or is nil while log.dnstap is empty
	watchers *resolve.Watchers
	panics   atomic.Uint64 // panics recovered while building a configuration

	ready, stopped <-chan struct{} // closed once the agent serves; closed once it applies no more configurations

	kernelHas func(name []byte, rrtype uint16) bool // reports whether the kernel itself answers queries for a name and type

	ask   func(name []byte, rrtype uint16) (instead string) // see [resolve.Resolver.Refresh]
	inUse func() *cache.Cache                               // the cache in use

	hostsChanged, blockChanged func() // called after a file of hosts or a block list has changed
}

// useTap makes the tap send its messages to the collector at to; empty: to none.
func (b *builder) useTap(to string) {
	if b.tap.Send(to); to == "" {
		b.tapOn.Store(nil)
	} else {
		b.tapOn.Store(b.tap)
	}
}

// poolConfig returns the settings that all pools of a configuration have in common.
func (b *builder) poolConfig(cfg *config.Config, zone []byte, label string) upstream.Config {
	own := cfg.Listen
	return upstream.Config{
		LoopDetector: b.loops, Zone: zone, Dial: b.dial, Mark: mark(cfg), Log: b.log.With("zone", label), Tap: &b.tapOn,
		Self: own.Receives,
	}
}

// mark returns the mark of upstream sockets, 0 for none. The agent's own rules do not redirect marked packets.
func mark(cfg *config.Config) uint32 {
	if cfg.Intercept.Manage {
		return rules.Mark
	}
	return 0
}

// build makes the parts of cfg and takes from old those whose keys are unchanged. It opens and starts nothing, so
// a failure, even a panic, leaves old as it is.
func (b *builder) build(cfg config.Config, old *generation) (r *generation, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			guard := panics.Guard{Where: "config", Log: b.log, Count: &b.panics}
			r, err = nil, fmt.Errorf("building what the configuration asks for: %w", guard.Recovered(context.Background(), panicked))
		}
	}()
	r = &generation{
		config: cfg, cache: old.cache, cluster: old.cluster, fallback: old.fallback, localData: old.localData, etcd: old.etcd,
		special:  old.special,
		block:    old.block,
		keep:     old.keep,
		probes:   old.probes,
		replaced: make(chan struct{}),
	}
	if err = b.buildRoutes(r, old); err == nil {
		err = b.buildParts(r, old)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// buildRoutes makes the routes of r, and the cache if there is none yet.
func (b *builder) buildRoutes(r, old *generation) error {
	cfg := &r.config
	for i, forward := range cfg.Forward {
		route, err := b.routeFor(cfg, forward, old)
		if err != nil {
			return poolProblem(fmt.Errorf("forward[%d]: zone %q to %s: %w", i, forward.Zone, forward.To, err))
		}
		r.routes = append(r.routes, route)
	}
	var err error
	if !r.unchanged(old, keepKeys) {
		r.keep = nil
		if names := cfg.Cache.Keep.Names; len(names) > 0 {
			if r.keep, err = refresh.New(refresh.Config{Names: names, Ask: b.ask, Cache: b.inUse, Now: time.Now, Log: b.log}); err != nil {
				return fmt.Errorf("cache.keep: %w", err)
			}
		}
	}
	if r.cache == nil { // a reload keeps the cache; resize changes its size, in the last step that can fail
		if r.cache, err = cache.New(cacheConfig(cfg.Cache), time.Now()); err != nil {
			return fmt.Errorf("making the cache: %w", err)
		}
		r.cache.SetPinned(r.keep.Names(), cfg.Cache.Keep.For)
	}
	return nil
}

// buildParts makes those of r's cluster, fallback, other sources of DNS records, and probes whose keys differ from old's.
func (b *builder) buildParts(r, old *generation) (err error) {
	cfg := &r.config
	if !r.unchanged(old, clusterKeys) {
		if r.cluster, err = b.clusters.New(cfg, old.cluster, &old.config); err != nil {
			return err
		}
	}
	if !r.unchanged(old, fallbackKeys) || r.cluster.Endpoints != old.cluster.Endpoints {
		r.fallback = nil
		if usesFallback(cfg) {
			if r.fallback, err = b.newFallback(cfg, r.cluster.Endpoints); err != nil {
				return fmt.Errorf("intercept.fallback: %w", err)
			}
		}
	}
	if err := b.buildRecords(r, old); err != nil {
		return err
	}
	if !r.unchanged(old, func(c *config.Config) any { return c.Probes }) {
		r.probes, err = b.newProbes(cfg, old.probes)
	}
	return err
}

// buildRecords makes r's sources of DNS records other than the cluster, if their keys differ from old's.
func (b *builder) buildRecords(r, old *generation) (err error) {
	if !r.unchanged(old, specialKeys) {
		r.special = nil
		for _, word := range r.config.SpecialNames {
			r.special = append(r.special, localdata.SpecialZones(word)...)
		}
	}
	if !r.unchanged(old, staticKeys) {
		if r.localData, err = b.newLocalData(&r.config, old.localData); err != nil {
			return err
		}
	}
	if !r.unchanged(old, blockKeys) {
		if r.block, err = b.newBlock(&r.config.Block, old.block); err != nil {
			return err
		}
	}
	if !r.unchanged(old, func(c *config.Config) any { return c.Etcd }) {
		r.etcd, err = newEtcd(&r.config.Etcd, b.log)
	}
	return err
}

func poolProblem(err error) error {
	switch {
	case errors.Is(err, upstream.ErrNoUpstream):
		return &hint.Error{Err: err, Hint: "all upstreams of this zone are node-cache's own addresses; set another server"}
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission):
		return &hint.Error{Err: err, Hint: "set a resolv.conf that this user can read, or an upstream address"}
	}
	return err
}

// routeFor returns a route, with old's pool if its upstreams are unchanged.
func (b *builder) routeFor(cfg *config.Config, forward config.Route, old *generation) (route, error) {
	for _, r := range old.routes {
		if samePool(r.Route, forward) {
			return route{Route: forward, suffix: r.suffix, pool: r.pool}, nil
		}
	}
	suffix, err := wire.AppendName(nil, forward.Zone)
	if err != nil {
		return route{}, err
	}
	c := b.poolConfig(cfg, suffix, forward.Zone)
	for _, to := range forward.Upstreams() {
		c.Targets = append(c.Targets, target(to, forward))
	}
	c.Policy, c.Connections, c.Rate = policies()[forward.Policy], forward.Connections, float64(forward.Rate)
	c.RandomCase, c.TrustAD = forward.RandomCase, forward.TrustAD
	pool, err := upstream.New(c)
	return route{Route: forward, suffix: suffix, pool: pool}, err
}

// A fallback is the pool of intercept.fallback.
type fallback struct {
	*upstream.Fallback
	service string // "namespace/name" of the endpoints; empty: configured addresses
}

// newFallback returns the pool of intercept.fallback, nil if no server is configured or all are this agent's own addresses.
// The endpoints are those of the central resolver's Service; nil: that is not watched.
func (b *builder) newFallback(cfg *config.Config, endpoints *upstream.Service) (*fallback, error) {
	c := b.poolConfig(cfg, []byte{0}, status.FallbackZone)
	f := new(fallback)
	switch {
	case !cfg.Intercept.Fallback.Central:
		c.Targets = upstream.Secure{}.Targets(cfg.Intercept.Fallback.Addresses)
	case endpoints != nil:
		c.Endpoints, f.service = endpoints.Endpoints(), cfg.Cluster.Central.Endpoints().String()
	default:
		c.Targets = upstream.Secure{}.Targets(cfg.Cluster.Central.Addresses)
	}
	if c.Endpoints == nil && len(c.Targets) == 0 {
		return nil, nil //nolint:nilnil // no fallback is no mistake
	}
	var err error
	f.Fallback, err = upstream.NewFallback(c)
	if errors.Is(err, upstream.ErrNoUpstream) {
		return nil, nil //nolint:nilnil // likewise
	}
	return f, err
}

func policies() map[string]upstream.Policy {
	return map[string]upstream.Policy{
		config.PolicyFastest: upstream.Fastest, config.PolicySequential: upstream.Sequential, config.PolicyRandom: upstream.Random,
	}
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
	case config.Plain, config.None:
	}
	return upstream.Target{Network: "udp", Addr: to.Addr}
}

// resize gives r a cache of the configured size, if that differs from old's. It empties old's cache, which forwards to the new cache.
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

// parts returns the parts of r that run in the background.
func (r *generation) parts() []part {
	var list []part
	for _, route := range r.routes {
		list = append(list, route.pool)
	}
	for _, p := range r.cluster.Parts() {
		list = append(list, p)
	}
	if r.fallback != nil {
		list = append(list, r.fallback)
	}
	if r.localData != nil {
		list = append(list, r.localData.Hosts())
	}
	if r.block != nil {
		list = append(list, r.block)
	}
	if r.etcd != nil {
		list = append(list, r.etcd)
	}
	if r.keep != nil {
		list = append(list, r.keep)
	}
	for _, p := range r.probes {
		list = append(list, p)
	}
	return list
}

// newLocalData returns the hosts and templates of cfg, nil if there are none. It takes from old what was read from hosts files.
func (b *builder) newLocalData(cfg *config.Config, old *localdata.Data) (*localdata.Data, error) {
	if len(cfg.Hosts.Names)+len(cfg.Hosts.Files)+len(cfg.Templates) == 0 {
		return nil, nil //nolint:nilnil // hosts and templates are optional
	}
	hosts := &cfg.Hosts
	s := localdata.Config{Names: hosts.Names, Files: hosts.Files, TTL: hosts.TTL, NoReverse: hosts.NoReverse, Changed: b.hostsChanged, Log: b.log, Predecessor: old}
	for i := range cfg.Templates {
		t, err := templateOf(&cfg.Templates[i])
		if err != nil {
			return nil, fmt.Errorf("templates[%d]: %w", i, err)
		}
		s.Templates = append(s.Templates, t)
	}
	return localdata.New(s)
}

// newBlock returns the block lists of cfg, nil if there are none. It takes from old what was read from the same files.
func (b *builder) newBlock(cfg *config.Block, old *blocklist.Lists) (*blocklist.Lists, error) {
	if len(cfg.Files) == 0 {
		return nil, nil //nolint:nilnil // block lists are optional
	}
	return blocklist.New(blocklist.Config{
		Files: cfg.Files, NoData: cfg.Answer.NoData, Addresses: cfg.Answer.Addresses, Predecessor: old, Changed: b.blockChanged, Log: b.log,
	})
}

// blockStats returns the stats of the block lists; nil: there are none.
func (r *generation) blockStats(now time.Time) *blocklist.Stats {
	if r.block == nil {
		return nil
	}
	st := r.block.Stats(now)
	return &st
}

// notBlocked returns the zones whose names no list blocks: those of the cluster, and reverse names, which the cluster has too.
func notBlocked(c *config.Config) (zones [][]byte, err error) {
	names := append(c.Domains(), "in-addr.arpa.", "ip6.arpa.")
	names = append(names, c.Cluster.External.Zones...)
	if c.Cluster.ClusterSet != "" {
		names = append(names, c.Cluster.ClusterSet)
	}
	for _, name := range names {
		zone, err := wire.AppendName(nil, name)
		if err != nil {
			return nil, fmt.Errorf("zone %q: %w", name, err)
		}
		zones = append(zones, zone)
	}
	return zones, nil
}

// templateOf parses the DNS records of a configured template.
func templateOf(t *config.Template) (localdata.Template, error) {
	out := localdata.Template{Zone: t.Zone, Types: t.Types, Match: t.Match, Rcode: t.Rcode}
	for _, section := range []struct {
		to   *[]func(*localdata.Question) (dns.RR, error)
		from []string
	}{{&out.Answer, t.Answer}, {&out.Authority, t.Authority}, {&out.Additional, t.Additional}} {
		for _, text := range section.from {
			record, err := config.ParseRecord(text)
			if err != nil {
				return out, err
			}
			*section.to = append(*section.to, func(q *localdata.Question) (dns.RR, error) { return record((*config.TemplateData)(q)) })
		}
	}
	return out, nil
}

// localDataStats returns the stats of hosts and templates; nil: there are none.
func (r *generation) localDataStats() *localdata.Stats {
	if r.localData == nil {
		return nil
	}
	st := r.localData.Stats()
	return &st
}
