// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"sync/atomic"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/kernel"
	"github.com/nodecache/node-cache/pkg/resolve"
)

// TestKernelState lists what stops the answers of the kernel, the reason that comes first in each case.
func TestKernelState(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		want   string
		change func(*kernelHits, *config.Config)
	}{
		{"on", func(*kernelHits, *config.Config) {}},
		{"on", func(_ *kernelHits, c *config.Config) { c.Log.Queries.Mode = config.QueriesErrors }},
		{"off by configuration", func(h *kernelHits, c *config.Config) {
			c.Kernel.Hits = config.KernelOff
			h.stopped.Store(true)
		}},
		{"off by configuration", func(h *kernelHits, c *config.Config) {
			h.Kernel, h.why, c.Kernel.Hits = nil, "no BPF", config.KernelOff
		}},
		{"not supported: no BPF", func(h *kernelHits, _ *config.Config) { h.Kernel, h.why = nil, "no BPF" }},
		{"off by `node-cache kernel off`", func(h *kernelHits, c *config.Config) {
			c.Log.Dnstap = "/run/tap"
			h.stopped.Store(true)
		}},
		{"paused: dnstap is on", func(_ *kernelHits, c *config.Config) { c.Log.Dnstap = "/run/tap" }},
		{"paused: a watcher is attached", func(h *kernelHits, _ *config.Config) { h.watchers.Add(&resolve.QueryLog{}) }},
		{"paused: log.queries is all", func(_ *kernelHits, c *config.Config) { c.Log.Queries.Mode = config.QueriesAll }},
		{"paused: log.queries is sample", func(_ *kernelHits, c *config.Config) { c.Log.Queries.Mode = config.QueriesSample }},
	} {
		cfg := config.Default(config.Agent)
		cfg.Kernel.Hits = config.KernelAuto
		h := &kernelHits{
			Kernel: new(kernel.Kernel), running: new(atomic.Pointer[generation]), watchers: new(resolve.Watchers), handover: new(socketHandover),
		}
		tt.change(h, &cfg)
		h.running.Store(&generation{config: cfg})
		if got := h.state(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// TestKernelRestart lists which changes of the section kernel are in use at once.
func TestKernelRestart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		from, to string
		size     int64
		loaded   bool // the programs, at the start
		want     string
		needs    bool
	}{
		{from: config.KernelAuto, to: config.KernelOff, loaded: true, want: config.KernelOff},
		{from: config.KernelOff, to: config.KernelOn, loaded: true, want: config.KernelOn},
		{from: config.KernelAuto, to: config.KernelOff, want: config.KernelOff},
		{from: config.KernelOff, to: config.KernelAuto, want: config.KernelOff, needs: true},
		{from: config.KernelAuto, to: config.KernelOn, want: config.KernelAuto, needs: true},
		{from: config.KernelOn, to: config.KernelOn, size: 1 << 20, loaded: true, want: config.KernelOn, needs: true},
	} {
		old := config.Default(config.Agent)
		old.Kernel.Hits = tt.from
		now := old
		now.Kernel.Hits, now.Kernel.Size, now.Kernel.Permit = tt.to, old.Kernel.Size+tt.size, 1
		keys := revertRestartKeys(&now, &old, tt.loaded)
		if got := slices.Contains(keys, "kernel"); got != tt.needs || now.Kernel.Hits != tt.want || now.Kernel.Permit != 1 {
			t.Errorf("%+v: needs a restart: %t; %+v", tt, got, now.Kernel)
		}
		assert.Same(t, "size", old.Kernel.Size, now.Kernel.Size)
	}
}
