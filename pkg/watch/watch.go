// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/panics"
	"github.com/nodecache/node-cache/pkg/pods"
)

// Endpoints selects the EndpointSlices that a zone gets.
type Endpoints uint8

// Values of Endpoints.
const (
	EndpointsHeadless Endpoints = iota // slices of headless Services only
	EndpointsAll
	EndpointsNone
)

// Config configures a Watch or Manifests.
type Config struct {
	Kubeconfig string      // path, for a Watch; empty: the pod's service account
	Context    string      // name of a context in the kubeconfig; empty: its current context
	Folder     string      // folder of the files, required for Manifests; a Watch ignores it
	Store      *zone.Store // gets the objects of the cluster; nil: only ServiceWatch and OwnPods get some
	ClusterSet *zone.Store // gets ServiceImports, as Services, and imported EndpointSlices unless Endpoints is EndpointsNone; nil: not watched
	Endpoints  Endpoints
	Pods       bool // Store gets Pods too
	External   bool // the store gets the external addresses of Services

	// ServicesOnly is for a caller that needs change notifications and answers nothing itself: the store gets Services
	// only, whatever Endpoints and Pods are, and Ready does not wait for them.
	ServicesOnly bool

	Namespaces []string // namespaces of the objects, each with watches of its own; empty: all. ServiceWatch may be in another one

	// ServiceSelector is a label selector for Services and, as in CoreDNS, for EndpointSlices and Pods: the controller copies a
	// Service's labels to its slices. In Manifests, it applies to the Service of an EndpointSlice, and not to Pods.
	// NamespaceSelector selects Namespaces: the store gets no others, and the zone must hide what is in the others ([zone.Config]
	// KnownNamespaces). In Manifests, a namespace has the labels of its document, if there is one, and kubernetes.io/metadata.name.
	// Empty selects all.
	ServiceSelector, NamespaceSelector string

	ServiceWatch *ServiceWatch // nil: none
	OwnPods      *pods.Index   // a Watch fills it with the pods of the node; nil: they are not watched
	PodSource    PodSource     // where the pods of OwnPods come from
	Log          *slog.Logger  // required
	Now          func() time.Time

	// The rest is for a Watch.

	// StaleAfter is the zone's staleness limit, at least 5 s; 0: 90 s. If nothing arrives for most of that time, the Watch confirms
	// the state actively, with a new watch if needed. Bookmarks come once a minute: with less than 78 s, each kind costs at least
	// one request in that time, even in a healthy cluster.
	StaleAfter time.Duration

	// MaxList bounds the bytes of a list, all pages together, as client-go reads them. It does not apply to the first list
	// of a watch, whose objects come one by one. 0: 1 GiB.
	MaxList int64

	NodeName  string // node of NodeTopology and OwnPods; with PodsFromKubelet it may be empty
	UserAgent string // empty: node-cache

	dial func(ctx context.Context, network, addr string) (net.Conn, error) // replaced by tests; nil: that of newDialer
}

// A Watch fills a store from the API server. It keeps no objects itself.
type Watch struct {
	cfg             Config
	clients         *clients
	conns           *connTracker
	statuses        []*kindStatus // one for each kind of Store, then of ClusterSet
	serviceStatuses []*kindStatus // one for the Service of ServiceWatch, then one for its EndpointSlices
	podStatus       *kindStatus   // status of OwnPods; nil: no pods are watched
	podFeed         *podFeed      // fills OwnPods from the kubelet; nil: the API server is the only source
	serviceWatcher  *serviceWatcher
	feeds           []*feed
	idle            int // feeds that Ready does not wait for
	panics          atomic.Uint64
	ready           chan struct{}
	unsynced        atomic.Int32 // feeds that Ready still waits for
	unsyncedService atomic.Int32 // feeds of the service watch that are not synced
}

// New reads the credentials and returns a Watch to Run. It opens no connection.
func New(cfg Config) (*Watch, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	w := &Watch{cfg: cfg, ready: make(chan struct{}), clients: new(clients)}
	w.conns = &connTracker{dial: cfg.dial, now: cfg.Now, open: make(map[*trackedConn]struct{})}
	if cfg.Store != nil || cfg.ServiceWatch != nil || cfg.PodSource != PodsFromKubelet {
		var err error
		if w.clients, err = newClients(cfg.Kubeconfig, cfg.Context, cfg.UserAgent, cfg.MaxList, cfg.ClusterSet != nil, w.conns); err != nil {
			return nil, err
		}
	}
	if cfg.Store != nil {
		w.addKinds()
	}
	if cfg.ServiceWatch != nil {
		w.addServiceWatch()
	}
	if cfg.OwnPods != nil {
		w.addOwnPods()
	}
	w.shareLimits()
	w.unsynced.Store(int32(len(w.feeds) - w.idle))
	if w.unsynced.Load() == 0 {
		close(w.ready)
	}
	return w, nil
}

