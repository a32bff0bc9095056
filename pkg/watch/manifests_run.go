// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Delays of Manifests.
const (
	manifestQuietTime    = 50 * time.Millisecond  // after the last event: the writer may have more to write
	manifestMaxDelay     = 500 * time.Millisecond // after the first event, however many follow
	manifestRemoveDelay  = 500 * time.Millisecond // after the last change: a missing object is then gone for good
	manifestPollInterval = 5 * time.Second        // without an event: some file systems report none
)

// Run watches the folder until ctx ends, and then returns nil. If the kernel grants no watch, it polls every 5 seconds.
// Run can be called once.
func (m *Manifests) Run(ctx context.Context) error {
	if m.serviceWatcher != nil {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			m.serviceWatcher.run(ctx)
		}()
		defer func() { <-ended }()
	}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		m.cfg.Log.WarnContext(ctx, "no file events, polling the manifests", "folder", m.cfg.Folder, "err", err)
		m.watchFolder(ctx, folderEvents{watch: func([]string) {}})
		return nil
	}
	watches := folderWatches{notify: notify}
	m.watchFolder(ctx, folderEvents{watch: watches.set, events: notify.Events, errors: notify.Errors})
	if err := notify.Close(); err != nil {
		return fmt.Errorf("closing the watches of %s: %w", m.cfg.Folder, err)
	}
	return nil
}

// folderEvents is what watchFolder needs of fsnotify.
type folderEvents struct {
	watch  func(folders []string) // sets the watched folders; a folder given again is watched anew, since its watch may be lost
	events <-chan fsnotify.Event
	errors <-chan error
}

// manifestTimers tell when to rescan.
type manifestTimers struct {
	quiet, deadline, confirmGone *time.Timer
	reread                       *time.Ticker
	firstEvent                   time.Time // first event since the last rescan; zero: none
}

// newManifestTimers returns timers of which only the polling ticker runs.
func newManifestTimers() *manifestTimers {
	stopped := func() *time.Timer {
		t := time.NewTimer(time.Hour)
		t.Stop()
		return t
	}
	return &manifestTimers{quiet: stopped(), deadline: stopped(), confirmGone: stopped(), reread: time.NewTicker(manifestPollInterval)}
}

func (t *manifestTimers) stop() {
	t.quiet.Stop()
	t.deadline.Stop()
	t.confirmGone.Stop()
	t.reread.Stop()
}

// onEvent schedules a rescan.
func (t *manifestTimers) onEvent(now time.Time) {
	t.quiet.Reset(manifestQuietTime)
	if t.firstEvent.IsZero() {
		t.firstEvent = now
		t.deadline.Reset(manifestMaxDelay)
	}
}

// takeEventTime returns the time of the first event that the next rescan handles, and resets it.
func (t *manifestTimers) takeEventTime() time.Time {
	t.quiet.Stop()
	t.deadline.Stop()
	event := t.firstEvent
	t.firstEvent = time.Time{}
	return event
}

// watchFolder is Run with any source of events.
func (m *Manifests) watchFolder(ctx context.Context, source folderEvents) {
	timers := newManifestTimers()
	defer timers.stop()
	watched := map[string]bool{}
	watch := func() {
		var folders []string
		folders, watched = m.watchedPaths()
		source.watch(folders)
	}
	watch()
	m.applyInitial(ctx)
	for removeGone := false; ; removeGone = false {
		select {
		case <-ctx.Done():
			return
		case event := <-source.events:
			if watched[filepath.Clean(event.Name)] || watched[filepath.Dir(event.Name)+"/"] {
				timers.onEvent(m.cfg.Now())
			}
			continue
		case err := <-source.errors:
			// The usual cause is a full queue, which loses events.
			m.cfg.Log.DebugContext(ctx, "lost file events", "folder", m.cfg.Folder, "err", err)
			timers.onEvent(m.cfg.Now())
			continue
		case <-timers.quiet.C:
		case <-timers.deadline.C:
		case <-timers.reread.C:
		case <-timers.confirmGone.C:
			removeGone = true
		}
		watch() // before the rescan, so that no change is missed
		m.rescanSafely(ctx, timers, removeGone)
	}
}

