// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodecache/node-cache/pkg/filewatch"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/panics"
)

// manifestRemoveDelay is how long an object must be missing before it is removed: a file that is being rewritten lacks
// objects for a while.
const manifestRemoveDelay = 500 * time.Millisecond

// Manifests keep a store equal to the objects in a folder of YAML and JSON files, instead of an API server.
//
// They read the files *.yaml, *.yml and *.json of the folder itself. They skip subfolders, hidden files and
// kustomization.yaml, and follow links to files, so a mounted ConfigMap works like any other folder. They use the
// documents of kind Service, EndpointSlice, Endpoints, Namespace, Pod and, with ClusterSet, ServiceImport, also in lists,
// and skip other kinds. There is no API server to fill in defaults: a Service needs its clusterIP, EndpointSlices or
// Endpoints list the ready pods, and a Pod has a name only through its status.
//
// [Manifests.Problems] reports what is wrong; the rest is served. While a file has an unusable document, nothing is
// removed that the file held before, so that a typo does not take a name out of service. An unknown field is reported
// and ignored. If the folder itself cannot be read, everything stays.
//
// New and changed objects are served once the folder has been unchanged for 50 ms. A missing object is removed half a
// second later.
type Manifests struct {
	cfg            Config
	folder         manifestFolder // used only by Run after NewManifests
	selection      manifestSelection
	serviceWatcher *serviceWatcher // nil: none
	ready          chan struct{}
	sets           []*manifestSet // in the order of puts; removals have the opposite order
	kinds          []zone.Kind    // kinds that Store gets
	missing        bool           // objects of the sets are missing in the folder
	failures       atomic.Uint64
	panics         atomic.Uint64

	mu       sync.Mutex // guards the following fields
	problems []Problem
	broken   string // why the folder cannot be read; empty: it can
}

// A manifestSet is what one target gets of the folder: the objects of one kind.
type manifestSet struct {
	target
	kind    zone.Kind
	all     bool                          // the target gets all objects, not only the selected ones
	present map[types.NamespacedName]bool // objects that were put and not removed; false: missing in the folder

	events  atomic.Uint64
	arrival Histogram // guarded by Manifests.mu
}

// NewManifests reads the folder once. It fails if the configuration is invalid or the folder cannot be read;
// [Manifests.Problems] reports problems in its files. Before Run, it changes only the store's expected kinds.
func NewManifests(cfg Config) (*Manifests, error) {
	if cfg.Folder == "" {
		return nil, errors.New("manifests: no folder set")
	}
	services, namespaces, err := cfg.selectors()
	if err != nil {
		return nil, err
	}
	if cfg.Folder, err = filepath.Abs(cfg.Folder); err != nil {
		return nil, fmt.Errorf("resolving the folder of manifests: %w", err)
	}
	m := &Manifests{cfg: cfg, ready: make(chan struct{}), selection: manifestSelection{cfg.Namespaces, services, namespaces, cfg.Endpoints}}
	m.folder = manifestFolder{path: cfg.Folder, imports: cfg.ClusterSet != nil, guard: panics.Guard{Where: "manifests", Log: cfg.Log, Count: &m.panics}}
	if m.folder.scan(context.Background()); m.folder.err != nil {
		return nil, fmt.Errorf("reading manifests: %w", m.folder.err)
	}
	_, m.problems = m.folder.objects()
	m.addSets()
	return m, nil
}

// addSets adds the sets of ServiceWatch, Store and ClusterSet. Their order matters. apply goes forward: EndpointSlices are stored
// before their Service, so a Service that becomes headless has its endpoints. remove goes backward: a Service is removed before
// its EndpointSlices.
func (m *Manifests) addSets() {
	add := func(t target, kind zone.Kind, all bool) {
		m.sets = append(m.sets, &manifestSet{target: t, kind: kind, all: all, present: map[types.NamespacedName]bool{}})
	}
	if m.cfg.ServiceWatch != nil {
		m.serviceWatcher = newServiceWatcher(*m.cfg.ServiceWatch)
		add(m.serviceWatcher.target(zone.Slices), zone.Slices, true)
		add(m.serviceWatcher.target(zone.Services), zone.Services, true)
	}
	if m.cfg.Store == nil {
		return
	}
	m.kinds = storeKinds(m.cfg.ServicesOnly, m.cfg.Endpoints, m.cfg.Pods)
	m.cfg.Store.Expect(m.kinds...)
	for _, kind := range []zone.Kind{zone.Namespaces, zone.Slices, zone.Pods, zone.Services} {
		if slices.Contains(m.kinds, kind) {
			add(zoneTarget(m.cfg.Store, &kindStatus{kind: kind}, m.cfg.put), kind, false)
		}
	}
	if set := m.cfg.ClusterSet; set != nil {
		var kinds []zone.Kind
		for _, kind := range slices.Backward(importedKinds(m.cfg.Endpoints)) {
			v := &kindStatus{kind: storeKind(kind)}
			add(zoneTarget(set, v, putImported), kind, false)
			kinds = append(kinds, v.kind)
		}
		set.Expect(kinds...)
	}
}

// String names the task in logs.
func (m *Manifests) String() string { return "manifests" }

