// SPDX-License-Identifier: Apache-2.0

package localdata

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/filewatch"
	"github.com/nodecache/node-cache/pkg/panics"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Hosts are names with addresses. They are safe for concurrent use.
type Hosts struct {
	cfg     Config // the configuration without templates, predecessor, log and Changed
	log     *slog.Logger
	changed func() // Config.Changed
	ttl     uint32 // seconds
	table   atomic.Pointer[table]

	// Used by newHosts, and after that only by Run.
	files         []*hostsFile
	tableOutdated bool // files were read, but a panic kept their content out of the table

	panics atomic.Uint64

	mu     sync.Mutex  // guards states
	states []hostsFile // copies of files after the last check
}

// newHosts returns the predecessor if its configuration is the same. Otherwise it reads the files. Files that it cannot read keep the
// content that the predecessor has.
func newHosts(cfg Config, predecessor *Hosts) (*Hosts, error) {
	log, changed := cfg.Log, cfg.Changed
	cfg.Templates, cfg.Predecessor, cfg.Log, cfg.Changed = nil, nil, nil, nil
	if predecessor != nil && reflect.DeepEqual(predecessor.cfg, cfg) {
		return predecessor, nil
	}
	h := &Hosts{cfg: cfg, log: log, changed: changed, ttl: uint32(cfg.TTL / time.Second)}
	for name := range cfg.Names {
		if _, err := wire.AppendPlainName(nil, name); err != nil {
			return nil, fmt.Errorf("parsing hosts: %q: %w", name, err)
		}
	}
	configured := h.configuredHosts().table // a copy, so that the rest of the builder is freed
	h.table.Store(&configured)
	for _, path := range cfg.Files {
		h.files = append(h.files, predecessor.hostsFile(path))
	}
	// If reading panics and there is no predecessor, only the hosts of the configuration are served until Run reads the files.
	h.tableOutdated = len(h.files) > 0
	err := h.guard().Do(context.Background(), func() error {
		h.reload(true)
		return nil
	})
	if err != nil && predecessor != nil {
		predecessor.panics.Add(h.panics.Load()) // h is discarded, and its counters with it
		return nil, fmt.Errorf("reading the hosts files: %w", err)
	}
	return h, nil
}

// hostsFile returns the file at path, with the content that h has of it. h may be nil.
func (h *Hosts) hostsFile(path string) *hostsFile {
	if h != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		for i := range h.states {
			if h.states[i].Path == path {
				f := h.states[i]
				f.Names, f.Skipped, f.Reads = 0, 0, 0
				return &f
			}
		}
	}
	return &hostsFile{FileStats: FileStats{Path: path}}
}

// Run watches the files until ctx ends, and returns nil then. It checks every five seconds where the kernel cannot report changes.
// Run may be called once.
func (h *Hosts) Run(ctx context.Context) error {
	if len(h.files) == 0 {
		<-ctx.Done()
		return nil
	}
	check := func(notified bool) time.Duration {
		before := h.table.Load()
		again := h.reload(notified)
		if h.changed != nil && h.table.Load() != before {
			h.changed()
		}
		return again
	}
	filewatch.Watch(ctx, filewatch.Config{
		Paths: h.cfg.Files, Check: check, Log: h.log,
		OnPanic: func(panicked any) { _ = h.guard().Recovered(ctx, panicked) },
	})
	return nil
}

// String names the task in logs.
func (h *Hosts) String() string { return "hosts files" }

// maxFileSize bounds the bytes read of one file. The longest public lists are shorter.
const maxFileSize = 32 << 20

// ReadHosts returns the text of a hosts file.
func ReadHosts(path string) ([]byte, error) { return filewatch.ReadFile(path, maxFileSize) }

// A hostsFile is one file in the format of hosts(5) and its last content.
type hostsFile struct {
	FileStats // state at the last check

	changes filewatch.Changes
	text    []byte // the content; nil: not read yet
}

