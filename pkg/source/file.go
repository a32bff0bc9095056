// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"

	"github.com/nodecache/node-cache/pkg/config"
)

// A file reads the configuration from the file system.
type file struct {
	source  *Source
	watcher *config.Watcher
	unread  bool // the watcher may have seen changes that were not read
}

// load starts the watch before it reads, so that no change is missed.
func (f *file) load(context.Context) (content, error) {
	cfg := &f.source.cfg
	var err error
	f.watcher, err = config.NewWatcher(config.WatcherConfig{
		Path: cfg.File, Role: cfg.Role, Log: cfg.Log,
		Changed: func(c config.Config, err error) { f.source.report(&f.source.mainContent, content{config: c, err: err}) },
	})
	if err != nil {
		return content{}, err
	}
	c, err := config.Load(cfg.File, cfg.Role)
	return content{config: c, err: err}, nil
}

// run implements [configReader]. A path through a removed folder cannot be watched.
func (f *file) run(ctx context.Context) error {
	if f.unread {
		c, err := f.load(ctx)
		if err != nil {
			c = content{err: err}
		}
		f.unread = false
		f.source.report(&f.source.mainContent, c)
	}
	if f.watcher == nil {
		<-ctx.Done()
		return nil
	}
	return f.watcher.Run(ctx)
}

// reset implements [configReader].
func (f *file) reset() { f.unread = true }
