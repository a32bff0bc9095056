// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nodecache/node-cache/pkg/config"
	origin "github.com/nodecache/node-cache/pkg/source"
)

// A Source says where the configuration comes from, besides a file, and where it is kept.
type Source struct {
	ConfigMap  origin.Object // followed through the API in place of a file; zero: none
	Kubeconfig string        // for the ConfigMap, and for events; empty: the pod's service account
	KubeDNS    string        // folder of a mounted kube-dns ConfigMap, laid over the routes; empty: none
	LastGood   string        // folder for the last good configuration; empty: none is kept
	Pod        origin.Pod    // that the agent runs in, for events; zero: none are written
}

// load reads the configuration and makes the log that it asks for. What changes from then on is not missed.
func (a *Agent) load(ctx context.Context) (config.Config, error) {
	cfg := config.Default(a.options.Role)
	if a.options.Config != nil {
		cfg = *a.options.Config
	}
	a.sink = newSwitchable(a.options.Log, cfg.Log)
	a.log = slog.New(a.sink)
	if a.options.File == "" && a.options.Source.ConfigMap == (origin.Object{}) {
		return cfg, nil
	}
	var err error
	from := &a.options.Source
	a.source, err = origin.New(origin.Config{
		File: a.options.File, ConfigMap: from.ConfigMap, Kubeconfig: from.Kubeconfig,
		KubeDNS: from.KubeDNS, LastGood: from.LastGood, Role: a.options.Role, Pod: from.Pod,
		UserAgent: "node-cache/" + a.options.Version,
		Changed:   a.Reload, Log: a.log, Now: time.Now,
	})
	if err != nil {
		return cfg, sourceHint(err)
	}
	if cfg, a.badStart, err = a.source.Load(ctx); err != nil {
		return cfg, sourceHint(err)
	}
	a.sink.use(a.options.Log, cfg.Log)
	return cfg, nil
}

// fallBack gives the last good configuration in place of one that cannot be put to work, and why.
func (a *Agent) fallBack(ctx context.Context, why error) (config.Config, error) {
	a.node.close()
	cfg, err := a.source.Fallback(ctx, why)
	if err != nil {
		return cfg, err
	}
	a.badStart = why
	a.sink.use(a.options.Log, cfg.Log)
	return cfg, nil
}

// followConfig takes reloads, and what the source of the configuration brings, until stop is called or ctx ends. Wait returns
// then and not before, because the source does not end by itself either; its error is of the source's end.
func (a *Agent) followConfig(ctx context.Context, parts *taskSet) (stop func(), wait func() error) {
	ctx, stop = context.WithCancel(ctx)
	if a.badStart == nil {
		cfg := a.Config()
		a.applied = &cfg
	}
	var group errgroup.Group
	group.Go(func() error {
		a.takeReloads(ctx, parts)
		return nil
	})
	if a.source != nil {
		group.Go(func() error { return a.source.Run(ctx) })
	}
	return stop, group.Wait
}

// sourceApplied notes that a configuration was put to work. The source is told that it is good once the agent serves: what
// keeps it from that is not to become the last good one.
func (a *Agent) sourceApplied(cfg *config.Config) {
	a.applied = cfg
	switch {
	case a.source == nil:
	case a.serves:
		a.source.Applied(*cfg, a.reloads.generation.Load())
	default:
		a.source.AppliedProvisionally()
	}
}

// sourceServes notes that the agent serves.
func (a *Agent) sourceServes() {
	a.serves = true
	if a.applied != nil {
		a.sourceApplied(a.applied)
	}
}

// sourceRefused tells it of one that was not.
func (a *Agent) sourceRefused(err error) {
	if a.source != nil {
		a.source.Refused(err)
	}
}

// sourceName is where the configuration comes from.
func (a *Agent) sourceName() string {
	if a.source == nil {
		return ""
	}
	return a.source.Name()
}

// sourceHint gives an error of the source the form of those of the agent.
func sourceHint(err error) error {
	if hint := hintFor(err); hint != "" {
		return &HintError{Err: err, Hint: hint}
	}
	return err
}

// hintFor is what can be done about an error, empty if nobody knows.
func hintFor(err error) string {
	if wrong := (*origin.Error)(nil); errors.As(err, &wrong) {
		return wrong.Hint
	}
	if wrong := (*HintError)(nil); errors.As(err, &wrong) {
		return wrong.Hint
	}
	return ""
}
