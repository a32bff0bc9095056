// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/panics"
	"github.com/nodecache/node-cache/pkg/watch"
)

// A Source reads and watches the configuration.
type Source struct {
	base

	main          configReader
	configMap     *configMap     // main, if that is a ConfigMap; nil: main is a file
	dns           *kubeDNS       // the kube-dns folder; nil: none is configured
	standby       *standbyFile   // nil: none is configured
	lastGood      *lastGoodStore // nil: no last good configuration is saved
	events        *events
	changed       chan struct{}
	lastGoodInUse atomic.Bool // the last good configuration is in use
	served        bool        // see Served; only Load and Fallback write it

	mu          sync.Mutex // guards the following fields
	mainContent content    // content of the file or the ConfigMap
	overlay     content    // content of the kube-dns folder
	off         content    // content of the standby file
	version     uint64     // number of changes of mainContent, overlay and off
	reported    content    // content that was passed to Apply last
}

// goneDelay is how long a missing file or object is ignored: most are replaced.
const goneDelay = 2 * time.Second

// A configReader reads and watches the configuration.
type configReader interface {
	// load returns the current content. It may wait until ctx ends for a source that may become readable.
	load(ctx context.Context) (content, error)
	// run reports changes. It returns when ctx ends, not before: errors are reported and retried. After a panic, it is called
	// again.
	run(ctx context.Context) error
	// reset makes run report the current content again, after a panic in load or run.
	reset()
}

// New checks its configuration. It reads only credentials and starts nothing.
func New(cfg Config) (*Source, error) { return newSource(cfg, watch.NewClient) }

