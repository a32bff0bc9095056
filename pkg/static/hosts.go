// SPDX-License-Identifier: Apache-2.0

package static

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// hostsConfig is the part of a Config that hosts are made from.
type hostsConfig struct {
	Names     []Host
	Files     []string
	TTL       time.Duration
	NoReverse bool
}

// Hosts are names with addresses. They are safe for use by many goroutines.
type Hosts struct {
	cfg   hostsConfig
	log   *slog.Logger
	ttl   uint32 // seconds
	table atomic.Pointer[table]

	// These belong to newHosts, and then to Run.
	files  []*file
	behind bool // the table does not have what was read: a defect came between

	panics atomic.Uint64

	mu     sync.Mutex // guards what follows
	states []file     // as of the last look
}

// newHosts gives those of before if they are to be the same. Else it reads the files, and takes over from before what was
// read of those that cannot be read now.
func newHosts(cfg hostsConfig, before *Hosts, log *slog.Logger) (*Hosts, error) {
	if before != nil && reflect.DeepEqual(before.cfg, cfg) {
		return before, nil
	}
	h := &Hosts{cfg: cfg, log: log, ttl: uint32(cfg.TTL / time.Second)}
	for _, name := range cfg.Names {
		if _, ok := appendName(nil, name.Name); !ok {
			return nil, fmt.Errorf("making the hosts: %q is not a name", name.Name)
		}
	}
	h.table.Store(h.named().table())
	for _, path := range cfg.Files {
		h.files = append(h.files, before.file(path))
	}
	// Without hosts before, those without a file are better than none.
	if err := h.readFirst(); err != nil && before != nil {
		before.panics.Add(h.panics.Load()) // they are counted where somebody reads it
		return nil, err
	}
	return h, nil
}

// file is a file of a path with what was read of it before, if anything was.
func (h *Hosts) file(path string) *file {
	if h != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		for i := range h.states {
			if h.states[i].path == path {
				f := h.states[i]
				f.names, f.skipped, f.reads = 0, 0, 0
				return &f
			}
		}
	}
	return &file{path: path}
}

// Run follows the files until ctx ends, and returns nil then. Where the kernel tells of no changes it looks every five
// seconds. Run can be called once.
func (h *Hosts) Run(ctx context.Context) error {
	if len(h.files) == 0 {
		<-ctx.Done()
		return nil
	}
	filewatch.Watch(ctx, filewatch.Config{Paths: h.cfg.Files, Check: h.look, OnPanic: h.defect, Log: h.log})
	return nil
}

// String names the task in logs.
func (h *Hosts) String() string { return "hosts files" }
