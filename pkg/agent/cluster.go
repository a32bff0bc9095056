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
	"strings"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
	"github.com/nodecache/node-cache/pkg/zone"
)

// A source tells what is in the cluster: the API server's watches, or a folder of
// manifests.
type source interface {
	task
	Ready() <-chan struct{}
	Stats() watch.Stats
}

// A cluster is what this process knows of the Kubernetes cluster around it, and
// whom it asks about the rest. A reload that leaves its settings as they are keeps
// it, with all it knows.
type cluster struct {
	domain    []byte              // canonical wire form
	store     *zone.Store         // nil: this process answers no cluster names itself
	events    *zone.Store         // whose changes drop answers: store, or one of services alone; nil: none does
	source    source              // nil: nothing of the cluster is followed
	endpoints *upstream.Endpoints // of the central resolver's service; nil: none is followed
	near      *neighbours         // tells endpoints; nil with it
	followed  *atomic.Pointer[followed]
	central   *upstream.Pool // nil: there is no central resolver
	nodeZone  *atomic.Pointer[string]
}

// clusterFor is what cfg says of the cluster, taking over from old what stays.
// It is nil if there is no cluster.
func (a *Agent) clusterFor(cfg *config.Config, old *running) (*cluster, error) {
	if cfg.Cluster.Resolver == config.ResolverNone && !followsForNode(cfg) {
		return nil, nil //nolint:nilnil // no cluster is no mistake
	}
	c := &cluster{nodeZone: new(atomic.Pointer[string]), followed: new(atomic.Pointer[followed])}
	var err error
	if c.domain, err = wireName(cfg.ClusterDomain); err != nil {
		return nil, err
	}
	kept := old != nil && old.cluster != nil
	if kept && sameSource(&cfg.Cluster, &old.config.Cluster) {
		c.store, c.source, c.nodeZone = old.cluster.store, old.cluster.source, old.cluster.nodeZone
		c.events = old.cluster.events
		c.endpoints, c.near, c.followed = old.cluster.endpoints, old.cluster.near, old.cluster.followed
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

// sameSource tells whether two configurations take the same things from the same
// place.
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

// makeSource gives c its source and the store that it fills, as far as there is
// need of them.
func (a *Agent) makeSource(c *cluster, cfg *config.Cluster) (err error) {
	follow := a.follow(c, cfg.Central.Service)
	a.makeStore(c, cfg)
	if c.events == nil && follow == nil {
		return nil
	}
	slim := c.store == nil
	endpoints := map[config.EndpointSet]watch.Endpoints{
		config.EndpointsHeadless: watch.EndpointsHeadless,
		config.EndpointsAll:      watch.EndpointsAll,
		config.EndpointsNone:     watch.EndpointsNone,
	}[cfg.Endpoints]
	if cfg.Manifests != "" {
		c.source, err = watch.NewManifests(watch.ManifestsConfig{
			Folder: cfg.Manifests, Store: c.events, ServiceWatch: follow,
			Endpoints: endpoints, Pods: cfg.Pods == config.PodsVerified, ServicesOnly: slim,
			Namespaces: cfg.Namespaces, ServiceSelector: cfg.ServiceSelector, NamespaceSelector: cfg.NamespaceSelector,
			Log: a.log, Now: time.Now,
		})
		return manifestsProblem(err)
	}
	c.source, err = watch.New(watch.Config{
		Kubeconfig: cfg.Kubeconfig, Store: c.events, ServiceWatch: follow,
		Endpoints: endpoints, Pods: cfg.Pods == config.PodsVerified, ServicesOnly: slim,
		Namespaces: cfg.Namespaces, ServiceSelector: cfg.ServiceSelector, NamespaceSelector: cfg.NamespaceSelector,
		StaleAfter: cfg.StaleAfter, MaxList: a.memory.known.Load().list(), NodeName: os.Getenv("NODE_NAME"),
		UserAgent: "node-cache/" + a.options.Version,
		Log:       a.log, Now: time.Now,
	})
	return sourceProblem(err, cfg.Kubeconfig)
}

// follow asks for the endpoints of the central resolver's service.
func (a *Agent) follow(c *cluster, service config.ServiceName) *watch.ServiceWatch {
	if service == (config.ServiceName{}) {
		return nil
	}
	c.endpoints = new(upstream.Endpoints)
	c.near = &neighbours{endpoints: c.endpoints}
	log := a.log.With("service", service.String())
	return &watch.ServiceWatch{
		Namespace: service.Namespace,
		Service:   service.Name,
		Changed: func(servers []watch.Server, own []netip.AddrPort) {
			c.near.tell(servers, own)
			ready := addresses(servers)
			c.followed.Store(&followed{ready: ready, own: slices.Clone(own)})
			a.node.refresh()
			log.Info("central resolver's endpoints", "count", len(ready), "ready", ready[:min(len(ready), maxLogged)], "service_addresses", own)
		},
	}
}

// followed is what the source told last of the central resolver's service.
type followed struct {
	ready []netip.AddrPort // endpoints
	own   []netip.AddrPort // the service's own addresses
}

// followsForNode tells whether the interception needs the central resolver's service,
// though nobody here asks it.
func followsForNode(cfg *config.Config) bool {
	i := &cfg.Intercept
	return i.Manage && cfg.Cluster.Central.Service != config.ServiceName{} &&
		(i.Mode == config.ModeLinkLocal && i.Fallback.Central || i.Mode == config.ModeTransparent && len(i.Services) == 0)
}

// maxLogged is how many endpoints one line of the log has: a large service may
// change often.
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
		Self: func(addr netip.AddrPort) bool { return leadsBack(addr, cfg.Listen) },
	})
	if errors.Is(err, upstream.ErrNoUpstream) {
		return &HintError{
			Err:  fmt.Errorf("cluster.central.addresses: %w", err),
			Hint: "every address of the central resolver is one that node-cache itself listens on; name the central resolver's",
		}
	}
	return err
}

