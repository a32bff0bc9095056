// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/task"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
	"github.com/nodecache/node-cache/pkg/zone"
)

// snapshots saves the agent's state for the next start.
type snapshots struct {
	writer string // identifies this agent's files
	log    *slog.Logger
	folder func(path string) snapshot.Folder
	clocks func() snapshot.ClockState
	busy   chan struct{} // semaphore: holds a value while a save runs
	change chan struct{} // has a value after the period has changed
	panics atomic.Uint64

	mu           sync.Mutex // guards the fields below
	stats        snapshot.Stats
	zoneTooLarge bool // the zone did not fit into the last snapshot
}

func newSnapshots(writer string, log *slog.Logger) *snapshots {
	return &snapshots{
		writer: writer, log: log, clocks: readClocks,
		folder: func(path string) snapshot.Folder { return snapshot.Dir(path) },
		busy:   make(chan struct{}, 1), change: make(chan struct{}, 1),
	}
}

// read returns a copy of the stats.
func (s *snapshots) read() snapshot.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Panics = s.panics.Load()
	return stats
}

// statsFor returns the stats; nil: r makes no snapshots.
func (s *snapshots) statsFor(r *generation) *snapshot.Stats {
	if r.config.Snapshot.Folder == "" {
		return nil
	}
	stats := s.read()
	return &stats
}

// load fills r, which is not in use yet, from the snapshot of an earlier agent, if there is a valid one.
func (s *snapshots) load(ctx context.Context, r *generation) {
	cfg := &r.config.Snapshot
	if cfg.Folder == "" {
		return
	}
	began := time.Now()
	loaded, err := s.restore(ctx, r)
	if err == nil {
		debug.FreeOSMemory() // releases the file's memory: an agent that answers from its cache may not collect garbage for minutes
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		loaded.Outcome = snapshot.OutcomeNone
		s.log.InfoContext(ctx, "no snapshot", "folder", cfg.Folder)
	case err != nil:
		loaded = snapshot.Loaded{Outcome: snapshot.OutcomeRefused, Reason: err.Error()}
		s.log.WarnContext(ctx, "snapshot refused", "err", err, "hint", hint.Of(err))
	default:
		loaded.Outcome = snapshot.OutcomeLoaded
		s.log.InfoContext(ctx, "snapshot loaded", "folder", cfg.Folder, "age", loaded.Age.Round(time.Second), "answers", loaded.Entries,
			"objects", loaded.Objects, "took", time.Since(began).Round(time.Microsecond))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Loaded = loaded
}

// restore does the work of load. After an error r is unchanged.
func (s *snapshots) restore(ctx context.Context, r *generation) (loaded snapshot.Loaded, err error) {
	err = s.guard("reading a snapshot").Do(ctx, func() error {
		loaded, err = s.fillFrom(r)
		return err
	})
	if err != nil {
		r.cache.Flush([]byte{0}, true)
	}
	return loaded, err
}

// fillFrom fills r, maybe in part only if there is an error.
func (s *snapshots) fillFrom(r *generation) (loaded snapshot.Loaded, err error) {
	cfg := &r.config.Snapshot
	snap, err := snapshot.Load(s.folder(cfg.Folder), cfg.Size)
	if err != nil {
		return loaded, err
	}
	if loaded.Age, err = snap.Age(s.clocks(), cfg.MaxAge); err != nil {
		return loaded, err
	}
	if err := errors.Join(snap.CheckVersion(snapshot.Cache, cache.DumpVersion), snap.CheckVersion(snapshot.Zone, zone.DumpVersion), snap.CheckVersion(snapshot.ClusterSet, zone.DumpVersion),
		snap.CheckVersion(snapshot.Central, upstream.DumpVersion), snap.CheckVersion(snapshot.Pods, pods.DumpVersion)); err != nil {
		return loaded, err
	}
	loaded.Entries, err = r.cache.Restore(snap.Records(snapshot.Cache), loaded.Age, time.Now(), r.cluster.owner)
	if err != nil {
		return loaded, snap.RecordError(snapshot.Cache, err)
	}
	for _, route := range r.routes {
		if route.NoCache {
			r.cache.Flush(route.suffix, true)
		}
	}
	usePods := func() {}
	if index := r.cluster.pods; index != nil {
		usePods, err = index.Restore(podScope(r), snap.Records(snapshot.Pods), loaded.Age, cfg.MaxAge, time.Now())
		if err != nil {
			return loaded, snap.RecordError(snapshot.Pods, err)
		}
	}
	useCentral := func() {}
	if central := r.cluster.endpoints; central != nil {
		useCentral, err = central.Restore(centralScope(r), snap.Records(snapshot.Central), loaded.Age, cfg.MaxAge, time.Now())
		if err != nil {
			return loaded, snap.RecordError(snapshot.Central, err)
		}
	}
	if loaded.Objects, err = s.restoreZones(r, snap, loaded.Age); err != nil {
		return loaded, err
	}
	useCentral()
	usePods()
	return loaded, nil
}

// guard recovers panics: a defect costs a snapshot, not the agent.
func (s *snapshots) guard(doing string) task.Guard {
	return task.Guard{Where: "snapshot", Log: s.log.With("doing", doing), Count: &s.panics}
}

// restoreZones restores the cluster objects.
func (s *snapshots) restoreZones(r *generation, snap *snapshot.Snapshot, passed time.Duration) (objects int, err error) {
	for kind, store := range r.cluster.stores() {
		restored, err := s.restoreZone(r, snap, kind, store, passed)
		if err != nil {
			return 0, snap.RecordError(kind, err)
		}
		objects += restored
	}
	return objects, nil
}

// restoreZone restores the cluster objects of a section, unless they are too old or the configuration selects other
// objects now.
func (s *snapshots) restoreZone(r *generation, snap *snapshot.Snapshot, kind snapshot.Kind, store *zone.Store, passed time.Duration) (objects int, err error) {
	next, stop := iter.Pull(snap.Records(kind))
	scope, there := next()
	stop()
	if !there {
		return 0, nil
	}
	if string(scope) != zoneScope(r) {
		s.log.Info("snapshot's cluster objects skipped", "err", "the cluster configuration has changed")
		return 0, nil
	}
	objects, err = store.Restore(skipFirst(snap.Records(kind)), passed, r.config.Snapshot.MaxAge, time.Now())
	if errors.Is(err, zone.ErrTooOld) {
		s.log.Info("snapshot's cluster objects skipped", "err", err)
		return 0, nil
	}
	return objects, err
}

// skipFirst returns the sequence without its first element.
func skipFirst(all iter.Seq[[]byte]) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		first := true
		for record := range all {
			if !first && !yield(record) {
				return
			}
			first = false
		}
	}
}

