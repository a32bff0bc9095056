// SPDX-License-Identifier: Apache-2.0

package static

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

const (
	restTime = 250 * time.Millisecond // for which a file stays as it is that is not being written any more
	maxMoves = 120                    // looks at a file that does not rest, restTime apart, before it is read all the same
)

var errDefect = errors.New("reading the hosts files: a defect, the log has its stack")

// readFirst reads the files for the first time.
func (h *Hosts) readFirst() (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			h.defect(panicked, debug.Stack())
			err = errDefect
		}
	}()
	h.behind = len(h.files) > 0
	h.look(true)
	return nil
}

// defect counts and logs a panic that was recovered.
func (h *Hosts) defect(panicked any, stack []byte) {
	h.panics.Add(1)
	h.log.Error("recovered from a panic", "where", "static", "panic", fmt.Sprint(panicked), "stack", string(stack))
}

// look looks at the files, those that do not seem to have changed too if something tells that they have, and makes a new
// table if one of them has. It gives the time after which it is to be called again.
func (h *Hosts) look(told bool) (rest time.Duration) {
	changed := h.behind
	h.behind = true // if a defect cuts this short
	for _, f := range h.files {
		before := f.err
		if f.look(told) {
			changed = true
			f.reads++
		}
		if f.stirs {
			rest = restTime
		}
		if f.err != nil && (before == nil || f.err.Error() != before.Error()) {
			h.log.Warn("hosts file not read, what was read of it before stays", "path", f.path, "err", f.err)
		}
	}
	if changed {
		h.build()
	}
	h.note()
	h.behind = false
	return rest
}

// named begins a table with the names that are in no file.
func (h *Hosts) named() *builder {
	b := newBuilder(!h.cfg.NoReverse)
	for _, host := range h.cfg.Names {
		for _, addr := range host.Addresses {
			b.add(host.Name, addr)
		}
	}
	b.close()
	return b
}

// build makes the table of all there is, and puts it to work.
func (h *Hosts) build() {
	b := h.named()
	for _, f := range h.files {
		f.names, f.skipped = b.parse(f.text)
		if f.skipped > 0 {
			h.log.Warn("lines of a hosts file left out", "path", f.path, "lines", f.skipped)
		}
	}
	t := b.table()
	h.table.Store(t)
	h.log.Info("hosts files read", "files", len(h.files), "names", len(t.names), "addresses", t.addresses)
}

// note has others see how the files are.
func (h *Hosts) note() {
	states := make([]file, 0, len(h.files))
	for _, f := range h.files {
		states = append(states, *f)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.states = states
}

// fileStats are of the files as they were found last.
func (h *Hosts) fileStats() []FileStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	stats := make([]FileStats, 0, len(h.states))
	for i := range h.states {
		f := &h.states[i]
		stats = append(stats, FileStats{Path: f.path, Names: f.names, Skipped: f.skipped, Reads: f.reads, Err: f.err})
	}
	return stats
}
