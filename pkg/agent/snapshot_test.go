// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/cluster"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/node"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/snapshot/snapshottest"
	"github.com/nodecache/node-cache/pkg/watch"
)

// A failingDisk is a folder whose Create fails, or hangs, when the test sets it so.
type failingDisk struct {
	*snapshottest.Disk

	mu        sync.Mutex // guards what follows
	createErr error      // of Create; nil: none
	hangs     chan struct{}
}

// Create implements [snapshot.Folder].
func (d *failingDisk) Create(name string) (snapshot.File, error) {
	d.mu.Lock()
	createErr, hangs := d.createErr, d.hangs
	d.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	if createErr != nil {
		return nil, createErr
	}
	return d.Disk.Create(name)
}

func (d *failingDisk) set(createErr error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.createErr = createErr
}

// notes is a log that can be read while it is written.
type notes struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

// Write implements io.Writer.
func (n *notes) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.Write(p)
}

// take is what was logged since the last call.
func (n *notes) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	text := strings.TrimSpace(n.text.String())
	n.text.Reset()
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// keeping makes the snapshots of an agent whose log leaves out the time.
func keeping(f snapshot.Folder, log *notes) *snapshots {
	to := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "took" {
				return slog.Attr{}
			}
			return a
		},
	}))
	s := &snapshots{Keeper: snapshot.NewKeeper("writer", time.Now, to), log: to, change: make(chan struct{}, 1)}
	s.Open = func(string) snapshot.Folder { return f }
	return s
}

// emptyGeneration is a generation with an empty cache and an empty store.
func emptyGeneration(t *testing.T) *generation {
	t.Helper()
	cfg := config.Default(config.Agent)
	cfg.Snapshot.Folder = "/disk"
	cfg.Cluster.Resolver, cfg.Cluster.NodeZone = config.ResolverLocal, ""
	r := &generation{config: cfg}
	var err error
	r.cache, err = cache.New(cache.Config{Size: cache.MinSize, ServeStale: cache.ServeStale{Window: time.Hour, TTL: 30 * time.Second}}, time.Now())
	assert.NoError(t, err)
	r.cluster = &cluster.Cluster{Store: zone.NewStore(), Domains: [][]byte{[]byte("\x07cluster\x05local\x00")}, Source: before()}
	r.cluster.Events = r.cluster.Store
	r.cluster.Store.Expect(zone.Services)
	return r
}

// learn adds an answer and a service to r.
func learn(t *testing.T, r *generation) {
	t.Helper()
	now := time.Now()
	q := new(dns.Msg).SetQuestion("www.test.", dns.TypeA)
	q.Response = true
	rr, err := dns.NewRR("www.test. 60 IN A 192.0.2.1")
	assert.NoError(t, err)
	q.Answer = append(q.Answer, rr)
	q.Compress = true
	msg, err := q.Pack()
	assert.NoError(t, err)
	r.cache.Put(wwwKey(), &cache.Answer{Msg: msg, TTLs: []uint16{uint16(len(msg)) - 10}, Lifetime: time.Minute}, now)
	s := r.cluster.Store
	s.PutService(zone.Service{Namespace: "shop", Name: "web", Addrs: []netip.Addr{netip.MustParseAddr("10.96.0.7")}, TTL: -1}, now)
	s.ConfirmFresh(zone.Services, now)
	s.SetSynced(zone.Services)
}

func wwwKey() []byte { return []byte("\x03www\x04test\x00\x00\x01\x00") }

// holdsLearned reports whether r has the answer and the service of learn.
func holdsLearned(r *generation) (answer, object bool) {
	_, found := r.cache.Lookup(wwwKey(), time.Now(), nil)
	return found == cache.Fresh, r.cluster.Store.Stats().Kinds[zone.Services].Objects == 1
}

// TestSnapshotRoundTrip checks that the next agent restores what this one saved.
func TestSnapshotRoundTrip(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk, log := snapshottest.NewDisk(), new(notes)
		r, s := emptyGeneration(t), keeping(disk, log)
		s.load(t.Context(), r)
		learn(t, r)
		s.attempt(t.Context(), time.Second, r)
		saved := s.Stats()
		if saved.Saved != 1 || saved.Failed != 0 || saved.Bytes != int64(len(disk.Content(snapshot.Name))) || saved.LastSaved.IsZero() {
			t.Errorf("saved: %+v", saved)
		}
		time.Sleep(20 * time.Second)
		next, s := emptyGeneration(t), keeping(disk, log)
		s.Clocks = func() snapshot.ClockState { return snapshot.ClockState{Wall: time.Now().Add(10 * time.Second)} }
		s.load(t.Context(), next)
		want := snapshot.Loaded{Outcome: snapshot.OutcomeLoaded, Entries: 1, Objects: 1, Age: 30 * time.Second}
		got := s.Stats().Loaded
		assert.Same(t, "loaded", want, got)
		if answer, object := holdsLearned(next); !answer || !object {
			t.Errorf("the next one has the answer: %t, the service: %t", answer, object)
		}
		if why := next.cluster.NotReady(time.Now()); !next.cluster.Restored() || why == nil || !strings.Contains(why.Error(), "from a snapshot") {
			t.Errorf("the zone is not reported as restored: %v", why)
		}
		next.cluster.Store.SetSynced(zone.Services)
		if next.cluster.Restored() || strings.Contains(next.cluster.NotReady(time.Now()).Error(), "from a snapshot") {
			t.Error("the zone is reported as restored once it is in sync")
		}
	})
}