// zoneScope describes the objects that r's source selects, and their cluster.
func zoneScope(r *generation) string { return objectsOf(&r.config.Cluster) + serverOf(r) }

// centralScope names the central resolver's service and its cluster.
func centralScope(r *generation) string {
	return r.config.Cluster.Central.Service.String() + " of " + r.cluster.sourceName(&r.config) + serverOf(r)
}

// podScope names the node of the pods and its cluster.
func podScope(r *generation) string {
	return os.Getenv("NODE_NAME") + " of " + r.cluster.sourceName(&r.config) + serverOf(r)
}

// serverOf returns the API server that a kubeconfig names, for a scope: the file may name another one at the next start. It is empty
// without a kubeconfig.
func serverOf(r *generation) string {
	if w, ok := r.cluster.source.(*watch.Watch); ok && r.config.Cluster.Kubeconfig != "" {
		return ", server " + w.Server()
	}
	return ""
}

const (
	saveTimeout     = 30 * time.Second       // of a periodic save
	lastSaveTimeout = 3 * time.Second        // of the save at exit: a disk that hangs must not keep a pod from ending
	abandonTimeout  = 300 * time.Millisecond // a canceled save ends between two writes
	handoverTimeout = 20 * time.Second       // of a successor's requests before the sockets arrive, the snapshot included
)

