// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// The clockwork of a Watcher.
const (
	quiet   = 100 * time.Millisecond // after the last event: a writer has more to come
	longest = time.Second            // after the first event, however many follow
	confirm = time.Second            // until a file that is gone or empty is believed: most are about to be written
	restat  = 10 * time.Second       // between looks without an event: some file systems tell nothing
)

// WatcherConfig is what a Watcher is made from.
type WatcherConfig struct {
	Path string // of the file; required
	Role Role   // of what Load would get; default Agent

	// Changed gets what Load would return, once for each content that differs from
	// the one before, never for the content at the time of NewWatcher. A file that
	// is gone or cannot be read counts as a content. It is called by Run, which
	// looks at nothing until it returns. Required.
	Changed func(Config, error)

	Log *slog.Logger // nil: silent
}

// Watcher follows the configuration in a file: through renames, through swapped
// links such as the ..data of a ConfigMap, and through writes in place.
//
// It watches folders, not the file: the one of the path and the one of each link
// on the way to the file. A look compares bytes, so it costs a read to be woken
// for nothing, and nothing is missed when an event is.
type Watcher struct {
	cfg      WatcherConfig
	seen     content
	relevant map[string]bool // paths whose events mean something
	folders  map[string]bool // those with a watch
	ready    chan struct{}
}

// content is what a look at the file found.
type content struct {
	data []byte
	err  error // why there is no data
}

// NewWatcher reads the file once, as what is known already. Call it before
// [Load], then no change falls between the two.
func NewWatcher(cfg WatcherConfig) (*Watcher, error) {
	if cfg.Path == "" {
		return nil, errors.New("a watcher needs a path")
	}
	if cfg.Changed == nil {
		return nil, errors.New("a watcher needs a function to call")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	path, err := filepath.Abs(cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("resolving %s: %w", cfg.Path, err)
	}
	cfg.Path = path
	return &Watcher{cfg: cfg, seen: readContent(path), ready: make(chan struct{})}, nil
}

// String names the task in logs.
func (w *Watcher) String() string { return "configuration watcher" }

// Ready is closed when Run has its watches in place.
func (w *Watcher) Ready() <-chan struct{} { return w.ready }

// Run follows the file until ctx ends, and returns nil then. While the kernel
// grants no watch it looks every ten seconds. Run can be called once.
func (w *Watcher) Run(ctx context.Context) (err error) {
	var notify *fsnotify.Watcher
	defer func() { // whatever ends it
		if notify == nil {
			return
		}
		if failed := notify.Close(); failed != nil {
			err = fmt.Errorf("closing the watches of %s: %w", w.cfg.Path, failed)
		}
	}()
	open := func() (eventSource, error) {
		granted, err := fsnotify.NewWatcher()
		if err != nil {
			return eventSource{}, err
		}
		notify = granted
		return eventSource{add: granted.Add, remove: granted.Remove, events: granted.Events, errors: granted.Errors}, nil
	}
	source, err := open()
	if err != nil {
		w.cfg.Log.WarnContext(ctx, "no file events, polling the configuration", "path", w.cfg.Path, "err", err)
		none := func(string) error { return nil }
		source = eventSource{add: none, remove: none, open: open}
	}
	w.follow(ctx, source)
	return nil
}

// eventSource is what follow needs of fsnotify.
type eventSource struct {
	add    func(folder string) error // again for a folder that has a watch: no harm
	remove func(folder string) error
	events <-chan fsnotify.Event
	errors <-chan error

	open func() (eventSource, error) // makes one that has events, which others may have used up for now; nil: this one has
}

// opened is the source with events, if they can be had by now.
func (s eventSource) opened() eventSource {
	if s.open != nil {
		if opened, err := s.open(); err == nil {
			return opened
		}
	}
	return s
}

// follow is Run on any source of events.
func (w *Watcher) follow(ctx context.Context, source eventSource) {
	every := time.NewTicker(restat)
	defer every.Stop()
	settle, latest, doubt := stoppedTimer(), stoppedTimer(), stoppedTimer()
	defer settle.Stop()
	defer latest.Stop()
	defer doubt.Stop()
	pending := false
	wake := func() {
		settle.Reset(quiet)
		if !pending {
			latest.Reset(longest)
		}
		pending = true
	}
	look := func(believe bool) {
		settle.Stop()
		latest.Stop()
		pending = false
		source = source.opened()
		w.watchFolders(ctx, source)
		if w.look(believe) {
			doubt.Stop()
		} else {
			doubt.Reset(confirm)
		}
	}
	look(false)
	close(w.ready)
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-source.events:
			if w.relevant[filepath.Clean(event.Name)] {
				wake()
			}
		case err := <-source.errors:
			// Most often a full queue, that is, events that are lost.
			w.cfg.Log.DebugContext(ctx, "lost file events", "path", w.cfg.Path, "err", err)
			wake()
		case <-settle.C:
			look(false)
		case <-latest.C:
			look(false)
		case <-every.C:
			look(false)
		case <-doubt.C:
			look(true)
		}
	}
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// look reads the file and reports new content. It returns false, and reports
// nothing, when the file has just become missing or empty: the next look confirms it.
func (w *Watcher) look(believe bool) bool {
	now := readContent(w.cfg.Path)
	if now.equal(w.seen) {
		return true
	}
	if now.doubtful() && !believe {
		return false
	}
	w.seen = now
	if now.err != nil {
		w.cfg.Changed(Config{}, now.err)
		return true
	}
	w.cfg.Changed(parseFile(w.cfg.Path, now.data, w.cfg.Role))
	return true
}

// readContent reads the file unless it is of a kind whose reading may never end.
func readContent(path string) content {
	data, err := filewatch.ReadFile(path, maxBytes)
	if err != nil {
		err = fmt.Errorf("reading the configuration: %w", err)
	}
	return content{data: data, err: err}
}

// doubtful reports whether the file looks as it does between two steps of a writer.
func (c content) doubtful() bool { return c.err != nil || len(c.data) == 0 }

func (c content) equal(other content) bool {
	if c.err != nil || other.err != nil {
		return c.err != nil && other.err != nil && c.err.Error() == other.err.Error()
	}
	return bytes.Equal(c.data, other.data)
}

// watchFolders sets the watches that the links lead to now, and ends the others.
// It asks again for a folder that should have its watch: one that was removed and
// made anew has lost it.
func (w *Watcher) watchFolders(ctx context.Context, source eventSource) {
	before := w.folders
	w.relevant, w.folders = map[string]bool{}, map[string]bool{}
	for _, step := range trail(w.cfg.Path) {
		w.relevant[step.path()] = true
		w.relevant[step.folder] = true // its own removal
		w.folders[step.folder] = true
		if err := source.add(step.folder); err != nil {
			w.cfg.Log.DebugContext(ctx, "no file events for a folder", "folder", step.folder, "err", err)
		}
	}
	for folder := range before {
		if w.folders[folder] {
			continue
		}
		if err := source.remove(folder); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) {
			w.cfg.Log.DebugContext(ctx, "keeping the file events of a folder", "folder", folder, "err", err)
		}
	}
}
