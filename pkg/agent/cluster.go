// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/names/notify"
	"github.com/nodecache/node-cache/pkg/names/tsig"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/node"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
)

// A cluster is the agent's knowledge of its Kubernetes cluster, and the central resolver for the rest. Without a
// cluster it is zero.
type cluster struct {
	setDomain []byte                   // of the cluster set, in canonical wire form; nil: there is none
	domains   [][]byte                 // canonical wire form; the first is that of reverse names
	owner     func(name []byte) []byte // the owner whose changes invalidate a name's answer; nil: no changes are watched
	store     *zone.Store              // nil: this process answers no cluster names
	events    *zone.Store              // its changes purge answers: store, or a store of services only; nil: none
	set       *zone.Store              // the imports of the cluster set, whose changes purge answers too; nil: there is none
	source    interface {              // delivers objects, from the API server or a folder of manifests; nil: none are watched
		part
		Ready() <-chan struct{}
		Stats() watch.Stats
	}
	pods         *pods.Index               // of this node; nil: they are not watched
	endpoints    *upstream.Service         // of the central resolver; nil: not watched
	central      *upstream.Pool            // nil: there is no central resolver
	centralZones [][]byte                  // that central answers, in canonical wire form
	topology     *atomic.Pointer[topology] // of this node; nil: not read
	keys         *tsig.Keys                // of secondary servers; nil: none
	notifier     *notify.Notifier          // of secondary servers; nil: no client may transfer the zones
}

// A topology is where a node is.
type topology struct{ zone, region string }

// newCluster returns the cluster of cfg. It reuses the source of old and what that fills, and the central pool,
// if their keys are the same.
func (b *builder) newCluster(cfg *config.Config, old *cluster, oldConfig *config.Config) (*cluster, error) {
	if cfg.Cluster.Resolver == config.ResolverNone && !interceptNeedsService(cfg) && cfg.Pods.Identity == config.IdentityOff {
		return new(cluster), nil
	}
	domains, setDomain, err := clusterDomains(cfg)
	if err != nil {
		return nil, err
	}
	c := &cluster{domains: domains, setDomain: setDomain, topology: new(atomic.Pointer[topology])}
	kept := old.domains != nil
	if kept && sameSource(&cfg.Cluster, &oldConfig.Cluster) && samePods(cfg, oldConfig) {
		*c = *old
		c.domains, c.setDomain, c.central, c.centralZones, c.keys, c.notifier = domains, setDomain, nil, nil, nil, nil
	} else if err := b.makeSource(c, cfg); err != nil {
		return nil, err
	}
	c.setOwner()
	switch {
	case !cfg.Cluster.Central.IsSet(), cfg.Cluster.Resolver == config.ResolverNone:
	case kept && c.endpoints == old.endpoints && sameCentral(&cfg.Cluster.Central, &oldConfig.Cluster.Central):
		c.central = old.central
	default:
		err = b.makeCentral(c, cfg)
	}
	if err == nil && c.central != nil {
		c.centralZones, err = c.zonesOfCentral(cfg)
	}
	if err == nil {
		err = b.makeNotifier(c, cfg)
	}
	return c, err
}

// ownerOf returns the owner of a name in one of the domains, nil for none.
func ownerOf(name []byte, domains [][]byte) []byte {
	for _, domain := range domains {
		if owner := zone.Owner(name, domain); owner != nil {
			return owner
		}
	}
	return nil
}

// makeNotifier sets c's keys and notifier, if clients may transfer its zones.
func (b *builder) makeNotifier(c *cluster, cfg *config.Config) (err error) {
	if c.store == nil || len(cfg.Cluster.TransferTo) == 0 {
		return nil
	}
	if file := cfg.Cluster.TransferKeys; file != "" {
		if c.keys, err = tsig.New(file, b.log); err != nil {
			return &hint.Error{Err: fmt.Errorf("cluster.transferKeys: %w", err), Hint: "set a file of keys, as of tsig-keygen, that this user can read"}
		}
	}
	settings := notify.Config{Ready: c.source.Ready(), Zones: append(cfg.Domains(), cfg.Cluster.External.Zones...), Keys: c.keys, Log: b.log, Now: time.Now}
	for _, store := range c.stores() {
		settings.Stores = append(settings.Stores, store)
	}
	if c.set != nil {
		settings.Zones = append(settings.Zones, cfg.Cluster.ClusterSet)
	}
	for _, client := range cfg.Cluster.TransferTo {
		if client.Port != 0 {
			settings.To = append(settings.To, client.Server())
		}
	}
	c.notifier = notify.New(settings)
	return nil
}

