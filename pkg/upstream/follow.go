// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	rereadEvery = 5 * time.Second       // for changes the watch does not show: links, network mounts
	settleTime  = 50 * time.Millisecond // from a change to the reading; writers take several steps
)

// followFiles rereads the resolv.conf files on every change until ctx ends.
func (p *Pool) followFiles(ctx context.Context) {
	var files []*resolvConf
	for _, src := range p.sources {
		if src.file != nil {
			files = append(files, src.file)
		}
	}
	if len(files) == 0 {
		<-ctx.Done()
		return
	}
	var events chan fsnotify.Event // nil: rereading alone must do
	var errs chan error
	w, err := fsnotify.NewWatcher()
	if err != nil {
		p.log.WarnContext(ctx, "resolv.conf not watched, only reread", "error", err, "every", rereadEvery)
	} else {
		defer func() { _ = w.Close() }() // joins its goroutine
		events, errs = w.Events, w.Errors
	}
	settled := time.NewTimer(0) // the first reading: the files may have changed since New
	defer settled.Stop()
	reread := time.NewTicker(rereadEvery)
	defer reread.Stop()
	for waiting := true; ; {
		select {
		case <-ctx.Done():
			return
		case <-events:
			if !waiting { // else a folder that never rests would put it off for ever
				waiting = true
				settled.Reset(settleTime)
			}
			continue
		case err := <-errs: // events were lost; the ticker will see what they were
			p.log.DebugContext(ctx, "watching resolv.conf", "error", err)
			continue
		case <-settled.C:
			waiting = false
		case <-reread.C:
		}
		if w != nil {
			watchFolders(w, files)
		}
		p.reload(ctx, files)
	}
}

// watchFolders watches where the files are and where links lead. Folders that
// are watched already stay so; one that cannot be watched is left to rereading.
func watchFolders(w *fsnotify.Watcher, files []*resolvConf) {
	for _, f := range files {
		for _, path := range []string{f.path, f.systemd} {
			_ = w.Add(filepath.Dir(path))
			if target, err := filepath.EvalSymlinks(path); err == nil {
				_ = w.Add(filepath.Dir(target))
			}
		}
	}
}

// reload reads the files and publishes a new list if one has changed.
func (p *Pool) reload(ctx context.Context, files []*resolvConf) {
	changed := false
	for _, f := range files {
		if f.refresh(ctx) {
			changed = true
			p.log.InfoContext(ctx, "resolv.conf changed", "path", f.path, "upstreams", f.servers)
		}
	}
	p.sweep()
	if changed {
		p.rebuild()
	}
}
