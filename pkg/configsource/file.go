// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/filewatch"
)

const maxFile = 1 << 20 // bytes; a ConfigMap holds at most that

// confirmTime is the time until a missing or empty file counts as a change: most such files are about to be written.
const confirmTime = time.Second

// A file reads the configuration from the file system.
type file struct {
	*base

	report  func(content)
	unread  bool   // there may be changes that were not read
	data    []byte // content at the last read
	failed  error  // error of the last read
	doubted bool   // the last check found the file missing or empty
}

// load reads the file twice: first for check to compare with, then for the configuration. So check reports a change in between.
func (f *file) load(context.Context) (content, error) {
	f.data, f.failed = readFile(f.cfg.File)
	c, err := config.Load(f.cfg.File, f.cfg.Role)
	return content{config: c, err: err}, nil
}

// readFile reads the file. It refuses pipes and devices, whose reading may never end.
func readFile(path string) ([]byte, error) {
	data, err := filewatch.ReadFile(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	return data, nil
}

// run implements [configReader].
func (f *file) run(ctx context.Context) error {
	if f.unread {
		c, _ := f.load(ctx)
		f.unread = false
		f.report(c)
	}
	filewatch.Watch(ctx, filewatch.Config{
		Paths: []string{f.cfg.File}, Log: f.cfg.Log,
		Check:   f.check,
		OnPanic: func(panicked any) { panic(panicked) }, // runWithRestarts handles it
	})
	return nil
}

// reset implements [configReader].
func (f *file) reset() { f.unread = true }

// check reads the file and reports new content. It returns the time to the next check, 0 for the usual one.
func (f *file) check(bool) time.Duration {
	data, failed := readFile(f.cfg.File)
	doubted := f.doubted
	f.doubted = false
	switch {
	case fmt.Sprint(failed) == fmt.Sprint(f.failed) && bytes.Equal(data, f.data):
		return 0
	case !doubted && len(data) == 0: // as between two steps of a writer
		f.doubted = true
		return confirmTime
	}
	f.data, f.failed = data, failed
	c := content{err: failed}
	if failed == nil {
		c.config, c.err = config.ParseAs(f.cfg.File, filepath.Dir(f.cfg.File), data, f.cfg.Role)
	}
	f.report(c)
	return 0
}