// check validates the configuration and sets the defaults.
func (cfg *Config) check() error {
	if cfg.Store == nil && cfg.ServiceWatch == nil && cfg.OwnPods == nil {
		return errors.New("watch: there is nothing to watch")
	}
	if cfg.dial == nil {
		cfg.dial = newDialer().DialContext
	}
	cfg.StaleAfter = cmp.Or(cfg.StaleAfter, defaultStaleAfter)
	if cfg.StaleAfter < minStaleAfter {
		return fmt.Errorf("stale after %s: must be at least %s, the time that the API server may stay silent", cfg.StaleAfter, minStaleAfter)
	}
	cfg.MaxList = cmp.Or(cfg.MaxList, defaultMaxList)
	cfg.UserAgent = cmp.Or(cfg.UserAgent, "node-cache")
	_, _, err := cfg.selectors()
	return err
}

// selectors parses the label selectors.
func (cfg *Config) selectors() (services, namespaces labels.Selector, err error) {
	if services, err = labels.Parse(cfg.ServiceSelector); err != nil {
		return nil, nil, fmt.Errorf("parsing the service selector %q: %w", cfg.ServiceSelector, err)
	}
	if namespaces, err = labels.Parse(cfg.NamespaceSelector); err != nil {
		return nil, nil, fmt.Errorf("parsing the namespace selector %q: %w", cfg.NamespaceSelector, err)
	}
	return services, namespaces, nil
}

// addKinds adds the feeds of Store and of ClusterSet.
func (w *Watch) addKinds() {
	spaces := w.cfg.Namespaces
	if len(spaces) == 0 {
		spaces = []string{""}
	}
	settled := w.feedSynced
	if w.cfg.ServicesOnly {
		settled = func() {}
		w.idle += len(spaces)
	}
	kinds := storeKinds(w.cfg.ServicesOnly, w.cfg.Endpoints, w.cfg.Pods)
	for _, kind := range kinds {
		v := &kindStatus{kind: kind, counted: kind, store: w.cfg.Store}
		w.statuses = append(w.statuses, v)
		for _, space := range spaces {
			q := w.queryFor(kind)
			if kind == zone.Namespaces {
				q.only = space
			} else {
				q.namespace = space
			}
			w.addFeed(v, q, zoneTarget(w.cfg.Store, v, w.cfg.put), settled)
		}
	}
	w.cfg.Store.Expect(kinds...)
	if w.cfg.ClusterSet != nil {
		w.addClusterSet(spaces)
	}
}

// storeKinds returns the kinds that a store gets, in the order of zone.Kind.
func storeKinds(servicesOnly bool, endpoints Endpoints, pods bool) []zone.Kind {
	kinds := []zone.Kind{zone.Services}
	if servicesOnly {
		return kinds
	}
	if endpoints != EndpointsNone {
		kinds = append(kinds, zone.Slices)
	}
	kinds = append(kinds, zone.Namespaces)
	if pods {
		kinds = append(kinds, zone.Pods)
	}
	return kinds
}

// queryFor returns the query of a kind, for all namespaces.
func (w *Watch) queryFor(kind zone.Kind) query {
	q := query{client: w.clients.core, labels: w.cfg.ServiceSelector}
	switch kind {
	case zone.Slices:
		q.client, q.resource, q.example = w.clients.discovery, "endpointslices", &discoveryv1.EndpointSlice{}
		if w.cfg.Endpoints == EndpointsHeadless {
			q.labels = strings.TrimPrefix(q.labels+","+corev1.IsHeadlessService, ",")
		}
	case zone.Namespaces:
		q.resource, q.example, q.labels = "namespaces", &corev1.Namespace{}, w.cfg.NamespaceSelector
	case zone.Pods:
		q.resource, q.example = "pods", &corev1.Pod{}
		q.fields = "status.phase!=Succeeded,status.phase!=Failed,status.phase!=Unknown"
	default:
		q.resource, q.example = "services", &corev1.Service{}
	}
	return q
}

// addServiceWatch adds the feeds of the service watch: one Service and its EndpointSlices.
func (w *Watch) addServiceWatch() {
	w.serviceWatcher = newServiceWatcher(*w.cfg.ServiceWatch)
	for _, kind := range []zone.Kind{zone.Services, zone.Slices} {
		q := query{namespace: w.cfg.ServiceWatch.Namespace}
		if kind == zone.Services {
			q.client, q.resource, q.example = w.clients.core, "services", &corev1.Service{}
			q.only = w.cfg.ServiceWatch.Service
		} else {
			q.client, q.resource, q.example = w.clients.discovery, "endpointslices", &discoveryv1.EndpointSlice{}
			q.labels = discoveryv1.LabelServiceName + "=" + w.cfg.ServiceWatch.Service
		}
		v := &kindStatus{kind: kind, counted: kind}
		w.serviceStatuses = append(w.serviceStatuses, v)
		w.unsyncedService.Add(1)
		w.addFeed(v, q, w.serviceWatcher.target(kind), func() {
			if w.unsyncedService.Add(-1) > 0 {
				w.feedSynced()
				return
			}
			w.serviceWatcher.markSynced(w.feedSynced) // Ready waits until the endpoints were reported, not only received
		})
	}
}