// keep saves a snapshot every period until ctx ends. It leaves out the generations that are not owned.
func (s *snapshots) keep(ctx context.Context, running *atomic.Pointer[generation], owned func(*generation) bool) {
	for {
		r := running.Load()
		period := time.NewTimer(r.config.Snapshot.Period)
		if r.config.Snapshot.Folder == "" {
			period.Stop()
		}
		select {
		case <-ctx.Done():
			period.Stop()
			return
		case <-s.change:
		case <-period.C:
			if r = running.Load(); owned(r) { // a reload may have stored another one
				s.attempt(ctx, saveTimeout, r)
			}
		}
		period.Stop()
	}
}

// restart makes keep begin with the period of the running configuration.
func (s *snapshots) restart() {
	select {
	case s.change <- struct{}{}:
	default:
	}
}

// saveFor saves a snapshot of r for a successor.
func (s *snapshots) saveFor(ctx context.Context, r *generation) error {
	if r.config.Snapshot.Folder == "" {
		return errors.New("snapshot.folder is not set")
	}
	select { // a periodic save may be running
	case s.busy <- struct{}{}:
		<-s.busy
	case <-ctx.Done():
		return errHangs
	}
	before := s.read().Saved
	s.attempt(ctx, handoverTimeout, r)
	if now := s.read(); now.Saved == before {
		return fmt.Errorf("saving a snapshot: %s", now.LastError)
	}
	return nil
}

// attempt saves a snapshot of r. It returns when that is done, ctx has ended, or limit has passed. If the
// file system hangs, attempt leaves the save running; until that ends, further attempts fail.
func (s *snapshots) attempt(ctx context.Context, limit time.Duration, r *generation) {
	select {
	case s.busy <- struct{}{}:
	default:
		s.failed(ctx, errHangs)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := s.guard("making a snapshot").Do(ctx, func() error { return s.save(ctx, r) })
		<-s.busy
		done <- err
	}()
	select {
	case err := <-done:
		s.ended(ctx, err)
		return
	case <-ctx.Done():
	}
	late := time.NewTimer(abandonTimeout)
	defer late.Stop()
	select { // a save that can end does so now
	case err := <-done:
		s.ended(ctx, err)
	case <-late.C:
		s.failed(ctx, errHangs)
	}
}

// ended records the error of a save.
func (s *snapshots) ended(ctx context.Context, err error) {
	if err != nil && !errors.Is(err, context.Canceled) { // canceled: the agent stops and saves once more
		s.failed(ctx, err)
	}
}

var errHangs = errors.New("the file system does not respond")

// save saves a snapshot of r.
func (s *snapshots) save(ctx context.Context, r *generation) error {
	cfg := &r.config.Snapshot
	began := time.Now()
	n, err := snapshot.Save(ctx, snapshot.Job{
		Folder: s.folder(cfg.Folder), Writer: s.writer, At: s.clocks(), MaxSize: cfg.Size,
		Fill: func(w *snapshot.Writer) error { return s.fill(ctx, w, r, began) },
	})
	if err == nil {
		s.saved(ctx, n, began, time.Now())
	}
	return err
}

// fill writes the cluster objects completely or not at all, because a part would deny the names of the rest.
// Of the cache it writes as much as fits.
func (s *snapshots) fill(ctx context.Context, w *snapshot.Writer, r *generation, now time.Time) error {
	for kind, store := range r.cluster.stores() {
		if err := s.fillZone(ctx, w, r, kind, store, now); err != nil {
			return err
		}
	}
	w.Section(snapshot.Central, upstream.DumpVersion)
	if central := r.cluster.endpoints; central != nil {
		if err := central.Dump(centralScope(r), now, w.Record); err != nil {
			return err
		}
	}
	if index := r.cluster.pods; index != nil {
		w.Section(snapshot.Pods, pods.DumpVersion)
		if err := index.Dump(podScope(r), now, w.Record); err != nil {
			return err
		}
	}
	w.Section(snapshot.Cache, cache.DumpVersion)
	_, err := r.cache.Dump(w.Remaining(), now, w.Record)
	return err
}

