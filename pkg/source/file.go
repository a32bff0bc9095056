// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"

	"github.com/nodecache/node-cache/pkg/config"
)

// A file is a source in the file system.
type file struct {
	source  *Source
	watcher *config.Watcher
	unread  bool // whether what the watcher has seen was found
}

// load begins to watch before it reads, so that no change falls between the two.
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

// run implements [follower]. There is nothing to follow by a path that begins at a folder which is gone.
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

// forget implements [follower].
func (f *file) reset() { f.unread = true }
