// SPDX-License-Identifier: Apache-2.0

package filewatch

import (
	"cmp"
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	settleTime   = 50 * time.Millisecond  // delay after the last event, as a writer may not have finished
	maxDelay     = 500 * time.Millisecond // longest delay after the first event, for folders with constant events
	pollInterval = 5 * time.Second        // time between polls: network mounts, and links further up the path, send no events
)

// Config names the files and the functions to call. Paths, Folder or both are set.
type Config struct {
	Paths  []string // files, or symbolic links to files; they need not exist
	Folder string   // folder with files and links that all matter; it need not exist; empty: none

	// Check is called at once, soon after a file may have changed, and every five seconds, one call at a time. notified is
	// false if the call is only a poll. If pause is not zero, the next call comes after pause, regardless of events: for
	// example because a file is being written. Required.
	Check func(notified bool) (pause time.Duration)

	// OnPanic receives a panic of Check, or of the code that watches the folders, while the deferred function runs. The next call of Check comes as usual, with
	// notified set. Required.
	OnPanic func(panicked any)

	Log *slog.Logger // required
}

// Watch watches the files until ctx ends. While the kernel provides no watches, it only polls.
func Watch(ctx context.Context, c Config) {
	w := watcher{Config: c, open: openEventSource}
	w.run(ctx)
}

// eventSource sends the file events of folders.
type eventSource struct {
	add    func(folder string) error // idempotent
	remove func(folder string) error
	events <-chan fsnotify.Event
	errors <-chan error
	close  func() error // joins the source's goroutine
}

func openEventSource() (eventSource, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return eventSource{}, err
	}
	return eventSource{add: w.Add, remove: w.Remove, events: w.Events, errors: w.Errors, close: w.Close}, nil
}

// watcher is the state of one call of Watch.
type watcher struct {
	Config
	open    func() (eventSource, error)
	source  eventSource     // zero: not opened yet
	folders map[string]bool // paths of the folders that should have a watch
	warned  bool            // the lack of events was logged
}

func (w *watcher) run(ctx context.Context) {
	defer func() {
		if w.source.close != nil {
			_ = w.source.close() // an error does not matter: nothing was written
		}
	}()
	next := time.NewTimer(0) // the files may have changed since the caller first read them
	defer next.Stop()
	latest := time.NewTimer(time.Hour)
	latest.Stop()
	defer latest.Stop()
	notified, pending, paused := true, false, false
	onEvent := func() {
		if paused {
			return
		}
		next.Reset(settleTime)
		if !pending {
			latest.Reset(maxDelay)
		}
		notified, pending = true, true
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.source.events:
			onEvent()
			continue
		case err := <-w.source.errors: // usually a full queue, so that events are lost
			w.Log.DebugContext(ctx, "file events lost", "files", w.Paths, "folder", w.Folder, "err", err)
			onEvent()
			continue
		case <-next.C:
		case <-latest.C:
		}
		latest.Stop()
		pause := time.Duration(0)
		watched := w.runSafely(func() { w.updateWatches(ctx) }) // before Check, so that no change falls between the two
		checked := w.runSafely(func() { pause = w.Check(notified) })
		paused, pending = pause > 0, false
		notified = paused || !watched || !checked // the last change may not have been handled
		next.Reset(cmp.Or(pause, pollInterval))
	}
}

// runSafely calls do and reports whether it returned without a panic.
func (w *watcher) runSafely(do func()) (done bool) {
	defer func() {
		if panicked := recover(); panicked != nil {
			w.OnPanic(panicked)
		}
	}()
	do()
	return true
}

// updateWatches watches the folders that matter now, and no others. Folders that cannot be watched are polled.
func (w *watcher) updateWatches(ctx context.Context) {
	if w.source.add == nil && !w.openSource(ctx) {
		return
	}
	before := w.folders
	w.folders = map[string]bool{}
	for _, path := range w.Paths {
		w.watchFolder(filepath.Dir(path))
		w.watchTarget(path)
	}
	if w.Folder != "" {
		w.watchAll(w.Folder)
	}
	for folder := range before {
		if !w.folders[folder] {
			_ = w.source.remove(folder) // the watch may have ended with the folder
		}
	}
}

// watchAll watches a folder, the folders of the targets of its links, and, if it is a link, the folder that it is in.
func (w *watcher) watchAll(folder string) {
	w.watchFolder(folder)
	if info, err := os.Lstat(folder); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		w.watchFolder(filepath.Dir(folder))
	}
	entries, _ := os.ReadDir(folder) // Check reports an error
	for _, entry := range entries {
		if entry.Type()&fs.ModeSymlink != 0 {
			w.watchTarget(filepath.Join(folder, entry.Name()))
		}
	}
}

// watchTarget watches the folder of a link's target.
func (w *watcher) watchTarget(link string) {
	if target, err := filepath.EvalSymlinks(link); err == nil {
		w.watchFolder(filepath.Dir(target))
	}
}

// watchFolder watches one folder by its path without links: the kernel has one watch per folder, whatever its paths.
func (w *watcher) watchFolder(folder string) {
	if resolved, err := filepath.EvalSymlinks(folder); err == nil {
		folder = resolved
	}
	if !w.folders[folder] {
		w.folders[folder] = true
		_ = w.source.add(folder)
	}
}

// openSource reports whether the kernel provides events. Other processes may have used up the watches for now.
func (w *watcher) openSource(ctx context.Context) bool {
	source, err := w.open()
	if err == nil {
		w.source = source
		return true
	}
	if !w.warned {
		w.Log.WarnContext(ctx, "no file events, polling the files", "files", w.Paths, "folder", w.Folder, "interval", pollInterval, "err", err)
		w.warned = true
	}
	return false
}
