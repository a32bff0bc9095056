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
	longestSave = 30 * time.Second
	lastSave    = 3 * time.Second        // for the one at the end: a disk that hangs must not keep a pod from ending
	lateSave    = 300 * time.Millisecond // that a save is given up is noticed between two writes
)

// keepSnapshots saves snapshots, one a period, until ctx ends. An agent that waits to take over leaves the folder to the one
// that serves, which knows more.
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
				s.attempt(ctx, longestSave, a.running.Load())
			}
		}
		period.Stop()
	}
}

// refresh says that the configuration is another.
func (s *snapshots) refresh() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// ownsSnapshot tells whether the snapshot is this agent's to write: it has come to serve, and has no successor.
func (a *Agent) ownsSnapshot() bool {
	select {
	case <-a.ready:
		return !a.hand.gave()
	default:
		return false
	}
}

// saveLast saves a snapshot when all has ended, if the agent has served.
func (a *Agent) saveLast(ctx context.Context) {
	r := a.running.Load()
	if r.config.Snapshot.Folder != "" && a.ownsSnapshot() {
		a.snapshots.attempt(context.WithoutCancel(ctx), lastSave, r)
	}
}

// attempt saves a snapshot of r and returns when that is done, ctx has ended, or after a time. A file system that hangs
// is left behind: while it does, attempts fail.
func (s *snapshots) attempt(ctx context.Context, limit time.Duration, r *running) {
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
	late := time.NewTimer(lateSave)
	defer late.Stop()
	select { // what can end does so now
	case err := <-done:
		s.ended(ctx, err)
	case <-late.C:
		s.failed(ctx, errHangs)
	}
}

// ended notes how an attempt ended that did not succeed.
func (s *snapshots) ended(ctx context.Context, err error) {
	if err != nil && !errors.Is(err, context.Canceled) { // then the agent ends: a last one is to come
		s.failed(ctx, err)
	}
}

var errHangs = errors.New("the file system does not answer")

// save saves a snapshot of r.
func (s *snapshots) save(ctx context.Context, r *running) (err error) {
	defer func() {
		if defect := recover(); defect != nil {
			err = s.defect("making a snapshot", defect, debug.Stack())
		}
	}()
	cfg := &r.config.Snapshot
	began := time.Now()
	n, err := snapshot.Save(ctx, snapshot.Job{
		Folder: s.folder(cfg.Folder), Writer: s.writer, At: s.moment(), Most: cfg.Size,
		Fill: func(w *snapshot.Writer) error { return s.fill(ctx, w, r, began) },
	})
	if err == nil {
		s.saved(ctx, n, began, time.Now())
	}
	return err
}

// fill writes what there is to be kept: of the cluster all or nothing, because a part of it would deny the rest, and of the
// cache as much as there is room for.
func (s *snapshots) fill(ctx context.Context, w *snapshot.Writer, r *running, now time.Time) error {
	if err := s.fillZone(ctx, w, r, now); err != nil {
		return err
	}
	w.Section(snapshot.Central, centralVersion)
	if err := dumpCentral(r, now, w.Record); err != nil {
		return err
	}
	w.Section(snapshot.Cache, cache.DumpVersion)
	_, err := r.cache.Dump(w.Left(), now, w.Record)
	return err
}

// fillZone writes what is known of the cluster, if it fits.
func (s *snapshots) fillZone(ctx context.Context, w *snapshot.Writer, r *running, now time.Time) error {
	if r.cluster == nil || r.cluster.events == nil {
		return nil
	}
	size := int64(0)
	err := eachOfZone(r, now, func(record []byte) error {
		size += snapshot.Framed(len(record))
		return nil
	})
	switch most := w.Left() / 10 * 9; { // it may have grown when it is written
	case err != nil, size == 0:
		return err
	case size > most:
		s.tooLarge(ctx, size, &r.config.Snapshot)
		return nil
	}
	w.Section(snapshot.Zone, zone.DumpVersion)
	return eachOfZone(r, now, w.Record)
}

// eachOfZone gives the records of what is known of the cluster, none if nothing is. The first tells for what
// configuration.
func eachOfZone(r *running, now time.Time, emit func([]byte) error) error {
	first := true
	return r.cluster.events.Dump(now, func(record []byte) error {
		if first {
			first = false
			if err := emit([]byte(scopeOf(r))); err != nil {
				return err
			}
		}
		return emit(record)
	})
}

// tooLarge says once that the cluster's objects do not fit.
func (s *snapshots) tooLarge(ctx context.Context, size int64, cfg *config.Snapshot) {
	s.mu.Lock()
	before := s.large
	s.large = true
	s.mu.Unlock()
	if !before {
		s.log.WarnContext(ctx, "the view of the cluster is too large for the snapshot, and is not in it",
			"octets", size, "snapshot_size", cfg.Size, "hint", "raise snapshot.size to twice that")
	}
}

// saved notes a snapshot, and says so if the one before failed.
func (s *snapshots) saved(ctx context.Context, n int64, began, now time.Time) {
	s.mu.Lock()
	healed := s.stats.LastError != ""
	s.stats.Saved++
	s.stats.LastSaved, s.stats.LastError, s.stats.Bytes, s.stats.Took = now, "", n, now.Sub(began)
	s.mu.Unlock()
	level := slog.LevelDebug
	if healed {
		level = slog.LevelInfo
	}
	s.log.Log(ctx, level, "snapshot saved", "octets", n, "took", now.Sub(began).Round(time.Microsecond))
}

// failed notes a snapshot that could not be saved, and says so if it is news.
func (s *snapshots) failed(ctx context.Context, err error) {
	s.mu.Lock()
	news := s.stats.LastError != err.Error()
	s.stats.Failed++
	s.stats.LastError = err.Error()
	s.mu.Unlock()
	if news {
		s.log.ErrorContext(ctx, "snapshot not saved, the one before stays", "err", err, "hint", hintOf(err))
	}
}
