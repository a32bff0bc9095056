// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/resolve"
	origin "github.com/nodecache/node-cache/pkg/source"
	"github.com/nodecache/node-cache/pkg/status"
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
	err    error // why there is no configuration; then why it was refused
	replan bool  // only rebuild the plan: something outside the configuration has changed
	inUse  origin.InUse
	done   chan struct{}
}

// Reload applies cfg and returns the configuration in use. If err is not nil, Reload records it as the reason
// why there is no configuration. After an error the running configuration stays. The agent must run.
func (a *Agent) Reload(cfg config.Config, err error) (origin.InUse, error) {
	return a.request(context.Background(), &request{cfg: cfg, err: err})
}

var errStopped = errors.New("the agent stops")

// request passes r to applyReloads and waits for it, or for the end of ctx.
func (a *Agent) request(ctx context.Context, r *request) (origin.InUse, error) {
	r.done = make(chan struct{})
	select {
	case a.requests <- r:
	case <-a.stopped:
		return origin.InUse{}, errStopped
	case <-ctx.Done():
		return origin.InUse{}, ctx.Err()
	}
	select {
	case <-r.done:
		return r.inUse, r.err
	case <-ctx.Done():
		return origin.InUse{}, ctx.Err()
	}
}

// applyReloads handles requests until ctx ends. It starts the parts of each new configuration in parts.
func (a *Agent) applyReloads(ctx context.Context, parts *partSet) {
	defer close(a.stopped)
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-a.requests:
			switch {
			case r.replan:
				r.err = a.replan()
			case r.err == nil:
				r.err = a.apply(ctx, parts, r.cfg)
			}
			if r.err != nil {
				a.refuse(ctx, r.err)
			}
			r.inUse = origin.InUse{Config: a.Config(), Generation: a.reloads.generation.Load()}
			close(r.done)
		}
	}
}

