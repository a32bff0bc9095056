// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/admin/timeline"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/configsource"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/logging"
	"github.com/nodecache/node-cache/pkg/resolve"
)

// A configuration is the source of the configuration in use, and the results of changes. A counter is incremented last, after the
// change and its warnings, so a reader of the counter finds both.
type configuration struct {
	source     *configsource.Source // nil: Options.Config or the defaults
	startError error                // why the source's configuration was refused at the start; nil: it is in use
	logHandler *logging.Handler
	log        *slog.Logger
	changes    chan func(context.Context) // changes for run, which makes one at a time
	stopped    chan struct{}              // closed once run has ended

	generation  atomic.Uint64          // number of the configuration in use, from 1
	good, bad   atomic.Uint64          // configurations applied and refused
	lastSuccess atomic.Int64           // when a configuration was applied last; Unix time in ns
	lastError   atomic.Pointer[string] // why the latest configuration was refused; nil: it was applied
}

func (c *configuration) succeeded(now time.Time) {
	c.lastSuccess.Store(now.UnixNano())
	c.lastError.Store(nil)
	c.good.Add(1)
	c.generation.Add(1)
}

// syncTimeout bounds each wait of a reload: for a new cluster source, and for a new etcd client. Meanwhile the old plan answers.
const syncTimeout = 10 * time.Second

// Reload applies cfg and returns the configuration in use. If err is not nil, Reload records it as the reason
// why there is no configuration. After an error the running configuration stays. The agent must run.
func (a *Agent) Reload(cfg config.Config, err error) (inUse configsource.InUse, _ error) {
	err = a.config.inTurn(context.Background(), func(ctx context.Context) error {
		if err != nil {
			return err
		}
		return a.apply(ctx, cfg)
	})
	r := a.running.Load()
	return configsource.InUse{Config: r.config, Generation: a.config.generation.Load(), NeedRestart: r.needRestart}, err
}

// replan rebuilds the plan of the running configuration, because the memory limit or what is known of the node's topology has changed.
func (a *Agent) replan(ctx context.Context) {
	_ = a.config.inTurn(ctx, func(context.Context) error { // an error is logged
		r := a.running.Load()
		plan, err := a.builder.plan(r)
		if err != nil {
			return err
		}
		a.servers.limitSessions(a.memory.Share(), &r.config.Limits)
		a.builder.clusters.Apply(r.cluster, r.cluster)
		a.use(r, plan)
		return nil
	})
}

var errStopped = errors.New("the agent stops")