// applyInitial applies the folder's first state.
func (m *Manifests) applyInitial(ctx context.Context) {
	m.folder.scan() // it may have changed since NewManifests
	m.apply(ctx, time.Time{}, true)
	if m.store.store != nil {
		m.store.reset(m.cfg.Now(), m.kinds)
	}
	if m.serviceWatcher == nil {
		close(m.ready)
		return
	}
	m.serviceWatcher.markSynced(func() { close(m.ready) })
}

// rescanSafely is rescan, but a panic ends only this rescan.
func (m *Manifests) rescanSafely(ctx context.Context, timers *manifestTimers, removeGone bool) {
	defer func() {
		if p := recover(); p != nil {
			m.recordPanic("", p, debug.Stack())
		}
	}()
	m.rescan(ctx, timers, removeGone)
}

// rescan applies the folder's changes. Missing objects stay until removeGone is set: the timer confirmGone expired
// without another change.
func (m *Manifests) rescan(ctx context.Context, timers *manifestTimers, removeGone bool) {
	event := timers.takeEventTime()
	changed := m.folder.scan()
	if m.folder.err != nil {
		m.failures.Add(1)
	}
	switch {
	case changed:
		if m.apply(ctx, event, false) {
			timers.confirmGone.Reset(manifestRemoveDelay)
		} else {
			timers.confirmGone.Stop()
		}
	case removeGone:
		m.apply(ctx, time.Time{}, true)
	}
}

// watchedPaths returns the folders to watch, and the paths whose events matter: every link on the way to the folder, and
// all files of the folder and of those that links in it lead to. The latter are given as the folder with a trailing
// slash. Folder names have their links resolved: the kernel has one watch per folder, whatever its names.
func (m *Manifests) watchedPaths() (folders []string, relevant map[string]bool) {
	relevant = map[string]bool{}
	seen := map[string]bool{}
	add := func(path string) string {
		folder := filepath.Dir(path)
		if resolved, err := filepath.EvalSymlinks(folder); err == nil {
			folder = resolved
		}
		if !seen[folder] {
			seen[folder] = true
			folders = append(folders, folder)
		}
		return folder
	}
	all := func(path string) {
		folder := add(path)
		relevant[folder] = true // its own removal
		relevant[folder+"/"] = true
	}
	for _, path := range linkChain(m.cfg.Folder) {
		relevant[filepath.Join(add(path), filepath.Base(path))] = true
	}
	all(filepath.Join(m.cfg.Folder, "any"))
	for _, file := range m.folder.files {
		for _, link := range linkChain(filepath.Join(m.cfg.Folder, file.name))[1:] {
			all(link)
		}
	}
	return folders, relevant
}

// linkChain returns the path, the path it links to, and so on. It ignores links among the parent folders; the periodic
// rescan notices if those change.
func linkChain(path string) []string {
	const most = 40 // links; the kernel has the same limit
	trail := []string{path}
	for range most {
		to, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = filepath.Clean(to)
		trail = append(trail, path)
	}
	return trail
}

// folderWatches are the watches in fsnotify.
type folderWatches struct {
	notify *fsnotify.Watcher
	kept   map[string]bool // by folder; false: not watched
}

// set watches exactly these folders. A folder that cannot be watched is left to the periodic rescan.
func (w *folderWatches) set(folders []string) {
	before := w.kept
	w.kept = map[string]bool{}
	for _, folder := range folders {
		w.kept[folder] = w.notify.Add(folder) == nil
	}
	for folder, had := range before {
		if _, still := w.kept[folder]; had && !still {
			if err := w.notify.Remove(folder); errors.Is(err, fsnotify.ErrClosed) {
				return
			}
		}
	}
}
