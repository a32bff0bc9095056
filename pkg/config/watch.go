// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// confirmTime is the time until a missing or empty file counts as a change: most such files are about to be written.
const confirmTime = time.Second

// WatcherConfig is what a Watcher is made from.
type WatcherConfig struct {
	Path string // of the file; required
	Role Role   // of what Load would get; default Agent

	// Changed gets what Load would return, once for each content that differs from
	// the one before, never for the content at the time of NewWatcher. A file that
	// is gone or cannot be read counts as a content. It is called by Run, which
	// reads nothing until it returns. Required.
	Changed func(Config, error)

	Log *slog.Logger // nil: silent
}

// Watcher follows the configuration in a file, by package filewatch.
type Watcher struct {
	cfg     WatcherConfig
	seen    content
	doubted bool // the last check found the file missing or empty
	ready   chan struct{}
	checked sync.Once
}

// content is what a check found in the file.
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

// Run follows the file until ctx ends, and returns nil then. Run can be called once.
func (w *Watcher) Run(ctx context.Context) error {
	filewatch.Watch(ctx, filewatch.Config{
		Paths: []string{w.cfg.Path}, Log: w.cfg.Log,
		Check:   func(bool) time.Duration { return w.check() },
		OnPanic: func(panicked any, _ []byte) { panic(panicked) }, // the caller's to handle, as one of Changed
	})
	return nil
}

// check reads the file and reports new content. It returns the time to the next check, 0 for the usual one.
func (w *Watcher) check() time.Duration {
	defer w.checked.Do(func() { close(w.ready) })
	now := readContent(w.cfg.Path)
	doubted := w.doubted
	w.doubted = false
	switch {
	case now.equal(w.seen):
		return 0
	case !doubted && (now.err != nil || len(now.data) == 0): // as between two steps of a writer
		w.doubted = true
		return confirmTime
	}
	w.seen = now
	if now.err != nil {
		w.cfg.Changed(Config{}, now.err)
	} else {
		w.cfg.Changed(parseFile(w.cfg.Path, now.data, w.cfg.Role))
	}
	return 0
}

// readContent reads the file unless it is of a kind whose reading may never end.
func readContent(path string) content {
	data, err := filewatch.ReadFile(path, maxBytes)
	if err != nil {
		err = fmt.Errorf("reading the configuration: %w", err)
	}
	return content{data: data, err: err}
}

func (c content) equal(other content) bool {
	if c.err != nil || other.err != nil {
		return c.err != nil && other.err != nil && c.err.Error() == other.err.Error()
	}
	return bytes.Equal(c.data, other.data)
}
