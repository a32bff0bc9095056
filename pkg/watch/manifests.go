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

// ManifestsConfig is what Manifests are made from.
type ManifestsConfig struct {
	Folder     string      // required
	Store      *zone.Store // nil: fill none, only follow
	Namespaces []string    // expose these only; empty: all

	// Label selectors as kubectl takes them, empty for all. EndpointSlices go with their Service. A namespace has
	// the labels of its document, if there is one, and kubernetes.io/metadata.name.
	ServiceSelector, NamespaceSelector string

	Endpoints    Endpoints
	Pods         bool          // take pods too
	ServicesOnly bool          // fill the store with services alone, whatever Endpoints and Pods say
	ServiceWatch *ServiceWatch // nil: none; Namespaces and the selectors do not concern it

	Log *slog.Logger // nil: silent
	Now func() time.Time
}

// Manifests keep a store equal to the objects in a folder of YAML and JSON files, in place of an API server.
//
// Read are the files *.yaml, *.yml and *.json of the folder itself, as "kubectl apply -f FOLDER" does: subfolders are
// not, hidden files are not, links to files are followed (so a mounted ConfigMap is a folder like any other), and
// kustomization.yaml is no object. Of their documents Service, EndpointSlice, Endpoints, Namespace and Pod are used,
// also in lists; other kinds are passed over. Nobody fills in what the API server and its controllers would: a Service
// needs its clusterIP, EndpointSlices or Endpoints stand for ready pods, and a Pod has a name only by its status.
//
// What is wrong is told by [Manifests.Problems]; the rest is served. A document that can no longer be used takes
// nothing away: what it gave stays until it is mended or removed, because a slip in an editor must not take a name
// out of service. A field that is not known is told of and left out. While the folder itself cannot be read,
// everything stays.
//
// New and changed objects are served as soon as the folder has rested for 50 ms. One that is gone is taken away when the
// folder has rested for another 500 ms: a file that is being written anew lacks them for a while.
type Manifests struct {
	cfg            ManifestsConfig
	folder         manifestFolder // Run's after NewManifests
	filter         manifestFilter
	kinds          []zone.Kind
	store          manifestStore   // its store is nil if there is nothing to fill
	serviceWatcher *serviceWatcher // nil: none
	ready          chan struct{}

	counts   map[zone.Kind]*manifestCounts // fixed by NewManifests
	failures atomic.Uint64
	panics   atomic.Uint64

	mu       sync.Mutex // guards the following fields
	problems []Problem
	broken   string // why the folder cannot be read; empty: it can
}

// manifestCounts is what is counted of one kind.
type manifestCounts struct {
	events  atomic.Uint64
	arrival histogram
}

// NewManifests reads the folder once. An error is about the configuration or the folder as a whole; what is wrong in its
// files is a matter of [Manifests.Problems]. The store is not touched before Run, but for what it is to expect.
func NewManifests(cfg ManifestsConfig) (*Manifests, error) {
	if cfg.Folder == "" {
		return nil, errors.New("manifests need a folder")
	}
	if cfg.Now == nil {
		return nil, errors.New("manifests need a clock")
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
		return nil, fmt.Errorf("parsing the selector of services: %w", err)
	}
	if m.filter.namespaceSelector, err = labels.Parse(cfg.NamespaceSelector); err != nil {
		return nil, fmt.Errorf("parsing the selector of namespaces: %w", err)
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

// filled gives the kinds that the folder fills.
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

// Ready is closed when everything that the folder held at first is in the store, and told to who follows a service.
func (m *Manifests) Ready() <-chan struct{} { return m.ready }

// Problems gives what is wrong with the folder now, by file and document. It may be called at any time.
func (m *Manifests) Problems() []Problem {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.problems)
}

// Stats gives what was counted. Age is always 0: the folder is on this machine. Failures count the looks that found the
// folder out of reach. It may be called at any time.
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

// apply brings the store and the follower to what the folder holds, after an event at that time, zero if there was
// none. Unless it is to remove them it leaves what is gone, and reports whether there is something left so.
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

// applyFollow tells the follower about all objects: it picks those that it is for.
func (m *Manifests) applyServiceWatch(objects []manifest, remove bool) (left bool) {
	services, endpoints := map[string]bool{}, map[string]bool{} // of the namespace followed, by name
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
		return true // whether there is anything gone only the follower knows
	}
	m.serviceWatcher.retain(zone.Services, func(_, name string) bool { return services[name] })
	m.serviceWatcher.retain(zone.Slices, func(_, name string) bool { return endpoints[name] })
	return false
}

// report publishes what is wrong, and logs what was not known.
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
		m.cfg.Log.InfoContext(ctx, "manifests mended", "folder", m.cfg.Folder)
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

// defect records a panic that a file caused.
func (m *Manifests) recordPanic(file string, panicked any, stack []byte) {
	m.panics.Add(1)
	m.cfg.Log.Error("recovered from a panic", "where", "manifests", "file", file, "panic", fmt.Sprint(panicked), "stack", string(stack))
}