// TestSnapshotRefused starts with an empty cache, logs why, and replaces the refused snapshot.
func TestSnapshotRefused(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	good := snapshottest.NewDisk()
	r, s := emptyGeneration(t), keeping(good, new(notes))
	s.Clocks = func() snapshot.ClockState { return snapshot.ClockState{Wall: now} }
	learn(t, r)
	s.attempt(t.Context(), time.Second, r)
	data := good.Content(snapshot.Name)
	damaged := bytes.Clone(data)
	damaged[len(damaged)/2] ^= 1
	tests := []struct {
		name  string
		data  []byte
		later time.Duration
		want  string
	}{
		{"damaged", damaged, 0, "corrupt: checksum mismatch"},
		{"old", data, 25 * time.Hour, "age 25h0m0s exceeds snapshot.maxAge, 24h0m0s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			disk, log := snapshottest.NewDisk(), new(notes)
			disk.WriteFile(snapshot.Name, tt.data)
			r, s := emptyGeneration(t), keeping(disk, log)
			s.Clocks = func() snapshot.ClockState { return snapshot.ClockState{Wall: now.Add(tt.later)} }
			s.load(t.Context(), r)
			loaded := s.Stats().Loaded
			if loaded.Outcome != snapshot.OutcomeRefused || !strings.Contains(loaded.Reason, "snapshot /disk/node-cache.snapshot: ") || !strings.Contains(loaded.Reason, tt.want) {
				t.Errorf("%+v, want %q", loaded, tt.want)
			}
			if answer, object := holdsLearned(r); answer || object || r.cluster.Restored() {
				t.Errorf("it has the answer: %t, the service: %t", answer, object)
			}
			if lines := log.take(); len(lines) != 1 || !strings.Contains(lines[0], "level=WARN") || !strings.Contains(lines[0], "hint=\"no action needed") {
				t.Errorf("log %q", lines)
			}
			s.attempt(t.Context(), time.Second, r)
			again := keeping(disk, log)
			again.Clocks = s.Clocks
			again.load(t.Context(), emptyGeneration(t))
			if got := again.Stats().Loaded.Outcome; got != snapshot.OutcomeLoaded {
				t.Errorf("the next snapshot: %s", got)
			}
		})
	}
}

// TestSnapshotOddRecord has a file with checksums that are right and a record that is not: nothing of it is taken.
func TestSnapshotOddRecord(t *testing.T) {
	t.Parallel()
	whole := func(t *testing.T, r *generation, edit func(kind snapshot.Kind, record []byte) []byte) snapshot.Folder {
		t.Helper()
		disk := snapshottest.NewDisk()
		_, err := snapshot.Save(t.Context(), snapshot.Job{
			Folder: disk, Writer: "w", At: keeping(disk, new(notes)).Clocks(), MaxSize: 1 << 20,
			Fill: func(w *snapshot.Writer) error {
				w.Section(snapshot.Zone, zone.DumpVersion)
				err := dumpZone(r, r.cluster.Events, time.Now(), func(record []byte) error { return w.Record(edit(snapshot.Zone, record)) })
				w.Section(snapshot.Cache, cache.DumpVersion)
				_, err2 := r.cache.Dump(1<<20, time.Now(), func(record []byte) error { return w.Record(edit(snapshot.Cache, record)) })
				w.Section(snapshot.Pods, pods.DumpVersion)
				return errors.Join(err, err2, r.cluster.Pods.Dump(r.cluster.PodScope(&r.config), time.Now(), func(record []byte) error { return w.Record(edit(snapshot.Pods, record)) }))
			},
		})
		assert.NoError(t, err)
		return disk
	}
	for _, kind := range []snapshot.Kind{0, snapshot.Cache, snapshot.Zone, snapshot.Pods} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			r := emptyGeneration(t)
			learn(t, r)
			r.cluster.Pods = pods.NewIndex(time.Minute, nil)
			r.cluster.Pods.Put(&pods.Pod{Namespace: "shop", Name: "web", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.1")}})
			r.cluster.Pods.Confirm(time.Now())
			disk := whole(t, r, func(k snapshot.Kind, record []byte) []byte {
				if k == kind && !bytes.HasPrefix(record, []byte("source")) {
					return append(bytes.Clone(record), 0)
				}
				return record
			})
			next, s := emptyGeneration(t), keeping(disk, new(notes))
			next.cluster.Pods = pods.NewIndex(time.Minute, nil)
			s.load(t.Context(), next)
			answer, object := holdsLearned(next)
			known := next.cluster.Pods.Stats(time.Now()).Pods == 1
			if want := kind == 0; answer != want || object != want || known != want {
				t.Errorf("it has the answer: %t, the service: %t, the pod: %t; want %t: %+v", answer, object, known, want, s.Stats().Loaded)
			}
			if want := fmt.Sprintf("section %q: invalid record", kind); kind != 0 && !strings.Contains(s.Stats().Loaded.Reason, want) {
				t.Errorf("why %q, want %q", s.Stats().Loaded.Reason, want)
			}
		})
	}
}

