// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	quiet   = 50 * time.Millisecond  // after the last event: a writer has more to come
	longest = 500 * time.Millisecond // after the first event, however many follow: there are folders that never rest
	reread  = 5 * time.Second        // between looks without an event: network mounts and links further up tell nothing
)

// Config says which files, and who looks at them.
type Config struct {
	Paths []string // of files, or of links to such; they need not be there

	// Look is called at once, soon after a file may have changed, and every five seconds, one call at a time. told is false
	// when nothing but time says that a file may have changed. If rest is not zero the next call is after that time, whatever
	// happens: a file is being written, say. Required.
	Look func(told bool) (rest time.Duration)

	// Defect is told of a panic of Look, or in what leads to it, which costs that call alone: the next one comes by itself,
	// and is told. Required.
	Defect func(panicked any, stack []byte)

	Log *slog.Logger // required
}

// Files follows files until ctx ends. While the kernel gives no watches it goes by time.
func Files(ctx context.Context, c Config) {
	f := files{Config: c, open: openWatches}
	f.run(ctx)
}

// watches are what the kernel tells of folders.
type watches struct {
	add    func(folder string) error // again for a folder that has a watch: no harm
	remove func(folder string) error
	events <-chan fsnotify.Event
	errors <-chan error
	close  func() error // joins the goroutine of it
}

func openWatches() (watches, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return watches{}, err
	}
	return watches{add: w.Add, remove: w.Remove, events: w.Events, errors: w.Errors, close: w.Close}, nil
}

// files are those of one Config.
type files struct {
	Config
	open    func() (watches, error)
	kernel  watches         // zero: it gave none so far
	folders map[string]bool // that should have a watch
	said    bool            // that there are none
}

// run is Files.
func (f *files) run(ctx context.Context) {
	defer func() {
		if f.kernel.close != nil {
			_ = f.kernel.close() // it only read
		}
	}()
	next := time.NewTimer(0) // the files may have changed since they were read first
	defer next.Stop()
	latest := time.NewTimer(time.Hour)
	latest.Stop()
	defer latest.Stop()
	told, woken, resting := true, false, false
	wake := func() {
		if resting {
			return
		}
		next.Reset(quiet)
		if !woken {
			latest.Reset(longest)
		}
		told, woken = true, true
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.kernel.events:
			wake()
			continue
		case err := <-f.kernel.errors: // most often a full queue, that is, events that are lost
			f.Log.DebugContext(ctx, "lost file events", "files", f.Paths, "err", err)
			wake()
			continue
		case <-next.C:
		case <-latest.C:
		}
		latest.Stop()
		rest := time.Duration(0)
		watched := f.guarded(func() { f.watch(ctx) }) // before the look, so that no change falls between the two
		looked := f.guarded(func() { rest = f.Look(told) })
		resting, woken = rest > 0, false
		told = resting || !watched || !looked // what it was told of may not have been seen to
		next.Reset(cmp.Or(rest, reread))
	}
}

// guarded does something. It is false if a defect cut that short.
func (f *files) guarded(do func()) (done bool) {
	defer func() {
		if panicked := recover(); panicked != nil {
			f.Defect(panicked, debug.Stack())
		}
	}()
	do()
	return true
}

// watch watches the folders that matter now, and no others. One that cannot be watched is left to time.
func (f *files) watch(ctx context.Context) {
	if f.kernel.add == nil && !f.opened(ctx) {
		return
	}
	before := f.folders
	f.folders = map[string]bool{}
	for _, path := range f.Paths {
		f.watchFolder(filepath.Dir(path))
		if target, err := filepath.EvalSymlinks(path); err == nil {
			f.watchFolder(filepath.Dir(target))
		}
	}
	for folder := range before {
		if !f.folders[folder] {
			_ = f.kernel.remove(folder) // it may have gone by itself, with the folder
		}
	}
}

// watchFolder watches one folder, by its name without links: the kernel has one watch for it, whatever its names.
func (f *files) watchFolder(folder string) {
	if resolved, err := filepath.EvalSymlinks(folder); err == nil {
		folder = resolved
	}
	if !f.folders[folder] {
		f.folders[folder] = true
		_ = f.kernel.add(folder)
	}
}

// opened asks the kernel for watches, which others may have used up for now.
func (f *files) opened(ctx context.Context) bool {
	w, err := f.open()
	if err == nil {
		f.kernel = w
		return true
	}
	if !f.said {
		f.Log.WarnContext(ctx, "no file events, the files are only looked at from time to time", "files", f.Paths, "every", reread, "err", err)
		f.said = true
	}
	return false
}
