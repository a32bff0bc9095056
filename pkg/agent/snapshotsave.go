// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/zone"
)

const (
	saveTimeout     = 30 * time.Second       // of a periodic save
	lastSaveTimeout = 3 * time.Second        // of the save at exit: a disk that hangs must not keep a pod from ending
	abandonTimeout  = 300 * time.Millisecond // a canceled save ends between two writes
)

// keepSnapshots saves a snapshot every period until ctx ends. An agent that waits to take over leaves the
// folder to its predecessor, which knows more.
func (a *Agent) keepSnapshots(ctx context.Context) {
	s := a.snapshots
	for {
		cfg := &a.running.Load().config.Snapshot
		period := time.NewTimer(cfg.Period)
		if cfg.Folder == "" {
			period.Stop()
		}
		select {
		case <-ctx.Done():
			period.Stop()
			return
		case <-s.changed:
		case <-period.C:
			if a.ownsSnapshot() {
				s.attempt(ctx, saveTimeout, a.running.Load())
			}
		}
		period.Stop()
	}
}

// configChanged signals a new configuration.
func (s *snapshots) configChanged() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// ownsSnapshot reports whether this agent writes the snapshot: it serves and has not handed over.
func (a *Agent) ownsSnapshot() bool {
	select {
	case <-a.ready:
		return !a.handover.hasHandedOver()
	default:
		return false
	}
}

// saveLast saves a snapshot at exit, if the agent has served.
func (a *Agent) saveLast(ctx context.Context) {
	r := a.running.Load()
	if r.config.Snapshot.Folder != "" && a.ownsSnapshot() {
		a.snapshots.attempt(context.WithoutCancel(ctx), lastSaveTimeout, r)
	}
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
		err := s.save(ctx, r)
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
func (s *snapshots) save(ctx context.Context, r *generation) (err error) {
	defer func() {
		if defect := recover(); defect != nil {
			err = s.recordPanic("making a snapshot", defect, debug.Stack())
		}
	}()
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
	if err := s.fillZone(ctx, w, r, now); err != nil {
		return err
	}
	w.Section(snapshot.Central, centralVersion)
	if err := dumpCentral(r, now, w.Record); err != nil {
		return err
	}
	w.Section(snapshot.Cache, cache.DumpVersion)
	_, err := r.cache.Dump(w.Remaining(), now, w.Record)
	return err
}

// fillZone writes the cluster objects, if they fit.
func (s *snapshots) fillZone(ctx context.Context, w *snapshot.Writer, r *generation, now time.Time) error {
	if r.cluster == nil || r.cluster.events == nil {
		return nil
	}
	size := int64(0)
	err := dumpZone(r, now, func(record []byte) error {
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
	w.Section(snapshot.Zone, zone.DumpVersion)
	return dumpZone(r, now, w.Record)
}

// dumpZone emits the records of the cluster objects, none if there are none. The first record is the scope.
func dumpZone(r *generation, now time.Time, emit func([]byte) error) error {
	first := true
	return r.cluster.events.Dump(now, func(record []byte) error {
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
		s.log.ErrorContext(ctx, "saving snapshot failed", "err", err, "hint", snapshotHint(err))
	}
}
