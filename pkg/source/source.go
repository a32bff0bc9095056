// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/watch"
)

// Config is what a Source is made from. One of File and ConfigMap is required, not both.
type Config struct {
	File       string // its path
	ConfigMap  Object // its key node-cache.yaml is the configuration
	Kubeconfig string // a file, for the ConfigMap and for events; empty: the pod's service account
	KubeDNS    string // folder of a mounted kube-dns ConfigMap, laid over it; empty: none
	LastGood   string // folder for the last good configuration, made if it is missing; empty: none is kept
	Role       config.Role
	Pod        Pod    // whom events are about; zero: none are written
	UserAgent  string // empty: node-cache

	// Changed gets a configuration to put to work, or why there is none: the one before is to stay. It is called by Run, one
	// at a time; what comes meanwhile is told when it returns, the last of it. Its outcome is to be reported to Applied,
	// Using or Refused. Required.
	Changed func(config.Config, error)

	Log *slog.Logger     // nil: silent
	Now func() time.Time // required
}

// An Object is the name of an object in a namespace.
type Object struct {
	Namespace, Name string
}

// String is the object as NAMESPACE/NAME.
func (o Object) String() string { return o.Namespace + "/" + o.Name }

// ParseObject reads NAMESPACE/NAME.
func ParseObject(text string) (Object, error) {
	namespace, name, _ := strings.Cut(text, "/")
	// Names begin with a letter or a digit; one of dots would lead to another path of the API.
	if namespace == "" || name == "" || namespace[0] == '.' || name[0] == '.' || strings.Contains(name, "/") || strings.ContainsAny(text, " ,=%?#\t\n") {
		return Object{}, fmt.Errorf("%q: not NAMESPACE/NAME", text)
	}
	return Object{Namespace: namespace, Name: name}, nil
}

// A Source brings the configuration.
type Source struct {
	cfg           Config
	main          configReader
	dns           *kubeDNS       // nil: none
	lastGood      *lastGoodStore // nil: no last good configuration is kept
	events        *events        // nil: none are written
	changed       chan struct{}
	lastGoodInUse atomic.Bool // the last good configuration
	panics        atomic.Uint64

	mu          sync.Mutex // guards what follows
	mainContent content    // of the file or the ConfigMap
	overlay     content    // of the kube-dns folder
	reported    reportedState
	readError   *Error // why the main source cannot be read
}

// A follower is where the configuration is kept.
type configReader interface {
	// load gives what there is now. It takes as long as it may, until ctx ends, for a source that may become readable.
	load(ctx context.Context) (content, error)
	// run reports whatever comes to Source.found, and to Source.reachable whether it can be read. It returns once ctx has
	// ended and not before: what goes wrong meanwhile is reported, and tried again. After a defect it is called again.
	run(ctx context.Context) error
	// forget has run report what there is, as news, after a defect in load or in run.
	reset()
}

// content is what was found in a part of the source.
type content struct {
	config    config.Config  // of the main part
	routes    []config.Route // of the kube-dns folder
	err       error          // why there is neither
	transient bool           // it looks as it does between two steps of a writer
	number    uint64         // differs from that of the content before
}

// dialFunc makes a client of the API server, and gives its URL.
type dialFunc func(kubeconfig, userAgent string) (*http.Client, *url.URL, error)

// New checks what it is given. It reads nothing but credentials, and starts nothing.
func New(cfg Config) (*Source, error) { return newSource(cfg, watch.NewHTTPClient) }

