// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// snapshots loads and saves what a generation has learned.
type snapshots struct {
	*snapshot.Keeper

	running      *atomic.Pointer[generation]
	ready        <-chan struct{} // closed once this agent serves
	handover     *socketHandover
	log          *slog.Logger
	change       chan struct{} // has a value after the settings have changed
	zoneTooLarge atomic.Bool   // the cluster's objects did not fit into a snapshot
}

// statsFor returns the stats; nil: r makes no snapshots.
func (s *snapshots) statsFor(r *generation) *snapshot.Stats {
	if r.config.Snapshot.Folder == "" {
		return nil
	}
	return new(s.Stats())
}

// settings returns the part of r's configuration that concerns the snapshot file.
func (r *generation) settings() snapshot.Settings {
	cfg := &r.config.Snapshot
	return snapshot.Settings{Folder: cfg.Folder, Size: cfg.Size, MaxAge: cfg.MaxAge}
}

// load fills r, which is not in use yet, from the snapshot of an earlier agent, if there is a valid one.
func (s *snapshots) load(ctx context.Context, r *generation) {
	if r.config.Snapshot.Folder == "" {
		return
	}
	restore := func(snap *snapshot.Snapshot, age time.Duration) (snapshot.Loaded, error) {
		return s.fillFrom(snap, age, r)
	}
	if !s.Load(ctx, r.settings(), restore) {
		r.cache.Flush([]byte{0}, true) // drop what was restored before the error
	}
}

// fillFrom fills r from a snapshot. After an error, a part of r may be filled.
func (s *snapshots) fillFrom(snap *snapshot.Snapshot, age time.Duration, r *generation) (loaded snapshot.Loaded, err error) {
	cfg := &r.config.Snapshot
	if err := errors.Join(snap.CheckVersion(snapshot.Cache, cache.DumpVersion), snap.CheckVersion(snapshot.Zone, zone.DumpVersion), snap.CheckVersion(snapshot.ClusterSet, zone.DumpVersion),
		snap.CheckVersion(snapshot.Central, upstream.DumpVersion), snap.CheckVersion(snapshot.Pods, pods.DumpVersion)); err != nil {
		return loaded, err
	}
	loaded.Entries, err = r.cache.Restore(snap.Records(snapshot.Cache), age, time.Now(), r.cluster.Owner)
	if err != nil {
		return loaded, snap.RecordError(snapshot.Cache, err)
	}
	for _, route := range r.routes {
		if route.NoCache {
			r.cache.Flush(route.suffix, true)
		}
	}
	usePods := func() {}
	if index := r.cluster.Pods; index != nil {
		usePods, err = index.Restore(r.cluster.PodScope(&r.config), snap.Records(snapshot.Pods), age, cfg.MaxAge, time.Now())
		if err != nil {
			return loaded, snap.RecordError(snapshot.Pods, err)
		}
	}
	useCentral := func() {}
	if central := r.cluster.Endpoints; central != nil {
		useCentral, err = central.Restore(r.cluster.CentralScope(&r.config), snap.Records(snapshot.Central), age, cfg.MaxAge, time.Now())
		if err != nil {
			return loaded, snap.RecordError(snapshot.Central, err)
		}
	}
	for kind, store := range r.cluster.Stores() {
		restored, err := s.restoreZone(r, snap, kind, store, age)
		if err != nil {
			return loaded, snap.RecordError(kind, err)
		}
		loaded.Objects += restored
	}
	useCentral()
	usePods()
	return loaded, nil
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
	if string(scope) != r.cluster.ObjectScope(&r.config) {
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

const (
	saveTimeout     = 30 * time.Second // longest time of a periodic save
	lastSaveTimeout = 3 * time.Second  // longest time of the save at exit: a disk that hangs must not keep a pod from ending
	handoverTimeout = 20 * time.Second // longest time of a save for a successor; the handover server may end it earlier
)

// run saves a snapshot every period until ctx ends.
func (s *snapshots) run(ctx context.Context) {
	for {
		r := s.running.Load()
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
			if r = s.running.Load(); s.owned(r) { // a reload may have stored another generation
				s.attempt(ctx, saveTimeout, r)
			}
		}
		period.Stop()
	}
}

// saveLast saves a snapshot at exit, if the agent has served.
func (s *snapshots) saveLast(ctx context.Context) {
	if r := s.running.Load(); s.owned(r) {
		s.attempt(context.WithoutCancel(ctx), lastSaveTimeout, r)
	}
}

// owned reports whether this agent writes the snapshot of r: it serves and has not handed over. An agent that waits to take over
// leaves the folder to its predecessor, which knows more.
func (s *snapshots) owned(r *generation) bool {
	select {
	case <-s.ready:
		return r.config.Snapshot.Folder != "" && !s.handover.hasHandedOver()
	default:
		return false
	}
}

// apply makes run use the snapshot settings of r, if they differ from old's, and begin a new period.
func (s *snapshots) apply(old, r *generation) {
	if r.config.Snapshot == old.config.Snapshot {
		return
	}
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
	return s.SaveNow(ctx, handoverTimeout, r.settings(), s.fillOf(r))
}

// attempt saves a snapshot of r, see [snapshot.Keeper.Save].
func (s *snapshots) attempt(ctx context.Context, limit time.Duration, r *generation) {
	s.Save(ctx, limit, r.settings(), s.fillOf(r))
}

// fillOf returns a function that writes the snapshot sections of r.
func (s *snapshots) fillOf(r *generation) func(context.Context, *snapshot.Writer) error {
	return func(ctx context.Context, w *snapshot.Writer) error { return s.fill(ctx, w, r, time.Now()) }
}

// fill writes the snapshot sections of r. Of the cluster objects it writes all or none: with some restored, names of the others would
// be denied. Of the cache it writes as much as fits.
func (s *snapshots) fill(ctx context.Context, w *snapshot.Writer, r *generation, now time.Time) error {
	for kind, store := range r.cluster.Stores() {
		if err := s.fillZone(ctx, w, r, kind, store, now); err != nil {
			return err
		}
	}
	w.Section(snapshot.Central, upstream.DumpVersion)
	if central := r.cluster.Endpoints; central != nil {
		if err := central.Dump(r.cluster.CentralScope(&r.config), now, w.Record); err != nil {
			return err
		}
	}
	if index := r.cluster.Pods; index != nil {
		w.Section(snapshot.Pods, pods.DumpVersion)
		if err := index.Dump(r.cluster.PodScope(&r.config), now, w.Record); err != nil {
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
	switch most := w.Remaining() / 10 * 9; { // 10% spare: the objects may grow before they are written
	case err != nil, size == 0:
		return err
	case size > most:
		if !s.zoneTooLarge.Swap(true) {
			s.log.WarnContext(ctx, "cluster objects too large for the snapshot",
				"bytes", size, "snapshot_size", r.config.Snapshot.Size, "hint", "raise snapshot.size to twice these bytes")
		}
		return nil
	}
	w.Section(kind, zone.DumpVersion)
	return dumpZone(r, store, now, w.Record)
}

// dumpZone emits the snapshot records of a store's cluster objects, none if there are none. The first record is the scope.
func dumpZone(r *generation, store *zone.Store, now time.Time, emit func([]byte) error) error {
	first := true
	return store.Dump(now, func(record []byte) error {
		if first {
			first = false
			if err := emit([]byte(r.cluster.ObjectScope(&r.config))); err != nil {
				return err
			}
		}
		return emit(record)
	})
}
