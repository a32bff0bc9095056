// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/resolve"
)

// reloadState counts applied and refused configurations. A counter is incremented last, after the change and
// its warnings, so a reader of the counter finds both.
type reloadState struct {
	generation  atomic.Uint64 // of the configuration in use, from 1
	good, bad   atomic.Uint64
	lastSuccess atomic.Int64 // Unix time in ns
	lastError   atomic.Pointer[string]
}

func (s *reloadState) succeeded(now time.Time) {
	s.lastSuccess.Store(now.UnixNano())
	s.lastError.Store(nil)
	s.good.Add(1)
	s.generation.Add(1)
}

func (s *reloadState) failed(err error) {
	text := err.Error()
	s.lastError.Store(&text)
	s.bad.Add(1)
}

// syncTimeout bounds a reload's wait for a new cluster source. The old one answers meanwhile.
const syncTimeout = 10 * time.Second

// A request asks applyReloads to apply a configuration, or to record why there is none.
type request struct {
	cfg    config.Config
	err    error
	replan bool // only rebuild the plan: something outside the configuration has changed
	done   chan struct{}

	serving bool // only note that the agent serves
}

// Reload applies cfg. If err is not nil, Reload records it and keeps the running configuration. It returns
// when that is done or the agent stops. The agent must run.
func (a *Agent) Reload(cfg config.Config, err error) {
	a.request(request{cfg: cfg, err: err})
}

// request passes r to applyReloads and waits for it.
func (a *Agent) request(r request) {
	r.done = make(chan struct{})
	select {
	case a.requests <- r:
		<-r.done
	case <-a.stopped:
	}
}

// applyReloads handles requests until ctx ends. It starts the tasks of each new configuration in parts.
func (a *Agent) applyReloads(ctx context.Context, parts *taskSet) {
	defer close(a.stopped)
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-a.requests:
			switch {
			case r.serving:
				a.sourceServes()
			case r.replan:
				r.err = a.replan()
			case r.err == nil:
				r.err = a.apply(ctx, parts, r.cfg)
			}
			if r.err != nil {
				a.refuse(ctx, r.err)
			}
			close(r.done)
		}
	}
}

// apply applies cfg. It builds all parts, waits for the sync of a new cluster source, swaps the resolver's
// plan in one step, and then stops unused parts. A query sees either the old plan or the new one.
func (a *Agent) apply(ctx context.Context, parts *taskSet, cfg config.Config) error {
	old := a.running.Load()
	fixed := revertRestartKeys(&cfg, &old.config)
	r, err := a.build(cfg, old) //nolint:contextcheck // it reads files and never blocks
	if err != nil {
		return err
	}
	parts.start(r) //nolint:contextcheck // the set holds the context of its tasks
	a.memory.update(ctx, &cfg)
	plan, err := a.preparedPlan(ctx, r, old)
	if err == nil {
		err = r.resize(old) // last of the steps that can fail: it empties the old cache
	}
	if err != nil {
		parts.stopUnused(old)
		a.memory.update(ctx, &old.config)
		return err
	}
	plan.Cache = r.cache
	a.logHandler.set(a.options.Log, cfg.Log)
	r.cache.SetPrefetch(cache.Prefetch{Hits: cfg.Cache.Prefetch.Hits, Remaining: cfg.Cache.Prefetch.Remaining})
	r.cache.SetServeStale(cache.ServeStale{Window: cfg.Cache.ServeStale.For, TTL: cfg.Cache.ServeStale.TTL})
	a.limitSessions(&cfg.Limits)
	a.running.Store(r)
	a.limitNames(r.cluster)
	a.observe(r.cluster)
	a.resolver.Swap(plan)
	purgeNoCache(r, old)
	purgeRerouted(r, old)
	parts.stopUnused(r)
	a.node.targetChanged()
	a.snapshots.configChanged()
	if len(fixed) > 0 {
		a.log.WarnContext(ctx, "configuration keys need a restart", "keys", fixed)
	}
	a.reloads.succeeded(time.Now())
	a.log.InfoContext(ctx, "configuration applied", "generation", a.reloads.generation.Load())
	a.sourceApplied(&r.config)
	a.handover.configChanged()
	return nil
}

