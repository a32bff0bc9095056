// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/task"
	"github.com/nodecache/node-cache/pkg/watch"
)

// Config configures a Source. Exactly one of File and ConfigMap is required.
type Config struct {
	File       string // path
	ConfigMap  Object // its key node-cache.yaml holds the configuration
	Kubeconfig string // a file, for the ConfigMap and for events; empty: the pod's service account
	KubeDNS    string // folder of a mounted kube-dns ConfigMap, merged into the routes; empty: none
	LastGood   string // folder for the last good configuration, created if missing; empty: none is saved
	Role       config.Role
	Pod        Pod    // subject of Events; zero: none are written
	UserAgent  string // empty: node-cache

	// Apply puts a configuration to use. Its error argument is why there is none. After an error that it returns, the running
	// configuration stays. Run calls it, never twice at a time. Of the changes during a call, only the latest follows. Required.
	Apply func(config.Config, error) (InUse, error)

	// Serving is closed once the agent serves. Before that no configuration is saved as the last good one, since it may be
	// what prevents serving.
	Serving <-chan struct{}

	Log *slog.Logger     // nil: silent
	Now func() time.Time // required
}

// InUse is the configuration in use. It may differ from the one applied: some keys need a restart.
type InUse struct {
	Config     config.Config
	Generation uint64 // 1 at the start, and one more after each change
}

// An Object is a namespace and a name.
type Object struct {
	Namespace, Name string
}

// String returns NAMESPACE/NAME.
func (o Object) String() string { return o.Namespace + "/" + o.Name }

// ParseObject parses NAMESPACE/NAME.
func ParseObject(text string) (Object, error) {
	namespace, name, _ := strings.Cut(text, "/")
	// Names begin with a letter or digit; one of dots would change the API path.
	if namespace == "" || name == "" || namespace[0] == '.' || name[0] == '.' || strings.Contains(name, "/") || strings.ContainsAny(text, " ,=%?#\t\n") {
		return Object{}, fmt.Errorf("%q: not NAMESPACE/NAME", text)
	}
	return Object{Namespace: namespace, Name: name}, nil
}

// A Source reads and watches the configuration.
type Source struct {
	cfg           Config
	main          configReader
	dns           *kubeDNS       // nil: none
	lastGood      *lastGoodStore // nil: no last good configuration is saved
	events        *events        // nil: none are written
	changed       chan struct{}
	lastGoodInUse atomic.Bool // the last good configuration is in use
	panics        atomic.Uint64

	mu          sync.Mutex // guards the following fields
	mainContent content    // of the file or the ConfigMap
	overlay     content    // of the kube-dns folder
	reported    reportedState
	readError   *Error // why the main source cannot be read
}

// A configReader reads and watches the configuration.
type configReader interface {
	// load returns the current content. It may wait until ctx ends for a source that may become readable.
	load(ctx context.Context) (content, error)
	// run reports changes to Source.report, and readability to Source.setReadError. It returns when ctx ends, not before:
	// errors are reported and retried. After a panic, it is called again.
	run(ctx context.Context) error
	// reset makes run report the current content again, after a panic in load or run.
	reset()
}

// content is the content of a part of the source.
type content struct {
	config    config.Config  // of the main part
	routes    []config.Route // of the kube-dns folder
	err       error          // why there is neither
	transient bool           // a writer may be between two steps
	number    uint64         // differs from that of the previous content
}

// dialFunc returns a client of the API server.
type dialFunc func(kubeconfig, userAgent string) (*watch.Client, error)

// New checks its configuration. It reads only credentials and starts nothing.
func New(cfg Config) (*Source, error) { return newSource(cfg, watch.NewClient) }