// Ready is closed once the store holds the folder's first state and that state was reported to ServiceWatch.
func (m *Manifests) Ready() <-chan struct{} { return m.ready }

// Run watches the folder until ctx ends, and then returns nil. If the kernel provides no events, it polls every 5 seconds.
// Run can be called once.
func (m *Manifests) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	if m.serviceWatcher != nil {
		tasks.Go(func() { m.serviceWatcher.run(ctx) })
	}
	started := false
	filewatch.Watch(ctx, filewatch.Config{
		Folder: m.cfg.Folder, Log: m.cfg.Log,
		Check: func(bool) time.Duration {
			if !started {
				m.start(ctx)
				started = true
				return 0
			}
			return m.check(ctx)
		},
		OnPanic: func(panicked any) { _ = m.folder.guard.Recovered(ctx, panicked) },
	})
	tasks.Wait()
	return nil
}

// start applies the folder's first state. It removes other objects from the store: another source may have filled it.
func (m *Manifests) start(ctx context.Context) {
	m.folder.scan(ctx) // the folder may have changed since NewManifests
	m.apply(ctx, time.Time{})
	for _, set := range m.sets {
		set.retain(func(namespace, name string) bool {
			return set.present[types.NamespacedName{Namespace: namespace, Name: name}]
		}, m.cfg.Now())
	}
	for _, kind := range m.kinds {
		m.cfg.Store.SetSynced(kind)
		m.cfg.Store.SetAlwaysFresh(kind)
	}
	for _, kind := range importedKinds(m.cfg.Endpoints) {
		if m.cfg.ClusterSet != nil {
			m.cfg.ClusterSet.SetSynced(storeKind(kind))
			m.cfg.ClusterSet.SetAlwaysFresh(storeKind(kind))
		}
	}
	if m.serviceWatcher == nil {
		close(m.ready)
		return
	}
	m.serviceWatcher.markSynced(func() { close(m.ready) })
}

// check applies the folder's changes. Missing objects are removed if the folder is unchanged at the next call, which comes after
// the returned pause.
func (m *Manifests) check(ctx context.Context) (pause time.Duration) {
	began := m.cfg.Now()
	changed := m.folder.scan(ctx)
	if m.folder.err != nil {
		m.failures.Add(1)
	}
	switch {
	case changed:
		m.apply(ctx, began)
	case m.missing:
		m.remove(ctx)
	}
	if m.missing {
		return manifestRemoveDelay
	}
	return 0
}

// apply puts the folder's objects. began is when the check that found a change began; zero: the first state, which is not timed.
func (m *Manifests) apply(ctx context.Context, began time.Time) {
	objects, problems := m.folder.objects()
	m.report(ctx, problems)
	all, selected := m.selection.split(objects)
	m.missing = false
	changes := 0
	for _, set := range m.sets {
		list := selected[set.kind]
		if set.all {
			list = all[set.kind]
		}
		changes += m.putObjects(set, list, began)
		m.missing = m.missing || set.lacksObjects()
	}
	if changes > 0 {
		m.cfg.Log.InfoContext(ctx, "manifests applied", "folder", m.cfg.Folder, "objects", len(objects), "changes", changes)
	}
}

// putObjects puts the objects in the set, marks its others as missing, and returns how many objects of the store changed.
func (m *Manifests) putObjects(set *manifestSet, list []object, began time.Time) (changes int) {
	for key := range set.present {
		set.present[key] = false
	}
	for _, o := range list {
		set.present[types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}] = true
		now := m.cfg.Now()
		if !set.put(o, now) || set.all {
			continue
		}
		changes++
		set.events.Add(1)
		if !began.IsZero() {
			m.mu.Lock()
			set.arrival.observe(now.Sub(began))
			m.mu.Unlock()
		}
	}
	return changes
}

// lacksObjects reports whether an object of the set is missing in the folder.
func (s *manifestSet) lacksObjects() bool {
	for _, there := range s.present {
		if !there {
			return true
		}
	}
	return false
}

// remove removes the missing objects.
func (m *Manifests) remove(ctx context.Context) {
	changes := 0
	for _, set := range slices.Backward(m.sets) {
		for key, there := range set.present {
			if there {
				continue
			}
			delete(set.present, key)
			if set.remove(key.Namespace, key.Name, m.cfg.Now()) {
				set.events.Add(1)
				changes++
			}
		}
	}
	m.missing = false
	if changes > 0 {
		m.cfg.Log.InfoContext(ctx, "manifests removed", "folder", m.cfg.Folder, "changes", changes)
	}
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
	defer m.mu.Unlock()
	s := Stats{Panics: m.panics.Load()}
	if m.serviceWatcher != nil {
		s.ServiceWatch = KindStats{Synced: synced, LastError: m.broken}
	}
	for _, set := range m.sets {
		if !set.all {
			s.Kinds = append(s.Kinds, KindStats{
				Kind: set.kind, Synced: synced, Events: set.events.Load(), Failures: m.failures.Load(),
				LastError: m.broken, Arrival: set.arrival,
			})
		}
	}
	slices.SortFunc(s.Kinds, func(a, b KindStats) int { return cmp.Compare(a.Kind, b.Kind) })
	return s
}
