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

// reloadState counts configurations put to work and refused. The count comes after what is counted, and after the warnings
// about it: who sees it finds these.
type reloadState struct {
	generation  atomic.Uint64 // of the configuration in use, from 1
	good, bad   atomic.Uint64
	lastSuccess atomic.Int64 // Unix ns
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

// syncPatience is how long a reload waits for a new source of the cluster zone. The
// old one answers meanwhile.
const syncPatience = 10 * time.Second

// A request is a configuration to put to work, or why there is none.
type request struct {
	cfg    config.Config
	err    error
	replan bool // only plan anew: what is known outside the configuration has changed
	done   chan struct{}

	serving bool // only note that the agent serves
}

// Reload puts cfg to work, or, when err is not nil, says that there is a bad
// configuration and keeps the running one. It returns when that is done, or the
// agent is stopping. The agent must run.
func (a *Agent) Reload(cfg config.Config, err error) {
	a.request(request{cfg: cfg, err: err})
}

// request has Run deal with r.
func (a *Agent) request(r request) {
	r.done = make(chan struct{})
	select {
	case a.requests <- r:
		<-r.done
	case <-a.stopped:
	}
}

// takeReloads applies what Reload asks for until ctx ends, and has parts run the tasks
// of each new configuration.
func (a *Agent) takeReloads(ctx context.Context, parts *taskSet) {
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

// apply puts cfg to work: everything is built first, and a new source of cluster
// names is in sync, then the resolver's plan is swapped in one step, then what is no
// longer used ends. A query sees the old plan or the new one, whole.
func (a *Agent) apply(ctx context.Context, parts *taskSet, cfg config.Config) error {
	old := a.running.Load()
	fixed := restartOnly(&cfg, &old.config)
	r, err := a.build(cfg, old) //nolint:contextcheck // it only reads files, and nothing in it waits
	if err != nil {
		return err
	}
	parts.start(r) //nolint:contextcheck // the set has the context of its tasks
	a.memory.use(ctx, &cfg)
	plan, err := a.prepared(ctx, r, old)
	if err == nil {
		err = r.resize(old) // last of all that can fail: the old cache is empty then
	}
	if err != nil {
		parts.only(old)
		a.memory.use(ctx, &old.config)
		return err
	}
	plan.Cache = r.cache
	a.sink.use(a.options.Log, cfg.Log)
	r.cache.SetPrefetch(cache.Prefetch{Hits: cfg.Cache.Prefetch.Hits, Remaining: cfg.Cache.Prefetch.Remaining})
	r.cache.SetStale(cache.Stale{For: cfg.Cache.ServeStale.For, TTL: cfg.Cache.ServeStale.TTL})
	a.limitSessions(&cfg.Limits)
	a.running.Store(r)
	a.limitNames(r.cluster)
	a.heed(r.cluster)
	a.resolver.Swap(plan)
	dropUnkept(r, old)
	dropRerouted(r, old)
	parts.only(r)
	a.node.refresh()
	a.snapshots.refresh()
	if len(fixed) > 0 {
		a.log.WarnContext(ctx, "configuration needs a restart to apply whole", "keys", fixed)
	}
	a.reloads.succeeded(time.Now())
	a.log.InfoContext(ctx, "configuration applied", "generation", a.reloads.generation.Load())
	a.sourceApplied(&r.config)
	a.hand.reconsider()
	return nil
}

// prepared is the plan of r once r knows what old does.
func (a *Agent) prepared(ctx context.Context, r, old *running) (*resolve.Plan, error) {
	if old.cluster.inSync() {
		if err := r.cluster.synced(ctx, syncPatience); err != nil {
			return nil, err
		}
	}
	return a.plan(r)
}

// replan plans anew by the running configuration.
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

// limitSessions bounds the TCP sessions by the limits, and by the memory there is.
func (a *Agent) limitSessions(limits *config.Limits) {
	share := a.memory.known.Load()
	sessions, perClient := share.sessions(limits)
	for _, t := range a.tcp {
		t.SetLimits(sessions, perClient, share.held(), limits.TCPIdle)
	}
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

// sameIntercept compares all but the fallback, which is followed.
func sameIntercept(a, b *config.Intercept) bool {
	return a.Manage == b.Manage && a.Mode == b.Mode && a.Backend == b.Backend && a.Lease == b.Lease &&
		a.OnExit == b.OnExit && slices.Equal(a.Services, b.Services)
}

// refuse keeps the running configuration and says why.
func (a *Agent) refuse(ctx context.Context, err error) {
	a.tellRefused(ctx, err)
	a.sourceRefused(err)
	a.reloads.failed(err)
}

// tellRefused logs why a configuration is not put to work, a line for each problem.
func (a *Agent) tellRefused(ctx context.Context, err error) {
	file := a.sourceName()
	var bad *config.Error
	if !errors.As(err, &bad) {
		a.log.ErrorContext(ctx, "configuration refused, the running one stays", "file", file, "err", err, "hint", hintFor(err))
		return
	}
	for _, p := range bad.Problems {
		a.log.ErrorContext(ctx, "configuration refused, the running one stays", "file", file, "key", p.Path, "err", p.What, "hint", p.Hint)
	}
}
