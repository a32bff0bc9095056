// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/node"
	"github.com/nodecache/node-cache/pkg/status"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
	"github.com/nodecache/node-cache/pkg/zone"
)

// A clusterSource delivers the cluster's objects: watches of the API server, or a folder of manifests.
type clusterSource interface {
	part
	Ready() <-chan struct{}
	Stats() watch.Stats
}

// A cluster is the agent's knowledge of its Kubernetes cluster, and the central resolver for the rest. It
// survives a reload that does not change its settings. Without a cluster it is zero.
type cluster struct {
	domain           []byte                        // canonical wire form
	store            *zone.Store                   // nil: this process answers no cluster names
	events           *zone.Store                   // its changes purge answers: store, or a store of services only; nil: none
	source           clusterSource                 // nil: nothing of the cluster is watched
	endpoints        *upstream.Endpoints           // of the central resolver's service; nil: not watched
	centralEndpoints *centralEndpoints             // fills endpoints; nil if endpoints is
	service          *atomic.Pointer[serviceState] // set with endpoints
	central          *upstream.Pool                // nil: there is no central resolver
	nodeZone         *atomic.Pointer[string]
}

// clusterFor returns the cluster of cfg and reuses unchanged parts of old's.
func (a *Agent) clusterFor(cfg *config.Config, old *generation) (*cluster, error) {
	if cfg.Cluster.Resolver == config.ResolverNone && !interceptNeedsService(cfg) {
		return new(cluster), nil
	}
	c := &cluster{nodeZone: new(atomic.Pointer[string]), service: new(atomic.Pointer[serviceState])}
	var err error
	if c.domain, err = wireName(cfg.ClusterDomain); err != nil {
		return nil, err
	}
	kept := old.cluster.domain != nil
	if kept && sameSource(&cfg.Cluster, &old.config.Cluster) {
		c.store, c.source, c.nodeZone = old.cluster.store, old.cluster.source, old.cluster.nodeZone
		c.events = old.cluster.events
		c.endpoints, c.centralEndpoints, c.service = old.cluster.endpoints, old.cluster.centralEndpoints, old.cluster.service
	} else if err := a.makeSource(c, &cfg.Cluster); err != nil {
		return nil, err
	}
	switch {
	case !cfg.Cluster.Central.IsSet(), cfg.Cluster.Resolver == config.ResolverNone:
	case kept && c.endpoints == old.cluster.endpoints && sameCentral(&cfg.Cluster.Central, &old.config.Cluster.Central):
		c.central = old.cluster.central
	default:
		if err := a.makeCentral(c, cfg); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// sameSource reports whether two configurations select the same objects from the same source.
func sameSource(a, b *config.Cluster) bool {
	return a.Resolver == b.Resolver && a.Kubeconfig == b.Kubeconfig && a.Manifests == b.Manifests &&
		a.Central.Service == b.Central.Service && a.Endpoints == b.Endpoints &&
		(a.Pods == config.PodsVerified) == (b.Pods == config.PodsVerified) &&
		a.Invalidate == b.Invalidate &&
		slices.Equal(a.Namespaces, b.Namespaces) && a.ServiceSelector == b.ServiceSelector &&
		a.NamespaceSelector == b.NamespaceSelector && a.StaleAfter == b.StaleAfter
}

func sameCentral(a, b *config.Central) bool {
	return a.Service == b.Service && slices.Equal(a.Addresses, b.Addresses) && a.Connections == b.Connections
}

// makeSource sets c's source and the store that it fills, if they are needed.
func (a *Agent) makeSource(c *cluster, cfg *config.Cluster) (err error) {
	follow := a.watchCentral(c, cfg.Central.Service)
	a.makeStore(c, cfg)
	if c.events == nil && follow == nil {
		return nil
	}
	slim := c.store == nil
	endpoints := map[string]watch.Endpoints{
		config.EndpointsHeadless: watch.EndpointsHeadless,
		config.EndpointsAll:      watch.EndpointsAll,
		config.EndpointsNone:     watch.EndpointsNone,
	}[cfg.Endpoints]
	source := watch.Config{
		Kubeconfig: cfg.Kubeconfig, Folder: cfg.Manifests, Store: c.events, ServiceWatch: follow,
		Endpoints: endpoints, Pods: cfg.Pods == config.PodsVerified, ServicesOnly: slim,
		Namespaces: cfg.Namespaces, ServiceSelector: cfg.ServiceSelector, NamespaceSelector: cfg.NamespaceSelector,
		StaleAfter: cfg.StaleAfter, MaxList: a.memory.share.Load().list(), NodeName: os.Getenv("NODE_NAME"),
		UserAgent: "node-cache/" + a.options.Version,
		Log:       a.log, Now: time.Now,
	}
	if cfg.Manifests != "" {
		c.source, err = watch.NewManifests(source)
		return manifestsProblem(err)
	}
	c.source, err = watch.New(source)
	return sourceProblem(err, cfg.Kubeconfig)
}

// watchCentral returns the watch of the central resolver's service.
func (a *Agent) watchCentral(c *cluster, service config.ServiceName) *watch.ServiceWatch {
	if service == (config.ServiceName{}) {
		return nil
	}
	c.endpoints = new(upstream.Endpoints)
	c.centralEndpoints = &centralEndpoints{endpoints: c.endpoints}
	log := a.log.With("service", service.String())
	return &watch.ServiceWatch{
		Namespace: service.Namespace,
		Service:   service.Name,
		Changed: func(servers []watch.Server, own []netip.AddrPort) {
			c.centralEndpoints.set(servers, own)
			ready := addresses(servers)
			c.service.Store(&serviceState{ready: ready, own: slices.Clone(own)})
			a.node.TargetChanged()
			log.Info("central endpoints updated", "count", len(ready), "ready", ready[:min(len(ready), maxLogged)], "service_addresses", own)
		},
	}
}

// serviceState is the last reported state of the central resolver's service.
type serviceState struct {
	ready []netip.AddrPort // endpoints
	own   []netip.AddrPort // the service's own addresses
}

// interceptNeedsService reports whether the interception needs the central resolver's service even if no
// query goes there.
func interceptNeedsService(cfg *config.Config) bool {
	i := &cfg.Intercept
	return i.Manage && cfg.Cluster.Central.Service != config.ServiceName{} &&
		(i.Mode == config.ModeLinkLocal && i.Fallback.Central || i.Mode == config.ModeTransparent && len(i.Services) == 0)
}

// maxLogged bounds the endpoints in one log line: a large service may change often.
const maxLogged = 16

func (a *Agent) makeCentral(c *cluster, cfg *config.Config) (err error) {
	targets := make([]upstream.Target, 0, len(cfg.Cluster.Central.Addresses))
	for _, addr := range cfg.Cluster.Central.Addresses {
		targets = append(targets, upstream.Target{Network: "tcp", Addr: addr})
	}
	c.central, err = upstream.New(upstream.Config{
		LoopDetector: a.loops, Zone: c.domain,
		Targets: targets, Endpoints: c.endpoints, Connections: cfg.Cluster.Central.Connections,
		Dial: a.options.Dial, Mark: mark(cfg),
		Log:  a.log.With("zone", cfg.ClusterDomain),
		Self: func(addr netip.AddrPort) bool { return isOwnListener(addr, cfg.Listen) },
	})
	if errors.Is(err, upstream.ErrNoUpstream) {
		return &status.HintError{
			Err:  fmt.Errorf("cluster.central.addresses: %w", err),
			Hint: "all these addresses are node-cache's own; set those of the central resolver",
		}
	}
	return err
}

func manifestsProblem(err error) error {
	if err == nil {
		return nil
	}
	return &status.HintError{Err: fmt.Errorf("cluster.manifests: %w", err), Hint: "set a folder of YAML manifests that this user can read"}
}

func sourceProblem(err error, kubeconfig string) error {
	if err == nil {
		return nil
	}
	hint := "set cluster.kubeconfig or cluster.manifests, or run as a pod with a service account"
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		hint = "set a kubeconfig that this user can read, or run as a pod with a service account"
	case kubeconfig != "":
		hint = "fix the kubeconfig; test it with `kubectl --kubeconfig FILE get services`"
	}
	return &status.HintError{Err: fmt.Errorf("cluster: %w", err), Hint: hint}
}

// newZone returns the zone as cfg configures it; nil if another server answers cluster names.
func (c *cluster) newZone(cfg *config.Config) (*zone.Zone, error) {
	if c.store == nil {
		return nil, nil //nolint:nilnil // the zone is optional
	}
	settings := zone.Config{
		Store: c.store, Domain: cfg.ClusterDomain, TTL: cfg.Cluster.TTL,
		Pods: map[string]zone.PodMode{
			config.PodsDisabled: zone.PodsDisabled,
			config.PodsInsecure: zone.PodsInsecure,
			config.PodsVerified: zone.PodsVerified,
		}[cfg.Cluster.Pods],
		PodNames: cfg.Cluster.PodNames, IgnoreEmpty: cfg.Cluster.IgnoreEmptyService,
		AllSlices: cfg.Cluster.Endpoints == config.EndpointsAll,
		NodeZone:  c.topologyZone(cfg.Cluster.NodeZone),
		Ranges:    cfg.Cluster.Ranges, Namespaces: cfg.Cluster.Namespaces,
		KnownNamespaces: cfg.Cluster.NamespaceSelector != "",
		Excluded:        routedSubzones(cfg),
		StaleAfter:      cfg.Cluster.StaleAfter, Nameservers: nameservers(cfg.Listen.Addresses),
	}
	if pool := c.central; pool != nil {
		settings.HasFallback = func() bool { return !pool.Empty() }
	}
	return zone.New(settings)
}

// routedSubzones returns the zones below the cluster domain that have routes of their own.
func routedSubzones(cfg *config.Config) []string {
	var names []string
	for _, route := range cfg.Forward {
		if strings.HasSuffix(route.Zone, "."+cfg.ClusterDomain) {
			names = append(names, route.Zone)
		}
	}
	return names
}

// nameservers returns the addresses at which the zone is served.
func nameservers(listen []netip.Addr) []netip.Addr {
	var own []netip.Addr
	for _, addr := range listen {
		if !addr.IsUnspecified() {
			own = append(own, addr.WithZone(""))
			continue
		}
		for _, local := range localAddrs() {
			if local.IsGlobalUnicast() && (addr.Is6() || local.Is4()) {
				own = append(own, local)
			}
		}
	}
	return own
}

// centralRoutes returns the zones that the central resolver answers, except those with a configured route.
func (c *cluster) centralRoutes(cfg *config.Config) []string {
	if c.central == nil {
		return nil
	}
	zones := []string{cfg.ClusterDomain}
	if len(cfg.Cluster.Ranges) == 0 && c.store == nil {
		zones = append(zones, "in-addr.arpa.", "ip6.arpa.")
	}
	for _, prefix := range cfg.Cluster.Ranges {
		zones = append(zones, reverseZones(prefix)...)
	}
	slices.Sort(zones)
	return slices.DeleteFunc(slices.Compact(zones), func(z string) bool {
		return slices.ContainsFunc(cfg.Forward, func(r config.Route) bool { return r.Zone == z })
	})
}

// synced reports whether the source, if there is one, has delivered a full list.
func (c *cluster) synced() bool {
	if c.source == nil {
		return true
	}
	select {
	case <-c.source.Ready():
		return true
	default:
		return false
	}
}

// restored reports whether cluster names are answered from a snapshot, because the source has not synced yet.
func (c *cluster) restored() bool {
	return c.store != nil && c.store.Restored(zone.Services)
}

// restoredNote describes the answers from a snapshot, "" if there are none.
func (c *cluster) restoredNote(now time.Time) string {
	if !c.restored() {
		return ""
	}
	return fmt.Sprintf("; names are answered from a snapshot, %s old", c.store.Age(zone.Services, now).Round(time.Second))
}

// awaitSync waits for the first sync of a new source, so that no known name is denied meanwhile.
func (c *cluster) awaitSync(ctx context.Context, patience time.Duration) error {
	if c.source == nil {
		return nil
	}
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case <-c.source.Ready():
		return nil
	case <-limit.C:
		return &status.HintError{
			Err:  fmt.Errorf("cluster: the new source is not synced after %s: %s", patience, c.syncProblem()),
			Hint: "check that the API server is reachable and grants this process list and watch",
		}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// syncProblem returns what keeps the source from syncing.
func (c *cluster) syncProblem() string {
	stats := c.source.Stats()
	for _, kind := range stats.Kinds {
		if !kind.Synced && kind.LastError != "" {
			return zone.Kinds()[kind.Kind] + ": " + kind.LastError
		}
	}
	if !stats.ServiceWatch.Synced && stats.ServiceWatch.LastError != "" {
		return "central.service: " + stats.ServiceWatch.LastError
	}
	return "no response yet"
}

// reverseZones returns the zones that hold exactly the reverse names of a masked prefix. It is one zone if
// the prefix ends at a byte of an IPv4 address or a nibble of an IPv6 address, else up to 128 or 8 (RFC 1035
// section 3.5, RFC 3596 section 2.5).
func reverseZones(prefix netip.Prefix) []string {
	step, root := 8, "in-addr.arpa."
	if prefix.Addr().Is6() {
		step, root = 4, "ip6.arpa."
	}
	parts := (prefix.Bits() + step - 1) / step
	spare := parts*step - prefix.Bits()
	zones := make([]string, 0, 1<<spare)
	for n := range 1 << spare {
		zones = append(zones, reverseZone(prefix.Addr().AsSlice(), step, parts, n)+root)
	}
	return zones
}

// reverseZone writes the first parts of an address in reverse order, with n added to the last of them. A part
// has step bits.
func reverseZone(addr []byte, step, parts, n int) string {
	name := ""
	for i := range parts {
		value := int(addr[i*step/8])
		if step == 4 {
			value = value >> (4 * (1 - i%2)) & 0xf
		}
		if i == parts-1 {
			value += n
		}
		base := 10
		if step == 4 {
			base = 16
		}
		name = strconv.FormatInt(int64(value), base) + "." + name
	}
	return name
}

// interceptTarget returns the part of the interception that may change: from the running configuration and
// the cluster.
func (a *Agent) interceptTarget() node.Target {
	r := a.running.Load()
	var w node.Target
	var known serviceState
	if r.cluster.service != nil {
		if state := r.cluster.service.Load(); state != nil {
			known = *state
		}
	}
	w.Services = r.config.Intercept.Services
	if len(w.Services) == 0 {
		w.Services = serviceAddresses(known.own, r.config.Listen)
	}
	if r.config.Intercept.Mode == config.ModeTransparent {
		return w // kube-proxy is the fallback
	}
	to := r.config.Intercept.Fallback
	w.From, w.None = to.String(), !to.Central && len(to.Addresses) == 0
	switch {
	case !to.Central:
		w.Fallback = to.Addresses
	case r.config.Cluster.Central.Service != config.ServiceName{}:
		w.Fallback = known.ready
	default:
		w.Fallback = r.config.Cluster.Central.Addresses
	}
	return w
}

// serviceAddresses returns the first address in own for each family that the agent listens on.
func serviceAddresses(own []netip.AddrPort, listen config.Listen) []netip.Addr {
	var addrs []netip.Addr
	for _, o := range own {
		sameFamily := func(a netip.Addr) bool { return a.Is4() == o.Addr().Is4() }
		if slices.ContainsFunc(listen.Addresses, sameFamily) && !slices.ContainsFunc(addrs, sameFamily) {
			addrs = append(addrs, o.Addr())
		}
	}
	return addrs
}

// makeStore makes the store that the cluster's source fills. Names are answered from it; with
// cluster.invalidate it holds services only, for the notification of changes. The observer is registered
// before the store is filled.
func (a *Agent) makeStore(c *cluster, cfg *config.Cluster) {
	switch {
	case cfg.Resolver == config.ResolverLocal:
		c.store = zone.NewStore()
		c.events = c.store
		a.limitNames(c)
	case cfg.Resolver == config.ResolverCentral && cfg.Invalidate:
		c.events = zone.NewStore()
	default:
	}
	a.observe(c)
}

// limitNames bounds the bytes of one namespace to its share of the memory.
func (a *Agent) limitNames(c *cluster) {
	if c.store != nil {
		c.store.Limit(a.memory.share.Load().namespace())
	}
}

// observe makes changes in the cluster purge the cached answers below c's domain. The domain may differ from
// the one that the store was made for.
func (a *Agent) observe(c *cluster) {
	if c.events != nil {
		c.events.Observe(c.domain, a.purge)
	}
}

// purge drops the cached answers of owner, from the cache in use now: a reload may have replaced it. Sources
// call purge from their own goroutines.
func (a *Agent) purge(owner []byte) {
	if r := a.running.Load(); r != nil {
		r.cache.OwnerChanged(owner, time.Now())
	}
}

// owner returns the function that maps a name to the owner whose changes invalidate its answer. It is nil if
// no changes are watched.
func (c *cluster) owner() func(name []byte) []byte {
	if c.events == nil {
		return nil
	}
	domain := c.domain
	return func(name []byte) []byte { return zone.Owner(name, domain) }
}