// clusterDomains returns the domains of the cluster and of its set, in canonical wire form; nil: there is no set.
func clusterDomains(cfg *config.Config) (domains [][]byte, set []byte, err error) {
	if domains, err = wireNames(cfg.Domains()); err == nil && cfg.Cluster.ClusterSet != "" {
		set, err = wireName(cfg.Cluster.ClusterSet)
	}
	return domains, set, err
}

// setOwner sets owner for the domains of c, if changes are watched.
func (c *cluster) setOwner() {
	if c.events == nil {
		return
	}
	domains := c.domains
	if c.set != nil {
		domains = append(slices.Clip(domains), c.setDomain)
	}
	c.owner = func(name []byte) []byte { return ownerOf(name, domains) }
}

// sameSource reports whether one source serves two configurations.
func sameSource(a, b *config.Cluster) bool {
	return objectsOf(a) == objectsOf(b) && a.Central.Service == b.Central.Service && a.Invalidate == b.Invalidate &&
		(a.ClusterSet == "") == (b.ClusterSet == "") && a.StaleAfter == b.StaleAfter
}

// objectsOf describes the objects that a configuration selects, and where they come from. It decides whether a reload keeps the
// objects, and whether a start takes those of a snapshot.
func objectsOf(c *config.Cluster) string {
	text := fmt.Sprintf("source %q, resolver %s, endpoints %s, pods %t, namespaces %q, services %q, namespaces %q",
		originOf(c), c.Resolver, c.Endpoints, c.Pods == config.PodsVerified, c.Namespaces, c.ServiceSelector, c.NamespaceSelector)
	if len(c.External.Zones) > 0 {
		text += ", external addresses"
	}
	return text
}

// samePods reports whether two configurations make the same index of the node's pods.
func samePods(a, b *config.Config) bool {
	return a.Pods.Identity == b.Pods.Identity && a.Pods.SearchPath == b.Pods.SearchPath &&
		slices.Equal(a.Pods.SearchPathExcept, b.Pods.SearchPathExcept) && (!a.Pods.SearchPath || a.ClusterDomain == b.ClusterDomain)
}

func sameCentral(a, b *config.Central) bool {
	return a.Service == b.Service && slices.Equal(a.Addresses, b.Addresses) && a.Connections == b.Connections
}

// makeSource sets c's source and the store that it fills, if they are needed.
func (b *builder) makeSource(c *cluster, whole *config.Config) (err error) {
	cfg, identity := &whole.Cluster, whole.Pods.Identity
	follow := b.watchCentral(c, cfg.Central.Service)
	b.makeStore(c, cfg)
	switch {
	case (identity == config.IdentityAPI || identity == config.IdentityAuto) && os.Getenv("NODE_NAME") == "":
		return &hint.Error{
			Err:  errors.New("pods.identity: the environment variable NODE_NAME is not set"),
			Hint: "set it to the name of the Node, from spec.nodeName in a pod",
		}
	case identity != config.IdentityOff:
		host, err := searchHost(whole)
		if err != nil {
			return err
		}
		c.pods = pods.NewIndex(cfg.StaleAfter, host)
	case c.events == nil && follow == nil:
		return nil
	}
	slim := c.store == nil
	endpoints := map[string]watch.Endpoints{
		config.EndpointsHeadless: watch.EndpointsHeadless,
		config.EndpointsAll:      watch.EndpointsAll,
		config.EndpointsNone:     watch.EndpointsNone,
	}[cfg.Endpoints]
	podSource := map[string]watch.PodSource{
		config.IdentityAPI:     watch.PodsFromServer,
		config.IdentityKubelet: watch.PodsFromKubelet,
		config.IdentityAuto:    watch.PodsFromEither,
	}[identity]
	source := watch.Config{
		Kubeconfig: cfg.Kubeconfig, Context: cfg.Context, Folder: cfg.Manifests, Store: c.events, ClusterSet: c.set, ServiceWatch: follow, OwnPods: c.pods, PodSource: podSource,
		Endpoints: endpoints, Pods: cfg.Pods == config.PodsVerified, External: len(cfg.External.Zones) > 0, ServicesOnly: slim,
		Namespaces: cfg.Namespaces, ServiceSelector: cfg.ServiceSelector, NamespaceSelector: cfg.NamespaceSelector,
		StaleAfter: cfg.StaleAfter, MaxList: b.memory.Share().List(), NodeName: os.Getenv("NODE_NAME"),
		UserAgent: "node-cache/" + b.version,
		Log:       b.log, Now: time.Now,
	}
	if cfg.Manifests != "" {
		if c.source, err = watch.NewManifests(source); err != nil {
			return &hint.Error{Err: fmt.Errorf("cluster.manifests: %w", err), Hint: "set a folder of YAML manifests that this user can read"}
		}
		return nil
	}
	c.source, err = watch.New(source)
	return sourceProblem(err, cfg.Kubeconfig)
}