// TestSnapshotScope leaves the view of the cluster out when other objects are asked for now, and takes the answers.
func TestSnapshotScope(t *testing.T) {
	t.Parallel()
	disk, log := snapshottest.NewDisk(), new(notes)
	r, s := emptyGeneration(t), keeping(disk, log)
	learn(t, r)
	s.attempt(t.Context(), time.Second, r)
	for name, edit := range map[string]func(c *config.Cluster){
		"namespaces": func(c *config.Cluster) { c.Namespaces = []string{"shop"} },
		"endpoints":  func(c *config.Cluster) { c.Endpoints = config.EndpointsAll },
		"selector":   func(c *config.Cluster) { c.ServiceSelector = "a=b" },
		"source":     func(c *config.Cluster) { c.Kubeconfig = "/other" },
		"context":    func(c *config.Cluster) { c.Context = "other" },
		"pods":       func(c *config.Cluster) { c.Pods = config.PodsVerified },
		"external":   func(c *config.Cluster) { c.External.Zones = []string{"example.org."} },
	} {
		next := emptyGeneration(t)
		edit(&next.config.Cluster)
		s := keeping(disk, log)
		s.load(t.Context(), next)
		if answer, object := holdsLearned(next); !answer || object || next.cluster.Restored() || s.Stats().Loaded.Outcome != snapshot.OutcomeLoaded {
			t.Errorf("%s: it has the answer: %t, the service: %t: %+v", name, answer, object, s.Stats().Loaded)
		}
	}
}

// TestSnapshotBeforeSync takes the node's queries at once with a zone from a snapshot, though the source is silent, and after a while
// without one.
func TestSnapshotBeforeSync(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			disk := snapshottest.NewDisk()
			before := emptyGeneration(t)
			if known {
				learn(t, before)
			}
			keeping(disk, new(notes)).attempt(t.Context(), time.Second, before)
			r := emptyGeneration(t)
			keeping(disk, new(notes)).load(t.Context(), r)
			managed := config.Config{Intercept: config.Intercept{Manage: true}}
			n, err := node.New(node.Config{Config: managed, Host: newFakeHost(), Log: slog.New(slog.DiscardHandler)})
			assert.NoError(t, err)
			a := &Agent{node: n, handover: new(socketHandover), ready: make(chan struct{}), gate: openGate()}
			close(a.ready)
			a.running.Store(r)
			began := time.Now()
			a.takeLease(t.Context())
			if took, want := time.Since(began), map[bool]time.Duration{true: 0, false: zoneWait}[known]; took != want {
				t.Errorf("known: %t: the lease was allowed after %s, want %s", known, took, want)
			}
			err = a.notReady()
			if err == nil || strings.Contains(err.Error(), "from a snapshot") != known {
				t.Errorf("not ready: %v", err)
			}
			stats := watch.Stats{Kinds: []watch.KindStats{{Kind: zone.Services}}}
			s := r.cluster.Status(&r.config, &stats, time.Now())
			if s.Kinds[0].Restored != known || (s.Kinds[0].Age == nil) == known {
				t.Errorf("%+v", s.Kinds[0])
			}
		})
	}
}

// TestSnapshotOfClusterSet restores the imports of a cluster set where there is one.
func TestSnapshotOfClusterSet(t *testing.T) {
	t.Parallel()
	disk, log := snapshottest.NewDisk(), new(notes)
	withSet := func() *generation {
		r := emptyGeneration(t)
		r.cluster.Set = zone.NewStore()
		r.cluster.Set.Expect(zone.Services)
		return r
	}
	r, s := withSet(), keeping(disk, log)
	learn(t, r)
	r.cluster.Set.PutService(zone.Service{Namespace: "shop", Name: "db", Type: zone.Headless, TTL: -1}, time.Now())
	r.cluster.Set.ConfirmFresh(zone.Services, time.Now())
	r.cluster.Set.SetSynced(zone.Services)
	s.attempt(t.Context(), time.Second, r)
	for objects, next := range map[int]*generation{1: emptyGeneration(t), 2: withSet()} {
		s = keeping(disk, log)
		s.load(t.Context(), next)
		assert.Same(t, "loaded", objects, s.Stats().Loaded.Objects)
		assert.Same(t, "from the set", objects == 2, next.cluster.Set != nil && next.cluster.Set.Restored(zone.Services))
	}
}
