// SPDX-License-Identifier: Apache-2.0

package static

import (
	"context"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	rereadEvery = 5 * time.Second        // for changes that no event tells of: links, network mounts
	settleTime  = 50 * time.Millisecond  // from an event to the reading; writers take several steps
	restTime    = 250 * time.Millisecond // for which a file stays as it is that is not being written any more
	maxMoves    = 120                    // looks at a file that does not rest, restTime apart, before it is read all the same
)

// read looks at the files, and makes a new table if one of them has changed. It tells whether one is to be looked at
// again after restTime.
func (s *Static) read(anyway bool) (again bool) {
	changed := s.table.Load() == nil
	for _, f := range s.files {
		before := f.err
		if f.look(anyway) {
			changed = true
			f.reads++
		}
		again = again || f.stirs
		if f.err != nil && (before == nil || f.err.Error() != before.Error()) {
			s.cfg.Log.Warn("hosts file not read, what was read of it before stays", "path", f.path, "err", f.err)
		}
	}
	if changed {
		s.build()
	}
	s.note()
	return again
}

// build makes the table of all there is, and puts it to work.
func (s *Static) build() {
	b := newBuilder(!s.cfg.NoReverse)
	for _, h := range s.cfg.Names {
		for _, addr := range h.Addresses {
			b.add(h.Name, addr)
		}
	}
	b.close()
	for _, f := range s.files {
		f.names, f.skipped = b.parse(f.text)
		if f.skipped > 0 {
			s.cfg.Log.Warn("lines of a hosts file left out", "path", f.path, "lines", f.skipped)
		}
	}
	t := b.table()
	s.table.Store(t)
	if len(s.files) > 0 {
		s.cfg.Log.Info("hosts files read", "files", len(s.files), "names", len(t.names), "addresses", t.addresses)
	}
}

// note has Stats tell how the files are.
func (s *Static) note() {
	states := make([]FileStats, 0, len(s.files))
	for _, f := range s.files {
		states = append(states, FileStats{Path: f.path, Names: f.names, Skipped: f.skipped, Reads: f.reads, Err: f.err})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.states = states
}

// Run follows the files until ctx ends, and returns nil then. Where the kernel tells of
// no changes it looks every five seconds. Run can be called once.
func (s *Static) Run(ctx context.Context) error {
	if len(s.files) == 0 {
		<-ctx.Done()
		return nil
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		s.cfg.Log.WarnContext(ctx, "no file events, hosts files are only reread", "err", err, "every", rereadEvery)
		s.follow(ctx, nil, nil, func(string) error { return nil })
		return nil
	}
	defer func() { _ = w.Close() }() // joins its goroutine
	s.follow(ctx, w.Events, w.Errors, w.Add)
	return nil
}

// follow is Run on any source of events.
func (s *Static) follow(ctx context.Context, events <-chan fsnotify.Event, errs <-chan error, watch func(folder string) error) {
	s.watchFolders(watch)
	settled := time.NewTimer(0) // the first look: the files may have changed since New
	defer settled.Stop()
	reread := time.NewTicker(rereadEvery)
	defer reread.Stop()
	waiting := true
	wake := func() {
		if !waiting { // else a folder that never rests would put it off for ever
			waiting = true
			settled.Reset(settleTime)
		}
	}
	look := func(anyway bool) {
		if waiting = s.read(anyway); waiting {
			settled.Reset(restTime)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			wake()
		case err := <-errs: // events were lost
			s.cfg.Log.DebugContext(ctx, "watching hosts files", "err", err)
			wake()
		case <-settled.C:
			s.watchFolders(watch)
			look(true) // whatever the clock of the file system says
		case <-reread.C:
			s.watchFolders(watch)
			if !waiting {
				look(false)
			}
		}
	}
}

// watchFolders watches where the files are and where links lead. One that cannot be
// watched is left to rereading.
func (s *Static) watchFolders(watch func(folder string) error) {
	for _, f := range s.files {
		_ = watch(filepath.Dir(f.path))
		if target, err := filepath.EvalSymlinks(f.path); err == nil {
			_ = watch(filepath.Dir(target))
		}
	}
}