// searchHost returns what the search paths of pods are made of, nil if they are not walked. With dnsPolicy Default the
// agent's resolv.conf has the searches of the host.
func searchHost(cfg *config.Config) (*pods.Host, error) {
	if !cfg.Pods.SearchPath {
		return nil, nil //nolint:nilnil // nil: no search paths
	}
	c, err := dns.ClientConfigFromFile("/etc/resolv.conf")
	if err != nil {
		return nil, &hint.Error{Err: fmt.Errorf("pods.searchPath: %w", err), Hint: "run the agent with dnsPolicy Default"}
	}
	return &pods.Host{Domain: cfg.ClusterDomain, Searches: c.Search, Ndots: c.Ndots, Except: cfg.Pods.SearchPathExcept}, nil
}

// watchCentral returns the watch of the central resolver's service.
func (b *builder) watchCentral(c *cluster, service config.ServiceName) *watch.ServiceWatch {
	if service == (config.ServiceName{}) {
		return nil
	}
	c.endpoints = new(upstream.Service)
	log := b.log.With("service", service.String())
	return &watch.ServiceWatch{
		Namespace: service.Namespace,
		Service:   service.Name,
		Changed: func(servers []watch.Server, own []netip.AddrPort) {
			ready := make([]upstream.ServiceEndpoint, 0, len(servers))
			for _, s := range servers {
				ready = append(ready, upstream.ServiceEndpoint(s))
			}
			c.endpoints.Set(ready, own)
			b.targetChanged()
			addrs, _ := c.endpoints.Confirmed()
			log.Info("central endpoints updated", "count", len(addrs), "ready", addrs[:min(len(addrs), maxLogged)], "service_addresses", own)
		},
	}
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

func (b *builder) makeCentral(c *cluster, cfg *config.Config) (err error) {
	pool := b.poolConfig(cfg, c.domains[0], cfg.ClusterDomain)
	pool.Targets = tcpTargets(cfg.Cluster.Central.Addresses)
	if c.endpoints != nil {
		pool.Endpoints = c.endpoints.Endpoints()
	}
	pool.Connections = cfg.Cluster.Central.Connections
	c.central, err = upstream.New(pool)
	if errors.Is(err, upstream.ErrNoUpstream) {
		return &hint.Error{
			Err:  fmt.Errorf("cluster.central.addresses: %w", err),
			Hint: "all these addresses are node-cache's own; set those of the central resolver",
		}
	}
	return err
}

func sourceProblem(err error, kubeconfig string) error {
	if err == nil {
		return nil
	}
	advice := "set cluster.kubeconfig or cluster.manifests, or run as a pod with a service account"
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		advice = "set a kubeconfig that this user can read, or run as a pod with a service account"
	case kubeconfig != "":
		advice = "fix the kubeconfig; test it with `kubectl --kubeconfig FILE get services`"
	}
	return &hint.Error{Err: fmt.Errorf("cluster: %w", err), Hint: advice}
}

// zonesOfCentral returns the zones that the central resolver answers.
func (c *cluster) zonesOfCentral(cfg *config.Config) (zones [][]byte, err error) {
	names := append(cfg.Domains(), cfg.Cluster.Zones...)
	if len(cfg.Cluster.Ranges) == 0 && c.store == nil {
		names = append(names, "in-addr.arpa.", "ip6.arpa.")
	}
	names = append(names, reverseZones(cfg)...)
	slices.Sort(names)
	return wireNames(slices.Compact(names))
}

