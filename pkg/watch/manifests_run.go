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

// The clockwork of Manifests.
const (
	manifestQuietTime    = 50 * time.Millisecond  // after the last event: a writer has more to come
	manifestMaxDelay     = 500 * time.Millisecond // after the first event, however many follow
	manifestRemoveDelay  = 500 * time.Millisecond // after the last change: what is gone is not about to come back
	manifestPollInterval = 5 * time.Second        // between looks without an event: some file systems tell nothing
)

// Run follows the folder until ctx ends, and returns nil then. Where the kernel grants no watch it looks every five
// seconds. It can be called once.
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
		m.cfg.Log.WarnContext(ctx, "no file events, polling the manifests", "folder", m.cfg.Folder, "error", err)
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

// manifestEvents is what followFolder needs of fsnotify.
type folderEvents struct {
	watch  func(folders []string) // these, and no others; again for one that has a watch: it may have lost it
	events <-chan fsnotify.Event
	errors <-chan error
}

// manifestTimers tell when to look.
type manifestTimers struct {
	quiet, deadline, confirmGone *time.Timer
	reread                       *time.Ticker
	firstEvent                   time.Time // of the first event that no look has answered; zero: there is none
}

// newManifestTimers makes timers of which only the ticker runs.
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

// wake asks for a look after an event.
func (t *manifestTimers) onEvent(now time.Time) {
	t.quiet.Reset(manifestQuietTime)
	if t.firstEvent.IsZero() {
		t.firstEvent = now
		t.deadline.Reset(manifestMaxDelay)
	}
}

// answered gives the time of the first event that the look to come answers.
func (t *manifestTimers) takeEventTime() time.Time {
	t.quiet.Stop()
	t.deadline.Stop()
	event := t.firstEvent
	t.firstEvent = time.Time{}
	return event
}

// followFolder is Run on any source of events.
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
	for believe := false; ; believe = false {
		select {
		case <-ctx.Done():
			return
		case event := <-source.events:
			if watched[filepath.Clean(event.Name)] || watched[filepath.Dir(event.Name)+"/"] {
				timers.onEvent(m.cfg.Now())
			}
			continue
		case err := <-source.errors:
			// Most often a full queue, that is, events that are lost.
			m.cfg.Log.DebugContext(ctx, "lost file events", "folder", m.cfg.Folder, "error", err)
			timers.onEvent(m.cfg.Now())
			continue
		case <-timers.quiet.C:
		case <-timers.deadline.C:
		case <-timers.reread.C:
		case <-timers.confirmGone.C:
			believe = true
		}
		watch() // before the look, so that no change falls between the two
		m.rescanSafely(ctx, timers, believe)
	}
}

// begin takes what the folder holds at first.
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

// lookSafely is look, but a defect that some file shows costs that look alone.
func (m *Manifests) rescanSafely(ctx context.Context, timers *manifestTimers, believe bool) {
	defer func() {
		if p := recover(); p != nil {
			m.recordPanic("", p, debug.Stack())
		}
	}()
	m.rescan(ctx, timers, believe)
}

// look applies what has changed in the folder. Objects that are gone are left, until the timer of doubt ran out without
// another change in the folder.
func (m *Manifests) rescan(ctx context.Context, timers *manifestTimers, believe bool) {
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
	case believe:
		m.apply(ctx, time.Time{}, true)
	}
}

// watched lists the folders in which a change may concern the manifests, and the paths whose events do: every link on
// the way to the folder, and all files of the folder and of those that links in it lead to. The latter are given as the
// folder with a slash at its end. Folders are named without links: the kernel has one watch for a folder, whatever its names.
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

// linkTrail gives the path, and the one that it links to, and so on. Links among the folders above are not among them;
// that they lead elsewhere is seen by looking from time to time.
func linkChain(path string) []string {
	const most = 40 // links, as for the kernel
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

// folderWatches are the watches that fsnotify keeps.
type folderWatches struct {
	notify *fsnotify.Watcher
	kept   map[string]bool // by folder; false: there is none
}

// set watches these folders and no others. One that cannot be watched is left to looking from time to time.
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