// apply applies cfg. It builds all parts, waits for the sync of a new cluster source, swaps the resolver's
// plan in one step, and then stops unused parts. A query sees either the old plan or the new one.
func (a *Agent) apply(ctx context.Context, parts *partSet, cfg config.Config) error {
	old := a.running.Load()
	fixed := revertRestartKeys(&cfg, &old.config)
	r, err := a.build(cfg, old) //nolint:contextcheck // it reads files and never blocks
	if err != nil {
		return err
	}
	parts.start(ctx, r)
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
	a.logHandler.set(cfg.Log)
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
	a.node.TargetChanged()
	if len(fixed) > 0 {
		a.log.WarnContext(ctx, "configuration keys need a restart", "keys", fixed)
	}
	a.reloads.succeeded(time.Now())
	a.log.InfoContext(ctx, "configuration applied", "generation", a.reloads.generation.Load())
	close(old.replaced)
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

// purgeNoCache removes the zones from the cache that r's configuration excludes from it and old's did not.
// The resolver must have r's plan already: then answers in flight are not stored either.
func purgeNoCache(r, old *generation) {
	for _, forward := range r.config.Forward {
		if !forward.NoCache || old.excludes(forward.Zone) {
			continue
		}
		if zone, err := wireName(forward.Zone); err == nil { // an invalid zone would have failed the plan
			r.cache.Flush(zone)
		}
	}
}

// purgeRerouted removes the zones from the cache that have a route in either r or old but not in both.
// Another upstream answers for them now, and cached denials of the old one would hide its names. A route that
// changes only its upstreams keeps its entries, since servers of one zone should agree.
func purgeRerouted(r, old *generation) {
	for _, pair := range [2][2]*generation{{r, old}, {old, r}} {
		for _, forward := range pair[0].config.Forward {
			if pair[1].hasRoute(forward.Zone) {
				continue
			}
			if zone, err := wireName(forward.Zone); err == nil {
				r.cache.Flush(zone)
			}
		}
	}
}

// hasRoute reports whether a zone has a route of its own.
func (r *generation) hasRoute(zone string) bool {
	return slices.ContainsFunc(r.config.Forward, func(f config.Route) bool { return f.Zone == zone })
}

// excludes reports whether r caches nothing of a zone.
func (r *generation) excludes(zone string) bool {
	for _, forward := range r.config.Forward {
		if forward.Zone == zone {
			return forward.NoCache
		}
	}
	return false
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
	for _, key := range []struct {
		name string
		same bool
	}{
		{"listen.addresses", slices.Equal(cfg.Listen.Addresses, old.Listen.Addresses)},
		{"listen.port", cfg.Listen.Port == old.Listen.Port},
		{"admin.address", cfg.Admin.Address == old.Admin.Address},
		{"admin.socket", cfg.Admin.Socket == old.Admin.Socket},
		{"admin.hosts", slices.Equal(cfg.Admin.Hosts, old.Admin.Hosts)},
		{"interface", cfg.Interface == old.Interface},
		{"intercept", sameIntercept(&cfg.Intercept, &old.Intercept)},
		{"handover", cfg.Handover == old.Handover},
	} {
		if !key.same {
			keys = append(keys, key.name)
		}
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
		a.log.ErrorContext(ctx, "configuration refused",
			"file", file, "line", p.Line, "column", p.Column, "key", p.Path, "err", p.What, "hint", p.Hint)
	}
}

// A Source is where the configuration comes from, besides a file, and where its last good version is kept.
type Source struct {
	ConfigMap  origin.Object // watched through the API instead of a file; zero: none
	Kubeconfig string        // for the ConfigMap and for events; empty: the pod's service account
	KubeDNS    string        // folder of a mounted kube-dns ConfigMap, merged into the routes; empty: none
	LastGood   string        // folder for the last good configuration; empty: not kept
	Pod        origin.Pod    // the agent's pod, for events; zero: no events
}

// load reads the configuration and sets up the log. Later changes are not missed.
func (a *Agent) load(ctx context.Context) (config.Config, error) {
	cfg := config.Default(a.options.Role)
	if a.options.Config != nil {
		cfg = *a.options.Config
	}
	a.logHandler = newReloadableHandler(a.options.Log, cfg.Log)
	a.log = slog.New(a.logHandler)
	if a.options.File == "" && a.options.Source.ConfigMap == (origin.Object{}) {
		return cfg, nil
	}
	var err error
	from := &a.options.Source
	a.source, err = origin.New(origin.Config{
		File: a.options.File, ConfigMap: from.ConfigMap, Kubeconfig: from.Kubeconfig,
		KubeDNS: from.KubeDNS, LastGood: from.LastGood, Role: a.options.Role, Pod: from.Pod,
		UserAgent: "node-cache/" + a.options.Version,
		Apply:     a.Reload, Serving: a.ready, Log: a.log, Now: time.Now,
	})
	if err != nil {
		return cfg, withHint(err)
	}
	if cfg, a.startError, err = a.source.Load(ctx); err != nil {
		return cfg, withHint(err)
	}
	a.logHandler.set(cfg.Log)
	return cfg, nil
}

// useLastGood returns the last good configuration in place of one that cannot be applied, and records why.
func (a *Agent) useLastGood(ctx context.Context, why error) (config.Config, error) {
	cfg, err := a.source.Fallback(ctx, why)
	if err != nil {
		return cfg, err
	}
	a.startError = why
	a.logHandler.set(cfg.Log)
	return cfg, nil
}

// sourceName returns the name of the configuration's source.
func (a *Agent) sourceName() string {
	if a.source == nil {
		return ""
	}
	return a.source.Name()
}

// withHint turns a source error with a hint into a [status.HintError].
func withHint(err error) error {
	if hint := hintFor(err); hint != "" {
		return &status.HintError{Err: err, Hint: hint}
	}
	return err
}

// hintFor returns the hint of an error, "" if it has none.
func hintFor(err error) string {
	if wrong := (*origin.Error)(nil); errors.As(err, &wrong) {
		return wrong.Hint
	}
	if wrong := (*status.HintError)(nil); errors.As(err, &wrong) {
		return wrong.Hint
	}
	return ""
}

// A reloadableHandler is a log handler whose level and format a reload can change. All loggers derived from
// it follow the change.
type reloadableHandler struct {
	out     *lockedWriter
	current *atomic.Pointer[currentHandler]
	derive  func(slog.Handler) slog.Handler // adds the attributes and groups of derived loggers
}

// A lockedWriter keeps the records of an old and a new handler apart: each handler has a lock of its own.
type lockedWriter struct {
	mu  sync.Mutex
	out io.Writer
}

// Write implements [io.Writer].
func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Write(p)
}

// currentHandler is the handler in use. Each configuration has its own.
type currentHandler struct{ slog.Handler }

func newReloadableHandler(out io.Writer, cfg config.Log) *reloadableHandler {
	s := &reloadableHandler{
		out: &lockedWriter{out: out}, current: new(atomic.Pointer[currentHandler]),
		derive: func(h slog.Handler) slog.Handler { return h },
	}
	s.set(cfg)
	return s
}

func (s *reloadableHandler) set(cfg config.Log) {
	options := &slog.HandlerOptions{Level: cfg.Level}
	var h slog.Handler = slog.NewJSONHandler(s.out, options)
	if cfg.Format == "text" {
		h = slog.NewTextHandler(s.out, options)
	}
	s.current.Store(&currentHandler{h})
}

// Enabled implements [slog.Handler].
func (s *reloadableHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return s.current.Load().Enabled(ctx, level)
}

// Handle implements [slog.Handler].
func (s *reloadableHandler) Handle(ctx context.Context, r slog.Record) error {
	return s.derive(s.current.Load().Handler).Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (s *reloadableHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	derived := *s
	derived.derive = func(h slog.Handler) slog.Handler { return s.derive(h).WithAttrs(attrs) }
	return &derived
}

// WithGroup implements [slog.Handler].
func (s *reloadableHandler) WithGroup(name string) slog.Handler {
	derived := *s
	derived.derive = func(h slog.Handler) slog.Handler { return s.derive(h).WithGroup(name) }
	return &derived
}