// reverseZones returns the zones of cluster.ranges.
func reverseZones(cfg *config.Config) (zones []string) {
	for _, prefix := range cfg.Cluster.Ranges {
		zones = append(zones, config.ReverseZones(prefix)...)
	}
	return zones
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
		return &hint.Error{
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

// interceptTarget returns the part of the interception that may change.
func (c *cluster) interceptTarget(cfg *config.Config) (t node.Target) {
	var ready, own []netip.AddrPort
	if c.endpoints != nil {
		ready, own = c.endpoints.Confirmed()
	}
	t.Services = cfg.Intercept.Services
	if len(t.Services) == 0 {
		t.Services = serviceAddresses(own, cfg.Listen)
	}
	if cfg.Intercept.Mode == config.ModeTransparent {
		return t // kube-proxy is the fallback
	}
	to := cfg.Intercept.Fallback
	t.From, t.None = to.String(), !to.Central && len(to.Addresses) == 0
	switch {
	case !to.Central:
		t.Fallback = to.Addresses
	case cfg.Cluster.Central.Service != config.ServiceName{}:
		t.Fallback = ready
	default:
		t.Fallback = cfg.Cluster.Central.Addresses
	}
	return t
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
func (b *builder) makeStore(c *cluster, cfg *config.Cluster) {
	switch {
	case cfg.Resolver == config.ResolverLocal:
		c.store = zone.NewStore()
		c.events = c.store
		if cfg.ClusterSet != "" {
			c.set = zone.NewClusterSet(c.store)
		}
		b.limitNames(c)
	case cfg.Resolver == config.ResolverCentral && cfg.Invalidate:
		c.events = zone.NewStore()
	default:
	}
	b.observe(c)
}

// stores yields the stores of cluster objects and their sections.
func (c *cluster) stores() iter.Seq2[snapshot.Kind, *zone.Store] {
	return func(yield func(snapshot.Kind, *zone.Store) bool) {
		if (c.events == nil || yield(snapshot.Zone, c.events)) && c.set != nil {
			yield(snapshot.ClusterSet, c.set)
		}
	}
}

// limitNames bounds the bytes of one namespace to its share of the memory.
func (b *builder) limitNames(c *cluster) {
	if c.store == nil {
		return
	}
	for _, store := range c.stores() {
		store.Limit(b.memory.Share().Namespace())
	}
}

// observe registers the observer of c's stores for c's domains, which may differ from those that the stores were made for.
func (b *builder) observe(c *cluster) {
	if c.events != nil {
		c.events.Observe(c.domains, b.observer)
	}
	if c.set != nil {
		c.set.Observe([][]byte{c.setDomain}, b.observer)
	}
	if c.notifier != nil {
		c.notifier.Changed() // until now the observer passed changes on to the former one
	}
}

// A storeObserver passes the changes of the cluster's objects on to all that keep something made of them: the kernel, the cache,
// and the notifier, which makes versions. The last two are those in use now: a reload may have replaced them.
type storeObserver struct {
	kernel  *kernelHits
	running *atomic.Pointer[generation]
}

// Changing implements [zone.Observer].
func (o *storeObserver) Changing() {
	if k := o.kernel.Responder; k != nil {
		k.ZoneChanging()
	}
}

// OwnerChanged implements [zone.Observer]. The kernel observes the cache.
func (o *storeObserver) OwnerChanged(owner []byte) {
	if r := o.running.Load(); r != nil {
		r.cache.OwnerChanged(owner, time.Now())
	}
}

// Changed implements [zone.Observer].
func (o *storeObserver) Changed() {
	if k := o.kernel.Responder; k != nil {
		k.ZoneChanged()
	}
	if r := o.running.Load(); r != nil && r.cluster.notifier != nil {
		r.cluster.notifier.Changed()
	}
}

// sourceName returns where the cluster data comes from.
func (c *cluster) sourceName(cfg *config.Config) string {
	switch {
	case c.source == nil:
		return ""
	case c.events == nil && c.endpoints == nil && cfg.Pods.Identity == config.IdentityKubelet:
		return "kubelet"
	}
	return originOf(&cfg.Cluster)
}

// originOf returns where the cluster data comes from, if that is not the kubelet.
func originOf(c *config.Cluster) string {
	context := ""
	if c.Context != "" {
		context = ", context " + c.Context
	}
	switch {
	case c.Manifests != "":
		return "folder " + c.Manifests
	case c.Kubeconfig != "":
		return "API server of " + c.Kubeconfig + context
	}
	return "API server https://" + net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")) + context
}