// fillZone writes the cluster objects of a store, if they fit.
func (s *snapshots) fillZone(ctx context.Context, w *snapshot.Writer, r *generation, kind snapshot.Kind, store *zone.Store, now time.Time) error {
	size := int64(0)
	err := dumpZone(r, store, now, func(record []byte) error {
		size += snapshot.FramedSize(len(record))
		return nil
	})
	switch most := w.Remaining() / 10 * 9; { // the zone may grow until it is written
	case err != nil, size == 0:
		return err
	case size > most:
		s.warnTooLarge(ctx, size, &r.config.Snapshot)
		return nil
	}
	w.Section(kind, zone.DumpVersion)
	return dumpZone(r, store, now, w.Record)
}

// dumpZone emits the records of a store's cluster objects, none if there are none. The first record is the scope.
func dumpZone(r *generation, store *zone.Store, now time.Time, emit func([]byte) error) error {
	first := true
	return store.Dump(now, func(record []byte) error {
		if first {
			first = false
			if err := emit([]byte(zoneScope(r))); err != nil {
				return err
			}
		}
		return emit(record)
	})
}

// warnTooLarge logs once that the cluster objects do not fit.
func (s *snapshots) warnTooLarge(ctx context.Context, size int64, cfg *config.Snapshot) {
	s.mu.Lock()
	before := s.zoneTooLarge
	s.zoneTooLarge = true
	s.mu.Unlock()
	if !before {
		s.log.WarnContext(ctx, "cluster objects too large for the snapshot",
			"bytes", size, "snapshot_size", cfg.Size, "hint", "raise snapshot.size to twice these bytes")
	}
}

// saved records a snapshot. It logs at info level after a failure.
func (s *snapshots) saved(ctx context.Context, n int64, began, now time.Time) {
	s.mu.Lock()
	healed := s.stats.LastError != ""
	s.stats.Saved++
	s.stats.LastSaved, s.stats.LastError, s.stats.Bytes, s.stats.Duration = now, "", n, now.Sub(began)
	s.mu.Unlock()
	level := slog.LevelDebug
	if healed {
		level = slog.LevelInfo
	}
	s.log.Log(ctx, level, "snapshot saved", "bytes", n, "took", now.Sub(began).Round(time.Microsecond))
}

// failed records a failed save and logs each new error.
func (s *snapshots) failed(ctx context.Context, err error) {
	s.mu.Lock()
	news := s.stats.LastError != err.Error()
	s.stats.Failed++
	s.stats.LastError = err.Error()
	s.mu.Unlock()
	if news {
		s.log.ErrorContext(ctx, "saving snapshot failed", "err", err, "hint", hint.Of(err))
	}
}

// suspendInterval is the time between two checks for a suspend. After a resume, TTLs and the cluster's age
// may ignore the suspend for that long.
const suspendInterval = time.Second

// minSuspend is the shortest suspend that counts.
const minSuspend = 100 * time.Millisecond

// followSuspends calls report with the length of each suspend until ctx ends. asleep returns how long the host
// has been suspended since boot, at least.
//
// Go reads CLOCK_MONOTONIC, which stops during a suspend. Reading CLOCK_BOOTTIME for each batch of queries
// would cost a system call, because the runtime has no vDSO call for it. So followSuspends compares the two
// clocks once a second.
func followSuspends(ctx context.Context, asleep func() time.Duration, report func(time.Duration)) {
	known := asleep()
	ticker := time.NewTicker(suspendInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if d := asleep() - known; d >= minSuspend {
			known += d
			report(d)
		}
	}
}

// suspendedTime returns how long the host was suspended since boot. Other processes may run between the two
// clock reads, so it takes the longest of three: a value may be too short but never too long.
func suspendedTime() (longest time.Duration) {
	for range 3 {
		var boot, awake unix.Timespec
		if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &awake) != nil {
			return 0
		}
		longest = max(longest, time.Duration(boot.Nano()-awake.Nano()))
	}
	return longest
}

// readClocks reads the host's clocks.
func readClocks() snapshot.ClockState {
	m := snapshot.ClockState{Wall: time.Now()}
	var up unix.Timespec
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return m // the wall clock alone
	}
	id, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", ""))
	if err == nil && len(id) == len(m.BootID) {
		copy(m.BootID[:], id)
		m.Uptime = time.Duration(up.Nano())
	}
	return m
}
