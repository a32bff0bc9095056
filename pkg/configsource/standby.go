// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/filewatch"
)

// maxStandby bounds the standby file, in bytes.
const maxStandby = 1 << 10

// A standbyFile reads the file that puts agents in standby whose configuration is part of their pods, so that a change of it takes a
// rollout. The file is missing most of the time: it is a key of an optional ConfigMap.
type standbyFile struct {
	*base

	report func(content)
	on     bool // at the last read
}

// read returns the content of the file. If it cannot be read, that is the content at the last read.
func (f *standbyFile) read() content {
	switch text, err := filewatch.ReadFile(f.cfg.Standby, maxStandby); {
	case err == nil:
		f.on = strings.TrimSpace(string(text)) == "true"
	case errors.Is(err, fs.ErrNotExist):
		f.on = false
	default:
		f.cfg.Log.Warn("reading the standby file failed", "file", f.cfg.Standby, "err", err)
	}
	return content{standby: f.on}
}

// run reports changes until ctx ends.
func (f *standbyFile) run(ctx context.Context) {
	filewatch.Watch(ctx, filewatch.Config{
		Paths: []string{f.cfg.Standby}, Log: f.cfg.Log,
		Check: func(bool) time.Duration {
			before := f.on
			if c := f.read(); c.standby != before {
				f.report(c)
			}
			return 0
		},
		OnPanic: func(panicked any) { _ = f.guard("reading the standby file").Recovered(ctx, panicked) },
	})
}

// withStandby returns cfg with standby if the standby file has it. A configuration that must not have standby stays as it is: without
// a fallback, the agent has to answer.
func (s *Source) withStandby(ctx context.Context, cfg config.Config) config.Config {
	s.mu.Lock()
	on := s.off.standby
	s.mu.Unlock()
	if !on || cfg.Standby {
		return cfg
	}
	with := cfg
	with.Standby = true
	if _, err := config.Marshal(with); err != nil {
		s.cfg.Log.WarnContext(ctx, "standby ignored", "file", s.cfg.Standby, "err", err)
		return cfg
	}
	return with
}