func newSource(cfg Config, dial dialFunc) (*Source, error) {
	switch {
	case (cfg.File == "") == (cfg.ConfigMap == Object{}):
		return nil, errors.New("source: set either a file or a ConfigMap")
	case cfg.Apply == nil:
		return nil, errors.New("source: no Apply function set")
	case cfg.Now == nil:
		return nil, errors.New("source: no clock set")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.UserAgent = cmp.Or(cfg.UserAgent, "node-cache")
	s := &Source{cfg: cfg, changed: make(chan struct{}, 1)}
	api := &api{dial: dial, kubeconfig: cfg.Kubeconfig, userAgent: cfg.UserAgent}
	if cfg.LastGood != "" {
		s.lastGood = newLastGoodStore(s)
	}
	if cfg.File != "" {
		s.main = &file{source: s}
	} else {
		// With a last good configuration, credentials are retried like a server that is down.
		if _, err := api.open(); err != nil && (s.lastGood == nil || !s.lastGood.exists()) {
			return nil, &Error{Err: fmt.Errorf("reading ConfigMap %s: %w", cfg.ConfigMap, err), Hint: credentialsHint}
		}
		s.main = newConfigMap(s, api)
	}
	if cfg.KubeDNS != "" {
		s.dns = &kubeDNS{source: s, folder: cfg.KubeDNS}
	}
	if cfg.Pod.Name != "" && cfg.Pod.Namespace != "" {
		s.events = newEvents(s, api)
	}
	return s, nil
}

// credentialsHint is the hint for missing credentials.
const credentialsHint = "set --kubeconfig, or run in a pod with a service account"

// String names the task in logs.
func (s *Source) String() string { return "configuration source" }

// Name returns the location of the configuration for messages.
func (s *Source) Name() string {
	if s.cfg.File != "" {
		return s.cfg.File
	}
	return "configmap " + s.cfg.ConfigMap.String()
}

// readAction names the action for errors of load and run of the main part, so that both give the same error.
func (s *Source) readAction() string { return "reading " + s.Name() }

// Load returns the initial configuration. If that is the last good one, why is the reason, otherwise nil. Load waits some
// seconds for an API server that is down, and longer without a last good configuration.
func (s *Source) Load(ctx context.Context) (cfg config.Config, why, err error) {
	cfg, err = s.loadParts(ctx)
	if err == nil && s.lastGood != nil {
		s.lastGood.save(InUse{Config: cfg, Generation: 1})
	}
	if err == nil || ctx.Err() != nil {
		return cfg, nil, err
	}
	why = err
	cfg, err = s.Fallback(ctx, why)
	return cfg, why, err
}

// loadParts reads every part.
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
	if errors.Is(err, task.ErrPanic) {
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
	v := s.combined(ctx)
	s.markReported(v.reportedState)
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
	s.lastGoodInUse.Store(true)
	s.lastGood.drop()
	s.refused(why)
	s.cfg.Log.ErrorContext(ctx, "running on the last good configuration", "file", s.lastGood.path(), "kept", at.UTC().Format(time.RFC3339), "source", s.Name())
	return cfg, nil
}

// setReadError records why the main source cannot be read, nil if it can, and logs changes.
func (s *Source) setReadError(ctx context.Context, wrong *Error) {
	s.mu.Lock()
	before := s.readError
	s.readError = wrong
	s.mu.Unlock()
	switch {
	case wrong == nil && before != nil:
		s.cfg.Log.InfoContext(ctx, "configuration source recovered", "source", s.Name())
	case wrong != nil && (before == nil || before.reason != wrong.reason):
		s.cfg.Log.ErrorContext(ctx, "configuration source unreadable", "source", s.Name(), "err", wrong.Err, "hint", wrong.Hint)
	}
}

// Status returns the state of the source.
func (s *Source) Status() Status {
	st := Status{Kind: s.kind(), Name: s.cfg.File, KubeDNS: s.cfg.KubeDNS, LastGood: s.cfg.LastGood, LastGoodInUse: s.lastGoodInUse.Load()}
	if s.cfg.File == "" {
		st.Name = s.cfg.ConfigMap.String()
	}
	if s.lastGood != nil {
		st.Saved, st.SaveError = s.lastGood.status()
	}
	s.mu.Lock()
	st.Problem = s.readError
	s.mu.Unlock()
	return st
}

// unreadableLocked reports whether the last read of the files failed. Invalid content counts as read.
func (s *Source) unreadableLocked() bool {
	bad := (*config.Error)(nil)
	return s.cfg.File != "" && s.mainContent.err != nil && !errors.As(s.mainContent.err, &bad) || s.overlay.err != nil && !errors.As(s.overlay.err, &bad)
}

func (s *Source) kind() string {
	if s.cfg.File != "" {
		return KindFile
	}
	return KindConfigMap
}

// Stats returns the counters.
func (s *Source) Stats() Stats {
	st := Stats{Kind: s.kind(), KubeDNS: s.dns != nil, LastGood: s.lastGoodInUse.Load(), Panics: s.panics.Load()}
	s.mu.Lock()
	st.Reachable = s.readError == nil && !s.unreadableLocked()
	s.mu.Unlock()
	if m, ok := s.main.(*configMap); ok {
		st.Requests = m.requests.Load()
	}
	if s.lastGood != nil {
		st.Saves, st.SaveFailures = s.lastGood.saves.Load(), s.lastGood.failures.Load()
	}
	if s.events != nil {
		st.EventsWritten, st.EventsFailed, st.EventsDropped = s.events.written.Load(), s.events.failed.Load(), s.events.dropped.Load()
	}
	return st
}

// Values of Stats.Kind.
const (
	KindNone      = "none" // built-in defaults
	KindFile      = "file"
	KindConfigMap = "configmap"
)

// Kinds returns all kinds of sources.
func Kinds() []string { return []string{KindNone, KindFile, KindConfigMap} }

// Stats are the counters of a Source.
type Stats struct {
	Kind    string // one of Kinds
	KubeDNS bool   // a kube-dns folder is merged into it

	LastGood     bool   // the last good configuration is in use since the start
	Reachable    bool   // the last read gave a result, even if the ConfigMap does not exist
	Requests     uint64 // to the API server, for the ConfigMap
	Saves        uint64 // of the last good configuration
	SaveFailures uint64

	EventsWritten uint64
	EventsFailed  uint64 // abandoned: the API server did not accept them
	EventsDropped uint64 // replaced by a newer one before the attempt

	Panics uint64 // recovered, while reading, saving or reporting a configuration
}

// Status is the state of a Source for display.
type Status struct {
	Kind string // one of Kinds
	Name string // path of the file, or NAMESPACE/NAME of the ConfigMap; empty: none

	KubeDNS string // its folder; empty: none

	LastGood      string    // folder of the last good configuration; empty: none is saved
	LastGoodInUse bool      // it is in use
	Saved         time.Time // last save of this process; zero: none yet
	SaveError     string    // error of the last save; empty: none

	// Problem is why the source cannot be read; nil: it can. It does not include invalid content.
	Problem *Error
}

// An Error is an error of a source with a hint.
type Error struct {
	Err  error
	Hint string // empty: no hint

	reason string // errors with the same reason are logged once
}

// Error returns the error's text.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the error.
func (e *Error) Unwrap() error { return e.Err }