func newSource(cfg Config, dial dialFunc) (*Source, error) {
	switch {
	case (cfg.File == "") == (cfg.ConfigMap == Object{}):
		return nil, errors.New("a source needs either a file or a ConfigMap")
	case cfg.Changed == nil:
		return nil, errors.New("a source needs a function to call")
	case cfg.Now == nil:
		return nil, errors.New("a source needs a clock")
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
		// With something to begin with it is tried again, as a server that is away is.
		if err := api.open(); err != nil && (s.lastGood == nil || !s.lastGood.exists()) {
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

// credentialsHint is for who cannot be a client of the API server.
const credentialsHint = "name a file with --kubeconfig, or run in a pod with a service account"

// String names the task in logs.
func (s *Source) String() string { return "configuration source" }

// Name says where the configuration is kept, for people.
func (s *Source) Name() string {
	if s.cfg.File != "" {
		return s.cfg.File
	}
	return "configmap " + s.cfg.ConfigMap.String()
}

// reading is what a defect cuts short in load or run of the main part: it is one thing to say, not two.
func (s *Source) readAction() string { return "reading " + s.Name() }

// Load gives the configuration to begin with, and why it is only the last good one; nil when it is not. It waits some seconds
// for an API server that is away, and longer where there is no last good one.
func (s *Source) Load(ctx context.Context) (cfg config.Config, why, err error) {
	cfg, err = s.loadParts(ctx)
	if err == nil || ctx.Err() != nil {
		return cfg, nil, err
	}
	why = err
	cfg, err = s.Fallback(ctx, why)
	return cfg, why, err
}

// first reads every part.
func (s *Source) loadParts(ctx context.Context) (config.Config, error) {
	var base, over content
	err := s.recovering(s.readAction(), func() (err error) {
		base, err = s.main.load(ctx)
		return err
	})
	if ctx.Err() != nil {
		return config.Config{}, ctx.Err()
	}
	if err != nil {
		base = content{err: err}
	}
	if errors.Is(err, errPanic) {
		s.main.reset()
	}
	s.setContent(&s.mainContent, base)
	if s.dns != nil {
		if err := s.recovering(s.dns.action(), func() error {
			over, _ = s.dns.readIfChanged()
			return nil
		}); err != nil {
			s.dns.reset()
			over = content{err: err}
		}
		s.setContent(&s.overlay, over)
	}
	v := s.combined()
	s.markReported(v.reportedState)
	return v.config, v.err
}

// Fallback gives the last good configuration in place of one that cannot be used. Without one the error is why, with what is
// missing in the log.
func (s *Source) Fallback(ctx context.Context, why error) (config.Config, error) {
	if s.lastGood == nil {
		return config.Config{}, why
	}
	var cfg config.Config
	var at time.Time
	err := s.recovering("reading the last good configuration", func() (err error) {
		cfg, at, err = s.lastGood.read()
		return err
	})
	if err != nil {
		s.cfg.Log.ErrorContext(ctx, "there is no last good configuration either", "err", err)
		return config.Config{}, why
	}
	s.lastGoodInUse.Store(true)
	s.cfg.Log.ErrorContext(ctx, "running on the last good configuration", "file", s.lastGood.path(), "kept", at.UTC().Format(time.RFC3339), "source", s.Name())
	return cfg, nil
}

// reachable notes why the main source cannot be read, nil if it can, and says so if that is news.
func (s *Source) setReadError(ctx context.Context, wrong *Error) {
	s.mu.Lock()
	before := s.readError
	s.readError = wrong
	s.mu.Unlock()
	switch {
	case wrong == nil && before != nil:
		s.cfg.Log.InfoContext(ctx, "the configuration can be read again", "source", s.Name())
	case wrong != nil && (before == nil || before.reason != wrong.reason):
		s.cfg.Log.ErrorContext(ctx, "the configuration cannot be read", "source", s.Name(), "err", wrong.Err, "hint", wrong.Hint)
	}
}

// Applied says that a configuration of the source was put to work. It is kept as the last good one, soon.
func (s *Source) Applied(cfg config.Config, generation uint64) {
	s.lastGoodInUse.Store(false)
	if s.lastGood != nil {
		s.lastGood.save(cfg, generation)
	}
	if s.events != nil {
		s.events.applied(generation)
	}
}

// Using says that a configuration of the source is in use, which has yet to show that it is good: it is not kept. Applied
// may follow.
func (s *Source) AppliedProvisionally() { s.lastGoodInUse.Store(false) }

// Refused says that there is something wrong with a configuration, which was not put to work.
func (s *Source) Refused(err error) {
	if s.events != nil {
		s.events.refused(err)
	}
}

// Status says how the source is doing.
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

// unreadLocked says whether what is in files could not be read when it was last looked at. What is bad was.
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

// Stats reads the counters.
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