// preparedPlan returns the plan of r, after r has synced the cluster if old had.
func (a *Agent) preparedPlan(ctx context.Context, r, old *generation) (*resolve.Plan, error) {
	if old.cluster.synced() {
		if err := r.cluster.awaitSync(ctx, syncTimeout); err != nil {
			return nil, err
		}
	}
	return a.plan(r)
}

// replan rebuilds the plan of the running configuration.
func (a *Agent) replan() error {
	r := a.running.Load()
	plan, err := a.plan(r)
	if err != nil {
		return err
	}
	a.limitSessions(&r.config.Limits)
	a.limitNames(r.cluster)
	a.resolver.Swap(plan)
	return nil
}

// limitSessions bounds the TCP sessions by cfg and by the memory.
func (a *Agent) limitSessions(limits *config.Limits) {
	share := a.memory.share.Load()
	sessions, perClient := share.sessions(limits)
	for _, t := range a.tcp {
		t.SetLimits(sessions, perClient, share.held(), limits.TCPIdle)
	}
}

// revertRestartKeys resets the keys that need a restart to their old values, and returns them.
func revertRestartKeys(cfg, old *config.Config) (keys []string) {
	if !slices.Equal(cfg.Listen.Addresses, old.Listen.Addresses) {
		keys = append(keys, "listen.addresses")
	}
	if cfg.Listen.Port != old.Listen.Port {
		keys = append(keys, "listen.port")
	}
	if cfg.Admin.Address != old.Admin.Address {
		keys = append(keys, "admin.address")
	}
	if cfg.Admin.Socket != old.Admin.Socket {
		keys = append(keys, "admin.socket")
	}
	if !slices.Equal(cfg.Admin.Hosts, old.Admin.Hosts) {
		keys = append(keys, "admin.hosts")
	}
	if cfg.Interface != old.Interface {
		keys = append(keys, "interface")
	}
	if !sameIntercept(&cfg.Intercept, &old.Intercept) {
		keys = append(keys, "intercept")
	}
	if cfg.Handover != old.Handover {
		keys = append(keys, "handover")
	}
	cfg.Handover = old.Handover
	cfg.Listen.Addresses, cfg.Listen.Port, cfg.Admin = old.Listen.Addresses, old.Listen.Port, old.Admin
	cfg.Interface = old.Interface
	fallback := cfg.Intercept.Fallback
	cfg.Intercept = old.Intercept
	cfg.Intercept.Fallback = fallback
	return keys
}

// sameIntercept compares all keys except the fallback, which reloads live.
func sameIntercept(a, b *config.Intercept) bool {
	return a.Manage == b.Manage && a.Mode == b.Mode && a.Backend == b.Backend && a.Lease == b.Lease &&
		a.OnExit == b.OnExit && slices.Equal(a.Services, b.Services)
}

// refuse keeps the running configuration and records why.
func (a *Agent) refuse(ctx context.Context, err error) {
	a.logRefused(ctx, err)
	a.sourceRefused(err)
	a.reloads.failed(err)
}

// logRefused logs why a configuration was refused, one line for each problem.
func (a *Agent) logRefused(ctx context.Context, err error) {
	file := a.sourceName()
	var bad *config.Error
	if !errors.As(err, &bad) {
		a.log.ErrorContext(ctx, "configuration refused", "file", file, "err", err, "hint", hintFor(err))
		return
	}
	for _, p := range bad.Problems {
		a.log.ErrorContext(ctx, "configuration refused", "file", file, "key", p.Path, "err", p.What, "hint", p.Hint)
	}
}
