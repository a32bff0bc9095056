// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/listen"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// plan returns the resolver's plan for r. It changes nothing: the running generation may share parts with r, and stays if a later
// step fails. Once r is in use, adopt applies the plan to those parts.
func (b *builder) plan(r *generation) (*resolve.Plan, error) {
	cfg := &r.config
	share := b.memory.Share()
	p := &resolve.Plan{
		Cache:     r.cache,
		UDPSize:   cfg.Listen.UDPSize,
		Deadline:  cfg.Limits.Deadline,
		Inflight:  share.Inflight,
		Waiting:   share.Waiting,
		PerClient: cfg.Limits.PerClient,

		FailureTTL: cfg.Cache.FailureTTL,
		StaleAfter: cfg.Cache.ServeStale.After,
		Cut:        cfg.Cache.NXDomainCut,

		Keepalive: cfg.Limits.TCPIdle,
		Version:   cfg.Identity.Version,
		Hostname:  cfg.Identity.Hostname,
		QueryLog:  queryLog(cfg.Log.Queries, b.log),
		Watchers:  b.watchers,
		Pods:      r.cluster.Pods,
		Cluster:   r.cluster.Domain(),

		SearchPath: cfg.Pods.SearchPath && r.cluster.Pods != nil,

		Keys:   r.cluster.Keys,
		Self:   b.token,
		Loop:   b.loops.Detected,
		Local:  listen.LocalClients(cfg.Listen.Addresses),
		Owner:  r.cluster.Owner,
		Copied: b.kernelHas,
		Routes: r.planRoutes(),
	}
	if cfg.Log.Dnstap != "" {
		p.Tap = b.tap
	}
	if p.Hostname == "auto" {
		name, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("reading the host name for identity.hostname: %w", err)
		}
		p.Hostname = name
	}
	var err error
	if r.cluster.Store != nil {
		if p.Zones, err = r.cluster.Zones(cfg); err != nil {
			return nil, fmt.Errorf("making the zones of the cluster: %w", err)
		}
		for _, client := range cfg.Cluster.TransferTo {
			p.TransferTo = append(p.TransferTo, client.Prefix)
		}
	}
	if r.cluster.Central != nil {
		p.Unreachable = r.cluster.Central.AllDown
	}
	if r.localData != nil {
		p.LocalData = r.localData
	}
	if r.block != nil {
		p.Block = r.block
		if p.NotBlocked, err = notBlocked(cfg); err != nil {
			return nil, err
		}
	}
	if r.etcd != nil {
		p.SkyDNS = r.etcd.Source()
	}
	return p, planRewrites(p, cfg)
}

// adopt makes the parts of r follow its plan p, which is in use from now on.
func (r *generation) adopt(p *resolve.Plan) {
	if r.cluster.Store != nil {
		r.cluster.KeepVersions(p, time.Now())
	}
	r.cluster.SetZone(r.config.Cluster.NodeZone)
}

// otherCentralTTL bounds how long the central resolver's answers outside the cluster domain are cached, such as reverse names of
// other networks: this agent does not see when that resolver's upstreams change. NodeLocal DNSCache has the same bound.
const otherCentralTTL = 30 * time.Second

// planRoutes returns the routes of the plan: the configured ones, then those to the central resolver, then those of
// special names. Of several routes for one zone, only the first kind stays.
func (r *generation) planRoutes() (list []resolve.Route) {
	for _, route := range r.routes {
		list = append(list, resolve.Route{
			Suffix: route.suffix, Upstream: r.upstreamOf(route), Subnet: route.ClientSubnet, NoStore: route.NoCache,
			TTL: resolve.TTLs{Min: route.MinTTL, Max: route.MaxTTL, Negative: route.NegativeTTL},
		})
	}
	for _, suffix := range r.cluster.CentralZones {
		if slices.ContainsFunc(r.routes, func(route route) bool { return bytes.Equal(route.suffix, suffix) }) {
			continue
		}
		ttl := resolve.TTLs{Max: r.config.Cache.MaxTTL, Negative: r.config.Cache.NegativeTTL}
		if !slices.ContainsFunc(r.cluster.Domains, func(domain []byte) bool { return bytes.Equal(suffix, domain) }) {
			ttl = resolve.TTLs{Max: min(ttl.Max, otherCentralTTL), Negative: min(ttl.Negative, otherCentralTTL)}
		}
		list = append(list, resolve.Route{Suffix: suffix, Upstream: r.cluster.Asker(), Exact: true, TTL: ttl})
	}
	for _, special := range r.special {
		if !slices.ContainsFunc(list, func(route resolve.Route) bool { return bytes.Equal(route.Suffix, special.Zone) }) {
			ttl := resolve.TTLs{Max: r.config.Cache.MaxTTL, Negative: r.config.Cache.NegativeTTL}
			list = append(list, resolve.Route{Suffix: special.Zone, Upstream: special, TTL: ttl})
		}
	}
	return list
}

// upstreamOf returns what a route asks, nil if it has no upstream: its pool, and the fallback while all of the pool's
// upstreams are down. A route over TLS or HTTPS has no fallback: an attacker who cuts connections must not get the queries in plain
// text.
func (r *generation) upstreamOf(route route) resolve.Asker {
	if !route.HasUpstream() {
		return nil
	}
	encrypted := func(to config.Target) bool { return to.Kind == config.TLS || to.Kind == config.HTTPS }
	if r.fallback == nil || route.NoFallback || slices.ContainsFunc(route.To, encrypted) {
		return route.pool
	}
	return &upstream.BackedPool{Pool: route.pool, Fallback: r.fallback.Fallback}
}

func queryLog(q config.QueryLog, log *slog.Logger) *resolve.QueryLog {
	l := &resolve.QueryLog{Log: log, TypeName: status.TypeName}
	switch q.Mode {
	case config.QueriesAll:
		l.All = true
	case config.QueriesErrors:
		l.Errors = true
	case config.QueriesSlow:
		l.Slow = q.Slow
	case config.QueriesSample:
		l.Sample = q.Sample
	default:
		return nil
	}
	return l
}

// planRewrites adds rewrites and DNS64 to the plan.
func planRewrites(p *resolve.Plan, cfg *config.Config) (err error) {
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
