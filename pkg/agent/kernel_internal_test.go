// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/admin/top"
	"github.com/nodecache/node-cache/pkg/cluster"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/kernelhits"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/wire"
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
			h.Responder, h.why, c.Kernel.Hits = nil, "no BPF", config.KernelOff
		}},
		{"not supported: no BPF", func(h *kernelHits, _ *config.Config) { h.Responder, h.why = nil, "no BPF" }},
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
			Responder: new(kernelhits.Responder), running: new(atomic.Pointer[generation]), watchers: new(resolve.Watchers), handover: new(socketHandover),
		}
		tt.change(h, &cfg)
		h.running.Store(&generation{config: cfg})
		if got := h.state(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// TestPermitName has a policy engine that learns names on the node, or not.
func TestPermitName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		set, want time.Duration
		learner   bool
	}{
		{"no engine", 0, 0, false},
		{"engine", 0, 10 * time.Second, true},
		{"set, for an engine that the agent does not know", 20 * time.Second, 20 * time.Second, false},
		{"set, and engine", 20 * time.Second, 20 * time.Second, true},
	} {
		h := &kernelHits{running: new(atomic.Pointer[generation])}
		h.learner.Store(tt.learner)
		h.running.Store(&generation{config: config.Config{Kernel: config.Kernel{PermitName: tt.set}}})
		assert.Equal(t, tt.name, tt.want, h.permitName())
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
		now.Kernel.Hits, now.Kernel.Size, now.Kernel.Permit, now.Kernel.PermitName = tt.to, old.Kernel.Size+tt.size, 1, 2
		keys := revertRestartKeys(&now, &old, tt.loaded)
		if got := slices.Contains(keys, "kernel"); got != tt.needs || now.Kernel.Hits != tt.want || now.Kernel.Permit != 1 || now.Kernel.PermitName != 2 {
			t.Errorf("%+v: needs a restart: %t; %+v", tt, got, now.Kernel)
		}
		assert.Same(t, "size", old.Kernel.Size, now.Kernel.Size)
	}
}

// TestKernelCounts has the kernel's answers by pod and by name in the page /top, and as hits of the cache.
func TestKernelCounts(t *testing.T) {
	t.Parallel()
	cfg := config.Default(config.Agent)
	cfg.Listen.Port, cfg.Admin.Address = 1, netip.AddrPort{}
	a, err := New(Options{Config: &cfg, Log: io.Discard})
	assert.NoError(t, err)
	r := a.running.Load()
	h, known := &a.kernel, netip.MustParseAddr("10.1.2.3")
	h.count(kernelhits.Hits{Key: []byte("\x01a\x00\x00\x01\x00"), IPv4: 1}) // without an index of pods
	h.attribute(kernelhits.Client{Addr: known, Answered: 1})
	r.cluster.Pods = pods.NewIndex(time.Minute, nil)
	r.cluster.Pods.Put(&pods.Pod{Namespace: "shop", Name: "web", Addrs: []netip.Addr{known}})
	key := func(name string) []byte { return append([]byte(name), 0, 1, 0) }
	h.count(kernelhits.Hits{Key: key("\x01a\x00"), Source: resolve.SourceCache, Type: 1, IPv4: 2, IPv6: 3, Bytes: 10})
	h.count(kernelhits.Hits{Key: key("\x01b\x00"), Source: resolve.SourceCache, Rcode: wire.RcodeNXDomain, Type: 1, IPv4: 2, Bytes: 10})
	h.count(kernelhits.Hits{Key: key("\x01c\x00"), Source: resolve.SourceZone, Rcode: wire.RcodeNXDomain, Inside: true, Type: 1, IPv6: 1, Bytes: 10})
	h.attribute(kernelhits.Client{Addr: known, Answered: 5, Denied: 4, Searched: 3, Bytes: 50})
	h.attribute(kernelhits.Client{Addr: netip.MustParseAddr("10.1.2.4"), Answered: 3, Denied: 2, Searched: 1, Bytes: 30})
	page := status.TopOf(r.cluster.Pods, true)
	assert.Same(t, "page", &top.Page{
		Stale:   true,
		Pods:    []top.Row{{Namespace: "shop", Pod: "web", Counts: top.Counts{Queries: 5, NXDomain: 4, Search: 3, Bytes: 50}}},
		Unknown: top.Counts{Queries: 3, NXDomain: 2, Search: 1, Bytes: 30},
		Names: []top.Name{
			{Name: "a.", Counts: top.Counts{Queries: 5, Bytes: 50}},
			{Name: "b.", Counts: top.Counts{Queries: 2, NXDomain: 2, Bytes: 20}},
			{Name: "c.", Counts: top.Counts{Queries: 1, NXDomain: 1, Search: 1, Bytes: 10}},
		},
	}, page)
	recent := status.RecentOf(r.cluster.Pods, a.resolver, time.Now())
	assert.Same(t, "of the last ten minutes", &top.Recent{
		Stale:   true,
		Clients: []top.RecentRow{{Client: "shop/web", Queries: 6, Search: 3}, {Client: "10.1.2.4", Queries: 3, Search: 1}},
		Names:   []top.RecentRow{{Name: "a.", Queries: 6}, {Name: "b.", Queries: 2}, {Name: "c.", Queries: 1, Search: 1}},
		Pairs:   []top.RecentRow{},
		Slow:    []top.SlowReply{},
	}, recent)
	assert.Equal(t, "hits of the cache", uint64(7), r.cache.Stats().Hits)
}

// TestKernelDestinations lists the addresses at which the kernel answers.
func TestKernelDestinations(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*config.Config)
		want   string
	}{
		{"link-local", func(c *config.Config) { c.Intercept.Manage = true }, "[169.254.20.10:1053]"},
		{"transparent", func(c *config.Config) { c.Intercept.Manage, c.Intercept.Mode = true, config.ModeTransparent }, "[169.254.20.10:1053 10.96.0.10:53]"},
		{"transparent, with rules of another program", func(c *config.Config) { c.Intercept.Mode = config.ModeTransparent }, "[169.254.20.10:1053]"},
		{"all addresses, and one with a zone", func(c *config.Config) {
			c.Listen.Addresses = []netip.Addr{netip.IPv4Unspecified(), netip.MustParseAddr("fe80::1%eth0")}
		}, "[[fe80::1]:1053]"},
	} {
		cfg := config.Default(config.Agent)
		cfg.Listen.Addresses, cfg.Listen.Port = []netip.Addr{netip.MustParseAddr("169.254.20.10")}, 1053
		tt.change(&cfg)
		central := new(upstream.Service)
		central.Set(nil, []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:53")})
		r := &generation{config: cfg, cluster: &cluster.Cluster{Endpoints: central}}
		assert.Equal(t, tt.name, tt.want, fmt.Sprint(r.kernelDestinations()))
	}
}