// addOwnPods adds the feed of the node's pods. Ready does not wait for it.
func (w *Watch) addOwnPods() {
	w.idle++
	w.podStatus = &kindStatus{kind: zone.Pods, counted: zone.Pods, onConfirmed: w.cfg.OwnPods.Confirm}
	q := query{client: w.clients.core, resource: "pods", example: &corev1.Pod{}, fields: "spec.nodeName=" + w.cfg.NodeName}
	f := w.addFeed(w.podStatus, q, podTarget(w.cfg.OwnPods, w.cfg.NodeName), func() {})
	if source := w.cfg.PodSource; source != PodsFromServer {
		w.podFeed = &podFeed{feed: f, index: w.cfg.OwnPods, node: w.cfg.NodeName, either: source == PodsFromEither, dial: w.cfg.dial}
	}
}

// addFeed adds a feed of q to w and to the status v. The feed calls settled once it is synced.
func (w *Watch) addFeed(v *kindStatus, q query, t target, settled func()) *feed {
	after, timeout := confirmTimes(w.cfg.StaleAfter)
	f := &feed{
		query: q, target: t, status: v, feedStatus: v.add(), onSynced: settled,
		confirmAfter: after, confirmTimeout: timeout, maxList: w.cfg.MaxList, conns: w.conns,
		logs:  rate.NewLimiter(rate.Every(flipEvery), flipBurst),
		guard: panics.Guard{Where: "watch of " + q.resource, Log: w.cfg.Log, Count: &w.panics}, log: w.cfg.Log, now: w.cfg.Now,
	}
	w.feeds = append(w.feeds, f)
	return f
}

// feedSynced records that a feed has its first list, or will get none.
func (w *Watch) feedSynced() {
	if w.unsynced.Add(-1) == 0 {
		close(w.ready)
	}
}

// Run watches until ctx ends. Errors of the API server do not end it.
func (w *Watch) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	if w.serviceWatcher != nil {
		wg.Go(func() { w.serviceWatcher.run(ctx) })
	}
	for _, f := range w.feeds {
		if w.podFeed == nil || f != w.podFeed.feed {
			wg.Go(func() { f.run(ctx) })
		}
	}
	if w.podFeed != nil {
		wg.Go(func() { w.podFeed.run(ctx) })
	}
	wg.Wait()
	if w.clients.http != nil {
		w.clients.http.CloseIdleConnections()
	}
	return nil
}

// String names the task in logs.
func (w *Watch) String() string { return "watch of the API server" }

// Server returns the URL of the API server, empty if none is watched.
func (w *Watch) Server() string { return w.clients.server }

// Ready is closed once every permitted kind is synced and the endpoints of the watched service were reported. It does not
// wait for OwnPods, for a kind that the server forbids, or, with ServicesOnly, for any kind of Store.
func (w *Watch) Ready() <-chan struct{} { return w.ready }

// NodeTopology requests the topology zone and the region of the node. Each is empty if the node has none.
func (w *Watch) NodeTopology(ctx context.Context) (zone, region string, err error) {
	return w.clients.nodeTopology(ctx, w.cfg.NodeName)
}

// Stats returns the counters.
func (w *Watch) Stats() Stats {
	now := w.cfg.Now()
	s := Stats{Requests: w.clients.requests.Load(), Panics: w.panics.Load()}
	for _, v := range w.statuses {
		s.Kinds = append(s.Kinds, v.stats(now))
	}
	if w.podStatus != nil {
		own := w.podStatus.stats(now)
		s.OwnPods, s.PodSource = &own, SourceServer
		if w.podFeed != nil {
			s.PodSource, _ = w.podFeed.source.Load().(string)
		}
	}
	s.ServiceWatch.Synced = len(w.serviceStatuses) > 0
	for _, v := range w.serviceStatuses {
		k := v.stats(now)
		s.ServiceWatch.Synced = s.ServiceWatch.Synced && k.Synced
		if s.ServiceWatch.LastError == "" {
			s.ServiceWatch.LastError = k.LastError
		}
	}
	return s
}

// shareLimits makes the feeds of one resource share a rate limit.
func (w *Watch) shareLimits() {
	number := make(map[string]int)
	for _, f := range w.feeds {
		number[f.query.resource]++
	}
	limits := make(map[string]*rate.Limiter)
	for resource, n := range number {
		limits[resource] = rate.NewLimiter(requestsPerSecond, requestBurst+n)
	}
	for _, f := range w.feeds {
		f.limiter = limits[f.query.resource]
	}
}
