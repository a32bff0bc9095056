// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodecache/node-cache/pkg/zone"
)

// ManifestsConfig configures Manifests.
type ManifestsConfig struct {
	Folder     string      // required
	Store      *zone.Store // nil: fill no store, only serve ServiceWatch
	Namespaces []string    // only these are exposed; empty: all

	// Label selectors in kubectl syntax; empty selects all. EndpointSlices follow their Service. A namespace has the
	// labels of its document, if there is one, and kubernetes.io/metadata.name.
	ServiceSelector, NamespaceSelector string

	Endpoints    Endpoints
	Pods         bool          // use Pods too
	ServicesOnly bool          // fill the store with Services only, whatever Endpoints and Pods are
	ServiceWatch *ServiceWatch // nil: none; Namespaces and the selectors do not apply to it

	Log *slog.Logger // nil: silent
	Now func() time.Time
}

// Manifests keep a store equal to the objects in a folder of YAML and JSON files, instead of an API server.
//
// They read the files *.yaml, *.yml and *.json of the folder itself, as "kubectl apply -f FOLDER" does. They skip
// subfolders, hidden files and kustomization.yaml, and follow links to files, so a mounted ConfigMap works like any
// other folder. They use the documents of kind Service, EndpointSlice, Endpoints, Namespace and Pod, also in lists, and
// skip other kinds. There is no API server to fill in defaults: a Service needs its clusterIP, EndpointSlices or
// Endpoints list the ready pods, and a Pod has a name only through its status.
//
// [Manifests.Problems] reports what is wrong; the rest is served. A document that becomes unusable removes nothing: its
// last good objects stay until it is fixed or removed, so that a typo does not take a name out of service. An unknown
// field is reported and ignored. If the folder itself cannot be read, everything stays.
//
// New and changed objects are served once the folder has been unchanged for 50 ms. A missing object is removed after
// another 500 ms without a change, because a file that is being rewritten lacks objects for a while.
type Manifests struct {
	cfg            ManifestsConfig
	folder         manifestFolder // used only by Run after NewManifests
	filter         manifestFilter
	kinds          []zone.Kind
	store          manifestStore   // its store is nil if no store is filled
	serviceWatcher *serviceWatcher // nil: none
	ready          chan struct{}

	counts   map[zone.Kind]*manifestCounts // set by NewManifests, not changed later
	failures atomic.Uint64
	panics   atomic.Uint64

	mu       sync.Mutex // guards the following fields
	problems []Problem
	broken   string // why the folder cannot be read; empty: it can
}

// manifestCounts are the counters of one kind.
type manifestCounts struct {
	events  atomic.Uint64
	arrival histogram
}

// NewManifests reads the folder once. It fails if the configuration is invalid or the folder cannot be read;
// [Manifests.Problems] reports problems in its files. Before Run, it changes only the store's expected kinds.
func NewManifests(cfg ManifestsConfig) (*Manifests, error) {
	if cfg.Folder == "" {
		return nil, errors.New("manifests: no folder set")
	}
	if cfg.Now == nil {
		return nil, errors.New("manifests: no clock set")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	path, err := filepath.Abs(cfg.Folder)
	if err != nil {
		return nil, fmt.Errorf("resolving %s: %w", cfg.Folder, err)
	}
	cfg.Folder = path
	m := &Manifests{
		cfg: cfg, folder: manifestFolder{path: path}, ready: make(chan struct{}),
		store:  manifestStore{store: cfg.Store, present: map[recordKey]bool{}},
		filter: manifestFilter{namespaces: cfg.Namespaces, endpoints: cfg.Endpoints, pods: cfg.Pods},
		counts: map[zone.Kind]*manifestCounts{},
	}
	if m.filter.services, err = labels.Parse(cfg.ServiceSelector); err != nil {
		return nil, fmt.Errorf("parsing the service selector: %w", err)
	}
	if m.filter.namespaceSelector, err = labels.Parse(cfg.NamespaceSelector); err != nil {
		return nil, fmt.Errorf("parsing the namespace selector: %w", err)
	}
	if cfg.ServicesOnly {
		m.filter.endpoints, m.filter.pods = EndpointsNone, false
	}
	m.folder.recordPanic = m.recordPanic
	m.folder.scan()
	if m.folder.err != nil {
		return nil, fmt.Errorf("reading manifests: %w", m.folder.err)
	}
	_, m.problems = m.folder.all()
	if cfg.ServiceWatch != nil {
		m.serviceWatcher = newServiceWatcher(*cfg.ServiceWatch)
	}
	if cfg.Store != nil {
		m.kinds = m.filled()
		cfg.Store.Expect(m.kinds...)
	}
	for _, kind := range m.kinds {
		m.counts[kind] = &manifestCounts{}
	}
	return m, nil
}

// filled returns the kinds that the folder fills.
func (m *Manifests) filled() []zone.Kind {
	kinds := []zone.Kind{zone.Services}
	if m.cfg.ServicesOnly {
		return kinds
	}
	if m.cfg.Endpoints != EndpointsNone {
		kinds = append(kinds, zone.Slices)
	}
	kinds = append(kinds, zone.Namespaces)
	if m.cfg.Pods {
		kinds = append(kinds, zone.Pods)
	}
	return kinds
}

// String names the task in logs.
func (m *Manifests) String() string { return "manifests" }

// Ready is closed once the store holds the folder's first state and that state was reported to ServiceWatch.
func (m *Manifests) Ready() <-chan struct{} { return m.ready }

// Problems returns the folder's current problems, by file and document. It is safe for concurrent use.
func (m *Manifests) Problems() []Problem {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.problems)
}