// inTurn makes run call do, and records the error of do. It waits until do has returned or ctx has ended.
func (c *configuration) inTurn(ctx context.Context, do func(context.Context) error) error {
	done := make(chan error, 1)
	change := func(ctx context.Context) {
		err := do(ctx)
		if err != nil {
			c.refuse(ctx, err)
		}
		done <- err
	}
	select {
	case c.changes <- change:
	case <-c.stopped:
		return errStopped
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run makes changes, one at a time, until ctx ends.
func (c *configuration) run(ctx context.Context) {
	defer close(c.stopped)
	for {
		select {
		case <-ctx.Done():
			return
		case change := <-c.changes:
			change(ctx)
		}
	}
}

// apply applies cfg. It builds the parts that changed, waits for a new cluster source and a new etcd client, swaps the
// resolver's plan in one step, and then stops unused parts. A query sees either the old plan or the new one.
func (a *Agent) apply(ctx context.Context, cfg config.Config) error {
	old := a.running.Load()
	needRestart := revertRestartKeys(&cfg, &old.config, a.kernel.Responder != nil)
	r, err := a.builder.build(cfg, old) //nolint:contextcheck // it reads files and never blocks
	if err != nil {
		return err
	}
	r.needRestart = needRestart
	a.parts.start(ctx, r.parts())
	otherMemory := !r.unchanged(old, memoryKeys)
	if otherMemory { // otherwise Keeper.Watch handles a new limit of the container, and makes a plan for it
		a.memory.Update(ctx, &cfg)
	}
	plan, err := a.preparedPlan(ctx, r, old)
	if err == nil && a.gate.isOpen() { // before, the gate checks what is in use
		err = a.builder.checkReload(ctx, r, old)
	}
	if err == nil {
		err = r.resize(old) // last of the steps that can fail: it empties the old cache
	}
	if err != nil {
		a.parts.stopUnused(old.parts())
		if otherMemory {
			a.memory.Update(ctx, &old.config)
		}
		return err
	}
	plan.Cache = r.cache
	a.config.logHandler.Set(cfg.Log)
	a.builder.useTap(cfg.Log.Dnstap)
	r.cache.SetPrefetch(cacheConfig(cfg.Cache).Prefetch)
	r.cache.SetServeStale(cacheConfig(cfg.Cache).ServeStale)
	r.cache.SetPinned(r.keep.Names(), cfg.Cache.Keep.For)
	a.servers.limitSessions(a.memory.Share(), &cfg.Limits)
	a.running.Store(r)
	a.builder.clusters.Apply(old.cluster, r.cluster)
	zones := a.resolver.Zones()
	a.use(r, plan)
	switch {
	case !r.unchanged(old, func(c *config.Config) any { return c.DNS64 }):
		a.push.Reconfigured(ctx, nil)
	case !r.unchanged(old, pushKeys):
		a.push.Reconfigured(ctx, zones)
	}
	purgeRerouted(r, old)
	a.resolver.PurgeBlocked()
	a.parts.stopUnused(r.parts())
	a.node.TargetChanged()
	a.snapshots.apply(old, r)
	if len(needRestart) > 0 {
		a.log.WarnContext(ctx, "configuration keys need a restart", "keys", needRestart)
	}
	a.config.succeeded(time.Now())
	a.log.InfoContext(ctx, "configuration applied", "generation", a.config.generation.Load())
	close(old.replaced)
	return nil
}

// use makes the resolver answer by plan, the plan of r, from now on.
func (a *Agent) use(r *generation, plan *resolve.Plan) {
	r.adopt(plan)
	a.resolver.Swap(plan)
	a.kernel.update()
}

// preparedPlan returns the plan of r. Before that, it waits for a new source of r, the cluster or etcd, if the one in old was synced.
func (a *Agent) preparedPlan(ctx context.Context, r, old *generation) (*resolve.Plan, error) {
	if r.cluster != old.cluster && old.cluster.Synced() {
		if err := r.cluster.AwaitSync(ctx, syncTimeout); err != nil {
			return nil, err
		}
	}
	if e := old.etcd; e != nil && r.etcd != nil && r.etcd != e && e.Source().Records() != nil {
		if err := r.etcd.AwaitRead(ctx, syncTimeout); err != nil {
			return nil, err
		}
	}
	return a.builder.plan(r)
}

// purgeRerouted removes zones from the cache, so that cached denials of an old upstream do not hide names of a new one: zones with
// a route in only one of r and old, zones whose route has an upstream in only one of them, zones excluded from the cache now, and
// the zones of special names, if those changed. Zones all of whose upstreams are replaced expire: the new upstreams are asked at
// once, and while they fail, the old answers are served stale. Where an upstream stays, entries stay, since the servers of one zone
// should agree. The resolver must have r's plan already: then answers to queries sent under the old plan are not stored either.
func purgeRerouted(r, old *generation) {
	for _, route := range r.routes {
		switch before := old.route(route.Zone); {
		case before == nil, before.HasUpstream() != route.HasUpstream(), route.NoCache && !before.NoCache:
			r.cache.Flush(route.suffix, true)
		case !slices.ContainsFunc(route.To, func(to config.Target) bool { return slices.Contains(before.To, to) }):
			r.cache.Expire(route.suffix, time.Now())
		}
	}
	for _, route := range old.routes {
		if r.route(route.Zone) == nil {
			r.cache.Flush(route.suffix, true)
		}
	}
	if !r.unchanged(old, specialKeys) {
		for _, special := range slices.Concat(r.special, old.special) {
			r.cache.Flush(special.Zone, true)
		}
	}
}

// route returns the route of exactly that zone, nil if there is none.
func (r *generation) route(zone string) *route {
	i := slices.IndexFunc(r.routes, func(route route) bool { return route.Zone == zone })
	if i < 0 {
		return nil
	}
	return &r.routes[i]
}

// revertRestartKeys resets the keys that need a restart to their old values, and returns them.
func revertRestartKeys(cfg, old *config.Config, kernelLoaded bool) (keys []string) {
	kernel := old.Kernel
	kernel.Permit, kernel.PermitName = cfg.Kernel.Permit, cfg.Kernel.PermitName // reloaded live
	if kernelLoaded || cfg.Kernel.Hits == config.KernelOff {
		kernel.Hits = cfg.Kernel.Hits
	}
	intercept := old.Intercept
	intercept.Fallback = cfg.Intercept.Fallback // reloaded live
	for _, key := range []struct {
		name        string
		now, before any // pointers
	}{
		{"listen.addresses", &cfg.Listen.Addresses, &old.Listen.Addresses},
		{"listen.port", &cfg.Listen.Port, &old.Listen.Port},
		{"listen.tls", &cfg.Listen.ListenTLS, &old.Listen.ListenTLS},
		{"admin.address", &cfg.Admin.Address, &old.Admin.Address},
		{"admin.socket", &cfg.Admin.Socket, &old.Admin.Socket},
		{"admin.hosts", &cfg.Admin.Hosts, &old.Admin.Hosts},
		{"admin.tls", &cfg.Admin.AdminTLS, &old.Admin.AdminTLS},
		{"interface", &cfg.Interface, &old.Interface},
		{"intercept", &cfg.Intercept, &intercept},
		{"kernel", &cfg.Kernel, &kernel},
		{"handover", &cfg.Handover, &old.Handover},
	} {
		now, before := reflect.ValueOf(key.now).Elem(), reflect.ValueOf(key.before).Elem()
		if fmt.Sprint(now) != fmt.Sprint(before) { // the text of a missing list is that of an empty one
			keys = append(keys, key.name)
		}
		now.Set(before)
	}
	return keys
}

// refuse keeps the running configuration and records why. It logs one line for each problem.
func (c *configuration) refuse(ctx context.Context, err error) {
	defer func() {
		c.lastError.Store(new(err.Error()))
		c.bad.Add(1)
	}()
	file := ""
	if c.source != nil {
		file = c.source.Name()
	}
	var bad *config.Error
	if !errors.As(err, &bad) {
		c.log.ErrorContext(ctx, "configuration refused", "file", file, "err", err, "hint", hint.Of(err))
		return
	}
	for _, p := range bad.Problems {
		c.log.ErrorContext(ctx, "configuration refused",
			"file", file, "line", p.Line, "column", p.Column, "key", p.Path, "err", p.What, "hint", p.Hint)
	}
}

// load reads the configuration and sets up the log. The source reports changes made after that, once it runs.
func (a *Agent) load(ctx context.Context) (config.Config, error) {
	cfg := config.Default(a.options.Role)
	if a.options.Config != nil {
		cfg = *a.options.Config
	}
	c := &a.config
	c.logHandler = logging.New(a.options.Log, cfg.Log)
	a.log = slog.New(c.logHandler)
	c.log = a.log
	if a.options.Source.File == "" && a.options.Source.ConfigMap.Name == "" {
		return cfg, nil
	}
	var err error
	source := a.options.Source
	source.Role, source.UserAgent = a.options.Role, "node-cache/"+a.options.Version
	source.Apply, source.Serving, source.Log, source.Now = a.Reload, a.gate.open, a.log, time.Now
	if c.source, err = configsource.New(source); err != nil {
		return cfg, err
	}
	if cfg, c.startError, err = c.source.Load(ctx); err != nil {
		return cfg, err
	}
	c.logHandler.Set(cfg.Log)
	return cfg, nil
}

// useLastGood returns the last good configuration in place of one that cannot be applied, and records why.
func (c *configuration) useLastGood(ctx context.Context, why error) (config.Config, error) {
	cfg, err := c.source.Fallback(ctx, why)
	if err != nil {
		return cfg, err
	}
	c.startError = why
	c.logHandler.Set(cfg.Log)
	return cfg, nil
}

// post returns what writes Events about this process; nil: nothing can.
func (c *configuration) post() func(*timeline.Event) {
	if c.source == nil {
		return nil
	}
	return func(e *timeline.Event) {
		if !strings.HasPrefix(e.Reason, string(status.ConfigRefused)) && !strings.HasPrefix(e.Reason, string(status.ConfigNeedsRestart)) { // the source writes these
			c.source.Post(e.Subject, e.Warning, e.Reason, e.Message)
		}
	}
}

// runSource watches the configuration's source, if there is one.
func (c *configuration) runSource(ctx context.Context) error {
	if c.source == nil {
		return nil
	}
	return c.source.Run(ctx)
}

// status describes the configuration in use. needRestart are the keys whose new values at the source apply only after a restart.
func (c *configuration) status(needRestart []string) status.Config {
	s := status.Config{
		Source:     configsource.KindNone,
		Generation: c.generation.Load(),
		Applied:    time.Unix(0, c.lastSuccess.Load()).UTC().Format(time.RFC3339),
		Refused:    c.bad.Load(),
		LastOK:     true, NeedRestart: needRestart,
	}
	if c.source != nil {
		s.SetSource(c.source.Status())
	}
	if why := c.lastError.Load(); why != nil {
		s.LastOK, s.LastError = false, *why
	}
	return s
}