// reload reads the file if it seems changed, or always with force, and reports whether f.text has new content. It keeps the previous
// content if the file is gone, unreadable or still being written.
func (f *hostsFile) reload(force bool) bool {
	f.LastError = ""
	due, err := f.changes.Due(f.Path, force)
	if due {
		var text []byte
		if text, err = ReadHosts(f.Path); err == nil && f.changes.Use(len(text) == 0, len(f.text) > 0) &&
			(f.text == nil || !bytes.Equal(text, f.text)) {
			f.text = text
			return true
		}
	}
	if err != nil {
		f.LastError = err.Error()
	}
	return false
}

// parse adds the names of the text of a file in the format of hosts(5). It returns the number of valid names, and of lines with an error.
func (b *builder) parse(text []byte, file int) (names, skipped int) {
	text = bytes.TrimPrefix(text, []byte("\ufeff")) // the byte order mark, with which some editors begin a file
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxFileSize+1)
	b.from = origin{file: int32(file)} //nolint:gosec // few files
	for lines.Scan() {
		b.from.line++
		line, _, _ := bytes.Cut(lines.Bytes(), []byte{'#'})
		fields := bytes.Fields(line)
		if len(fields) == 0 {
			continue
		}
		addr, err := netip.ParseAddr(string(fields[0]))
		good := err == nil && len(fields) > 1
		for _, name := range fields[1:] {
			if err == nil && b.add(string(name), addr) {
				names++
			} else {
				good = false
			}
		}
		if !good {
			skipped++
		}
	}
	return names, skipped
}

// guard recovers panics while files are read.
func (h *Hosts) guard() panics.Guard {
	return panics.Guard{Where: "static", Log: h.log, Count: &h.panics}
}

// reload checks the files, with all set also those that seem unchanged, and rebuilds the table if one has changed. It returns the
// time after which the caller must call it again, 0 for none.
func (h *Hosts) reload(all bool) (again time.Duration) {
	changed := h.tableOutdated
	h.tableOutdated = true // stays set if a panic ends this call
	for _, f := range h.files {
		before := f.LastError
		if f.reload(all) {
			changed = true
			f.Reads++
		}
		if f.changes.Unsettled {
			again = filewatch.SettleTime
		}
		if f.LastError != "" && f.LastError != before {
			h.log.Debug("hosts file unreadable, keeping its previous content", "path", f.Path, "names", f.Names, "err", f.LastError)
		}
	}
	if changed {
		h.buildTable()
	}
	h.publishStates()
	h.tableOutdated = false
	return again
}

// configuredHosts starts a table with the hosts of the configuration. Files cannot add addresses to these names.
func (h *Hosts) configuredHosts() *builder {
	b := newBuilder(!h.cfg.NoReverse)
	for _, name := range slices.Sorted(maps.Keys(h.cfg.Names)) {
		for _, addr := range h.cfg.Names[name] {
			b.add(name, addr)
		}
	}
	b.freeze()
	return b
}

// buildTable builds the table of all hosts and publishes it.
func (h *Hosts) buildTable() {
	b := h.configuredHosts()
	for i, f := range h.files {
		f.Names, f.Skipped = b.parse(f.text, i+1)
		if f.Skipped > 0 {
			h.log.Warn("hosts file lines skipped", "path", f.Path, "lines", f.Skipped)
		}
	}
	t := b.table // a copy, so that the rest of the builder is freed
	h.table.Store(&t)
	h.log.Info("hosts files loaded", "files", len(h.files), "names", len(t.names), "addresses", t.addresses)
}

// origin formats an origin.
func (h *Hosts) origin(from origin) string {
	if from.file == 0 {
		return "hosts.names"
	}
	return fmt.Sprintf("%s:%d", h.cfg.Files[from.file-1], from.line)
}

// publishStates copies the state of the files for other goroutines.
func (h *Hosts) publishStates() {
	states := make([]hostsFile, 0, len(h.files))
	for _, f := range h.files {
		states = append(states, *f)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.states = states
}

// fileStats returns the state of each file at the last check.
func (h *Hosts) fileStats() []FileStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	stats := make([]FileStats, 0, len(h.states))
	for i := range h.states {
		stats = append(stats, h.states[i].FileStats)
	}
	return stats
}