// Stats returns the counters. Age is always 0: the folder is on this host. Failures counts the scans that could not
// read the folder. Stats is safe for concurrent use.
func (m *Manifests) Stats() Stats {
	synced := m.isReady()
	m.mu.Lock()
	broken := m.broken
	m.mu.Unlock()
	s := Stats{Panics: m.panics.Load()}
	if m.serviceWatcher != nil {
		s.ServiceWatch = ServiceWatchStats{Synced: synced, LastError: broken}
	}
	for _, kind := range m.kinds {
		c := m.counts[kind]
		s.Kinds = append(s.Kinds, KindStats{
			Kind: kind, Synced: synced, Events: c.events.Load(), Failures: m.failures.Load(),
			LastError: broken, Arrival: c.arrival.read(),
		})
	}
	return s
}

// apply brings the store and the service watcher in line with the folder. event is the time of the event that caused
// it, or zero. Unless remove is set, missing objects stay, and apply reports whether there are any.
func (m *Manifests) apply(ctx context.Context, event time.Time, remove bool) (left bool) {
	objects, problems := m.folder.all()
	m.report(ctx, problems)
	if m.serviceWatcher != nil {
		left = m.applyServiceWatch(objects, remove)
	}
	if m.store.store == nil {
		return left
	}
	records := m.filter.records(objects)
	if m.cfg.ServicesOnly {
		records.namespaces = nil
	}
	changed := m.store.put(records, m.cfg.Now())
	gone := m.store.removed(records)
	if remove {
		changed = append(changed, m.store.remove(gone, m.cfg.Now())...)
		gone = nil
	}
	now := m.cfg.Now()
	for _, kind := range changed {
		c := m.counts[kind]
		c.events.Add(1)
		if !event.IsZero() {
			c.arrival.observe(now.Sub(event))
		}
	}
	if len(changed) > 0 {
		m.cfg.Log.InfoContext(ctx, "manifests applied", "folder", m.cfg.Folder, "objects", len(objects), "changes", len(changed))
	}
	return left || len(gone) > 0
}

// applyServiceWatch passes all objects to the service watcher, which picks its own.
func (m *Manifests) applyServiceWatch(objects []manifest, remove bool) (left bool) {
	services, endpoints := map[string]bool{}, map[string]bool{} // by name, in the watched namespace
	for i := range objects {
		o := &objects[i]
		if o.id.namespace != m.cfg.ServiceWatch.Namespace {
			continue
		}
		if o.service != nil {
			services[o.id.name] = true
			m.serviceWatcher.putService(o.service)
		}
		for _, slice := range o.slices {
			endpoints[slice.Name] = true
			m.serviceWatcher.putSlice(slice)
		}
	}
	if !remove {
		return true // only the service watcher knows whether an object is missing
	}
	m.serviceWatcher.retain(zone.Services, func(_, name string) bool { return services[name] })
	m.serviceWatcher.retain(zone.Slices, func(_, name string) bool { return endpoints[name] })
	return false
}

// report publishes the problems, and logs the new ones.
func (m *Manifests) report(ctx context.Context, problems []Problem) {
	m.mu.Lock()
	before := m.problems
	m.problems, m.broken = problems, ""
	if m.folder.err != nil {
		m.broken = "folder: " + withoutPath(m.folder.err).Error()
	}
	m.mu.Unlock()
	first := !m.isReady()
	for _, p := range problems {
		if first || !slices.Contains(before, p) {
			m.cfg.Log.WarnContext(ctx, "manifest problem",
				"folder", m.cfg.Folder, "file", p.File, "document", p.Document, "line", p.Line, "what", p.What, "hint", p.Hint)
		}
	}
	if len(before) > 0 && len(problems) == 0 {
		m.cfg.Log.InfoContext(ctx, "manifests fixed", "folder", m.cfg.Folder)
	}
}

func (m *Manifests) isReady() bool {
	select {
	case <-m.ready:
		return true
	default:
		return false
	}
}

// recordPanic counts and logs a panic that a file caused.
func (m *Manifests) recordPanic(file string, panicked any, stack []byte) {
	m.panics.Add(1)
	m.cfg.Log.Error("recovered from a panic", "where", "manifests", "file", file, "panic", fmt.Sprint(panicked), "stack", string(stack))
}