func manifestsProblem(err error) error {
	if err == nil {
		return nil
	}
	return &HintError{Err: fmt.Errorf("cluster.manifests: %w", err), Hint: "name a folder of YAML objects that this user can read"}
}

func sourceProblem(err error, kubeconfig string) error {
	if err == nil {
		return nil
	}
	hint := "set cluster.kubeconfig or cluster.manifests, or run as a pod with a service account"
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		hint = "name a kubeconfig that this user can read, or run as a pod with a service account"
	case kubeconfig != "":
		hint = "mend the kubeconfig; `kubectl --kubeconfig FILE get services` tries it"
	}
	return &HintError{Err: fmt.Errorf("cluster: %w", err), Hint: hint}
}

// view is the zone as cfg wants it answered; nil if cluster names are answered
// elsewhere.
func (c *cluster) view(cfg *config.Config) (*zone.Zone, error) {
	if c == nil || c.store == nil {
		return nil, nil //nolint:nilnil // no zone is no mistake
	}
	settings := zone.Config{
		Store: c.store, Domain: cfg.ClusterDomain, TTL: cfg.Cluster.TTL,
		Pods: map[config.PodMode]zone.PodMode{
			config.PodsDisabled: zone.PodsDisabled,
			config.PodsInsecure: zone.PodsInsecure,
			config.PodsVerified: zone.PodsVerified,
		}[cfg.Cluster.Pods],
		PodNames: cfg.Cluster.PodNames, IgnoreEmpty: cfg.Cluster.IgnoreEmptyService,
		AllSlices: cfg.Cluster.Endpoints == config.EndpointsAll,
		NodeZone:  c.topologyZone(cfg.Cluster.NodeZone),
		Ranges:    cfg.Cluster.Ranges, Namespaces: cfg.Cluster.Namespaces,
		KnownNamespaces: cfg.Cluster.NamespaceSelector != "",
		Excluded:        stubs(cfg),
		StaleAfter:      cfg.Cluster.StaleAfter, Nameservers: nameservers(cfg.Listen.Addresses),
	}
	if pool := c.central; pool != nil {
		settings.HasFallback = func() bool { return !pool.Empty() }
	}
	return zone.New(settings)
}

// stubs are the zones below the cluster domain that have routes of their own.
func stubs(cfg *config.Config) []string {
	var names []string
	for _, route := range cfg.Forward {
		if strings.HasSuffix(route.Zone, "."+cfg.ClusterDomain) {
			names = append(names, route.Zone)
		}
	}
	return names
}

// nameservers are the addresses at which the zone is served.
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

// centralRoutes are the routes of the names that the central resolver answers,
// but those that the configuration has routes for.
func (c *cluster) centralRoutes(cfg *config.Config) []string {
	if c == nil || c.central == nil {
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

// inSync tells whether the source, if there is one, has told all there was once.
func (c *cluster) inSync() bool {
	if c == nil || c.source == nil {
		return true
	}
	select {
	case <-c.source.Ready():
		return true
	default:
		return false
	}
}

// restored tells whether cluster names are answered from a snapshot until the source has told all.
func (c *cluster) restored() bool {
	return c != nil && c.store != nil && c.store.Restored(zone.Services)
}

// meanwhile says what is given until the source is in sync, if there is something.
func (c *cluster) meanwhile(now time.Time) string {
	if !c.restored() {
		return ""
	}
	return fmt.Sprintf("; until then names are answered as they were %s ago, from a snapshot", c.store.Age(zone.Services, now).Round(time.Second))
}

// synced waits for the source of a new configuration, so that no name known so far
// is unknown for a while.
func (c *cluster) synced(ctx context.Context, patience time.Duration) error {
	if c == nil || c.source == nil {
		return nil
	}
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case <-c.source.Ready():
		return nil
	case <-limit.C:
		return &HintError{
			Err:  fmt.Errorf("cluster: the new source is not in sync after %s: %s", patience, c.why()),
			Hint: "see that the API server can be reached and allows this to be watched",
		}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// why says what keeps the source from being in sync.
func (c *cluster) why() string {
	told := c.source.Stats()
	for _, kind := range told.Kinds {
		if !kind.Synced && kind.LastError != "" {
			return zone.Kinds()[kind.Kind] + ": " + kind.LastError
		}
	}
	if !told.ServiceWatch.Synced && told.ServiceWatch.LastError != "" {
		return "central.service: " + told.ServiceWatch.LastError
	}
	return "nothing was heard yet"
}