func newSource(cfg Config, dial func(kubeconfig, userAgent string) (*watch.Client, error)) (*Source, error) {
	switch {
	case (cfg.File == "") == (cfg.ConfigMap == types.NamespacedName{}):
		return nil, errors.New("source: set either a file or a ConfigMap")
	case cfg.Apply == nil:
		return nil, errors.New("source: no Apply function set")
	case cfg.Now == nil:
		return nil, errors.New("source: no clock set")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.UntilReload == nil {
		cfg.UntilReload = context.WithCancel
	}
	cfg.UserAgent = cmp.Or(cfg.UserAgent, "node-cache")
	s := &Source{base: base{cfg: cfg}, changed: make(chan struct{}, 1)}
	api := &api{dial: dial, kubeconfig: cfg.Kubeconfig, userAgent: cfg.UserAgent}
	s.events = newEvents(&s.base, api)
	if cfg.LastGood != "" {
		s.lastGood = &lastGoodStore{base: &s.base, kick: make(chan struct{}, 1)}
	}
	report := func(c content) { s.report(&s.mainContent, c) }
	if cfg.File != "" {
		s.main = &file{base: &s.base, report: report}
	} else {
		wait := loadTimeoutNoFallback
		if s.lastGood != nil && s.lastGood.exists() {
			wait = loadTimeout
		}
		// With a saved last good configuration, load retries missing credentials, as it retries a server that is down.
		if _, err := api.open(); err != nil && wait != loadTimeout {
			return nil, &hint.Error{Err: fmt.Errorf("reading ConfigMap %s: %w", cfg.ConfigMap, err), Hint: credentialsHint}
		}
		s.configMap = &configMap{base: &s.base, api: api, report: report, wait: wait, logs: rate.NewLimiter(rate.Every(flipEvery), flipBurst)}
		s.main = s.configMap
	}
	if cfg.KubeDNS != "" {
		s.dns = &kubeDNS{base: &s.base, report: func(c content) { s.report(&s.overlay, c) }}
	}
	if cfg.Standby != "" {
		s.standby = &standbyFile{base: &s.base, report: func(c content) { s.report(&s.off, c) }}
	}
	return s, nil
}

// credentialsHint is the hint for missing credentials.
const credentialsHint = "set --kubeconfig, or run in a pod with a service account"

// String names the task in logs.
func (s *Source) String() string { return "configuration source" }

// Load returns the initial configuration. If that is the last good one, why is the reason, otherwise nil. Load waits some
// seconds for an API server that is down, and longer without a last good configuration.
func (s *Source) Load(ctx context.Context) (cfg config.Config, why, err error) {
	cfg, err = s.loadParts(ctx)
	if err == nil && s.lastGood != nil {
		s.served = s.lastGood.holds(cfg)
		s.lastGood.save(InUse{Config: cfg, Generation: 1})
	}
	if err == nil || ctx.Err() != nil {
		return cfg, nil, err
	}
	why = err
	cfg, err = s.Fallback(ctx, why)
	return cfg, why, err
}

// loadParts reads the file or ConfigMap and the kube-dns folder, and returns them merged.
func (s *Source) loadParts(ctx context.Context) (config.Config, error) {
	var base, over content
	err := s.recovering(ctx, s.readAction(), func() (err error) {
		base, err = s.main.load(ctx)
		return err
	})
	if ctx.Err() != nil {
		return config.Config{}, ctx.Err()
	}
	if err != nil {
		base = content{err: err}
	}
	if errors.Is(err, panics.Err) {
		s.main.reset()
	}
	s.setContent(&s.mainContent, base)
	if s.dns != nil {
		if err := s.recovering(ctx, s.dns.action(), func() error {
			over, _ = s.dns.readIfChanged()
			return nil
		}); err != nil {
			s.dns.reset()
			over = content{err: err}
		}
		s.setContent(&s.overlay, over)
	}
	if s.standby != nil {
		s.setContent(&s.off, s.standby.read())
	}
	v := s.combined(ctx)
	s.markReported(&v)
	return v.config, v.err
}

// Fallback returns the last good configuration instead of one that is unusable. Without one, it returns why, and logs the
// cause. It must be called before Run.
func (s *Source) Fallback(ctx context.Context, why error) (config.Config, error) {
	if s.lastGood == nil {
		return config.Config{}, why
	}
	var cfg config.Config
	var at time.Time
	err := s.recovering(ctx, "reading the last good configuration", func() (err error) {
		cfg, at, err = s.lastGood.read()
		return err
	})
	if err != nil {
		s.cfg.Log.ErrorContext(ctx, "no usable last good configuration", "err", err)
		return config.Config{}, why
	}
	if s.standby != nil {
		cfg.Standby = false // as it was when this was saved
		cfg = s.withStandby(ctx, cfg)
	}
	s.lastGoodInUse.Store(true)
	s.served = true
	s.lastGood.drop()
	s.events.refused(why)
	s.cfg.Log.ErrorContext(ctx, "running on the last good configuration", "file", s.lastGood.path(), "kept", at.UTC().Format(time.RFC3339), "source", s.Name())
	return cfg, nil
}

// Served reports whether the configuration of Load or Fallback is the last good one: this node was served with it before. Whether it
// has standby does not matter.
func (s *Source) Served() bool { return s.served }

// setContent sets the content of a part, mainContent or overlay.
func (s *Source) setContent(part *content, c content) {
	s.mu.Lock()
	s.version++
	*part = c
	s.mu.Unlock()
}

// report sets the content of a part and wakes deliver.
func (s *Source) report(part *content, c content) {
	s.setContent(part, c)
	s.notify()
}

// notify wakes deliver.
func (s *Source) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// combined merges the content of the file or ConfigMap with that of the kube-dns folder.
func (s *Source) combined(ctx context.Context) content {
	s.mu.Lock()
	main, over := s.mainContent, s.overlay
	v := content{config: main.config, err: cmp.Or(main.err, over.err), transient: main.transient || over.transient, version: s.version}
	s.mu.Unlock()
	if v.err == nil && len(over.routes) > 0 {
		v.err = s.recovering(ctx, "merging the kube-dns folder into the configuration", func() (err error) {
			v.config, err = merged(main.config, over.routes, s.cfg.KubeDNS)
			return err
		})
	}
	if v.err == nil {
		v.config = s.withStandby(ctx, v.config)
	}
	return v
}

// markReported records a content passed to Apply, and reports whether it differs from the last one. An error differs if its
// text does.
func (s *Source) markReported(v *content) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.reported
	s.reported = *v
	if v.err != nil {
		return before.err == nil || v.err.Error() != before.err.Error()
	}
	return before.err != nil || v.version != before.version
}

// Run watches the source until ctx ends. Load must have been called before. Errors are passed to Apply and do not end
// Run. The returned error is the one with which the reader of the main source ended.
func (s *Source) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	var runErr error
	tasks.Go(func() {
		for {
			reading, stop := s.cfg.UntilReload(ctx)
			runErr = s.runWithRestarts(reading, s.readAction(), s.main.run, func(why error) {
				s.main.reset()
				s.report(&s.mainContent, content{err: why})
			})
			stop()
			if ctx.Err() != nil {
				return
			}
			s.main.reset()
		}
	})
	if s.dns != nil {
		tasks.Go(func() { s.dns.run(ctx) })
	}
	if s.standby != nil {
		tasks.Go(func() { s.standby.run(ctx) })
	}
	saving, stopSaving := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSaving()
	if s.lastGood != nil {
		tasks.Go(func() { s.lastGood.run(saving) })
	}
	tasks.Go(func() {
		_ = s.runWithRestarts(ctx, "writing events", s.events.run, func(error) {})
	})
	_ = s.runWithRestarts(ctx, "reporting a configuration", s.deliver, func(error) { s.forgetReported() })
	stopSaving() // only now: a configuration that was being applied is saved
	tasks.Wait()
	return runErr
}

