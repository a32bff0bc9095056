// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/config"
)

// reloadState counts configurations put to work and refused.
type reloadState struct {
	generation  atomic.Uint64 // of the configuration in use, from 1
	good, bad   atomic.Uint64
	lastSuccess atomic.Int64 // Unix ns
	lastError   atomic.Pointer[string]
}

func (s *reloadState) succeeded(now time.Time) {
	s.generation.Add(1)
	s.good.Add(1)
	s.lastSuccess.Store(now.UnixNano())
	s.lastError.Store(nil)
}

func (s *reloadState) failed(err error) {
	s.bad.Add(1)
	text := err.Error()
	s.lastError.Store(&text)
}

// reload takes what the watcher found: a configuration or why there is none.
// Pools that a new one brings run in under, until below ends.
func (a *Agent) reload(below context.Context, under *errgroup.Group, cfg config.Config, err error) {
	if err == nil {
		err = a.apply(below, under, cfg)
	}
	if err != nil {
		a.refuse(below, err)
	}
}

// apply puts cfg to work: everything is built first, then the resolver's plan is
// swapped in one step, then what is no longer used ends. A query sees the old
// plan or the new one, whole.
func (a *Agent) apply(below context.Context, under *errgroup.Group, cfg config.Config) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := a.running.Load()
	fixed := restartOnly(&cfg, &old.config)
	r, err := a.build(cfg, old)
	if err != nil {
		return err
	}
	plan, err := a.plan(r)
	if err != nil {
		return err
	}
	a.sink.use(a.options.Log, cfg.Log)
	r.cache.SetPrefetch(cache.Prefetch{Hits: cfg.Cache.Prefetch.Hits, Remaining: cfg.Cache.Prefetch.Remaining})
	for _, t := range a.tcp {
		t.SetLimits(cfg.Limits.TCPSessions, cfg.Limits.TCPPerClient, cfg.Limits.TCPIdle)
	}
	a.running.Store(r)
	a.keep(below, under) // before the plan: its queries find their pools running
	a.resolver.Swap(plan)
	a.reloads.succeeded(time.Now())
	a.log.InfoContext(below, "configuration applied", "generation", a.reloads.generation.Load())
	if len(fixed) > 0 {
		a.log.WarnContext(below, "configuration needs a restart to apply whole", "keys", fixed)
	}
	return nil
}

// restartOnly puts back what only a restart changes, and names it.
func restartOnly(cfg, old *config.Config) (keys []string) {
	if !slices.Equal(cfg.Listen.Addresses, old.Listen.Addresses) {
		keys = append(keys, "listen.addresses")
	}
	if cfg.Listen.Port != old.Listen.Port {
		keys = append(keys, "listen.port")
	}
	if cfg.Admin.Address != old.Admin.Address {
		keys = append(keys, "admin.address")
	}
	cfg.Listen.Addresses, cfg.Listen.Port, cfg.Admin = old.Listen.Addresses, old.Listen.Port, old.Admin
	return keys
}

// refuse keeps the running configuration and says why, a line for each problem.
func (a *Agent) refuse(ctx context.Context, err error) {
	a.reloads.failed(err)
	var bad *config.Error
	if !errors.As(err, &bad) {
		a.log.ErrorContext(ctx, "configuration refused, the running one stays", "file", a.options.File, "err", err)
		return
	}
	for _, p := range bad.Problems {
		a.log.ErrorContext(ctx, "configuration refused, the running one stays", "file", a.options.File, "key", p.Path, "err", p.What, "hint", p.Hint)
	}
}