// forgetReported makes deliver pass the content to Apply again, after a panic there.
func (s *Source) forgetReported() {
	s.mu.Lock()
	s.reported = content{}
	s.mu.Unlock()
	s.notify()
}

// deliver applies the combined content after each change, until ctx ends. It applies transient content only if that lasts for goneDelay.
func (s *Source) deliver(ctx context.Context) error {
	settled, retry := stoppedTimer(), time.NewTimer(retryInterval)
	defer settled.Stop()
	defer retry.Stop()
	waiting := false
	for {
		expired := false
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		case <-settled.C:
			expired, waiting = true, false
		case <-retry.C:
			retry.Reset(retryInterval)
			if !s.retry() {
				continue
			}
		}
		v := s.combined(ctx)
		switch {
		case v.transient && !expired:
			if !waiting {
				settled.Reset(goneDelay)
				waiting = true
			}
			continue
		case !v.transient:
			settled.Stop()
			waiting = false
		}
		if s.markReported(&v) {
			s.apply(ctx, &v)
		}
	}
}

// apply passes a content to the agent, and saves and reports the result.
func (s *Source) apply(ctx context.Context, v *content) {
	now, err := s.cfg.Apply(v.config, v.err)
	switch {
	case err == nil:
		s.lastGoodInUse.Store(false)
		if s.lastGood != nil {
			s.lastGood.save(now)
		}
		if s.cfg.Pod.Name != "" {
			s.events.applied(&now)
		}
	case ctx.Err() == nil: // else the agent stops
		s.events.refused(err)
	}
}

// retry makes deliver report the configuration again, if the last good one is in use and the parts are valid. It reports whether
// that is so.
func (s *Source) retry() bool {
	if !s.lastGoodInUse.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.version == 0 || s.mainContent.err != nil || s.overlay.err != nil {
		return false
	}
	s.reported = content{}
	return true
}

// unreadableLocked reports whether the last read of the files failed. Invalid content counts as read.
func (s *Source) unreadableLocked() bool {
	bad := (*config.Error)(nil)
	return s.cfg.File != "" && s.mainContent.err != nil && !errors.As(s.mainContent.err, &bad) || s.overlay.err != nil && !errors.As(s.overlay.err, &bad)
}

// Status returns the state of the source, and its counters.
func (s *Source) Status() Status {
	st := Status{
		Kind: KindFile, Name: s.cfg.File, KubeDNS: s.cfg.KubeDNS, LastGood: s.cfg.LastGood, LastGoodInUse: s.lastGoodInUse.Load(),
		Panics: s.panics.Load(),
	}
	s.mu.Lock()
	st.Reachable = !s.unreadableLocked()
	s.mu.Unlock()
	if s.configMap != nil {
		st.Kind, st.Name, st.Problem = KindConfigMap, s.cfg.ConfigMap.String(), s.configMap.problem()
		st.Reachable = st.Reachable && st.Problem == nil
		st.Requests = s.configMap.requests.Load()
	}
	if s.lastGood != nil {
		st.Saved, st.SaveError = s.lastGood.status()
		st.Saves, st.SaveFailures = s.lastGood.saves.Load(), s.lastGood.failures.Load()
	}
	st.EventsWritten, st.EventsFailed, st.EventsDropped = s.events.written.Load(), s.events.failed.Load(), s.events.dropped.Load()
	return st
}

// Values of Status.Kind.
const (
	KindNone      = "none" // built-in defaults
	KindFile      = "file"
	KindConfigMap = "configmap"
)

// Kinds returns all kinds of sources.
func Kinds() []string { return []string{KindNone, KindFile, KindConfigMap} }

// Status is the state of a Source, and its counters.
type Status struct {
	Kind string // one of Kinds
	Name string // path of the file, or NAMESPACE/NAME of the ConfigMap; empty: none

	KubeDNS string // folder of a kube-dns ConfigMap that is merged into the configuration; empty: none

	LastGood      string    // folder of the last good configuration; empty: none is saved
	LastGoodInUse bool      // the last good configuration is in use, since the start
	Saved         time.Time // when the configuration that this process saved last was applied; zero: none is saved yet
	SaveError     string    // error of the last save; empty: none

	// Problem is why the ConfigMap cannot be read; nil: it can. It does not include invalid content.
	Problem   *hint.Error
	Reachable bool // the last read gave a result, even if the ConfigMap does not exist

	Requests     uint64 // requests to the API server for the ConfigMap
	Saves        uint64 // saves of the last good configuration
	SaveFailures uint64

	EventsWritten uint64 // Events that the API server accepted
	EventsFailed  uint64 // Events that the API server did not accept
	EventsDropped uint64 // Events that a newer one replaced before the first attempt

	Panics uint64 // recovered panics, while reading, saving or reporting a configuration
}
