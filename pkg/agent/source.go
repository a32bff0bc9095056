// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nodecache/node-cache/pkg/config"
	origin "github.com/nodecache/node-cache/pkg/source"
)

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
		Changed:   a.Reload, Log: a.log, Now: time.Now,
	})
	if err != nil {
		return cfg, withHint(err)
	}
	if cfg, a.startError, err = a.source.Load(ctx); err != nil {
		return cfg, withHint(err)
	}
	a.logHandler.set(a.options.Log, cfg.Log)
	return cfg, nil
}

// useLastGood returns the last good configuration in place of one that cannot be applied, and records why.
func (a *Agent) useLastGood(ctx context.Context, why error) (config.Config, error) {
	a.node.close()
	cfg, err := a.source.Fallback(ctx, why)
	if err != nil {
		return cfg, err
	}
	a.startError = why
	a.logHandler.set(a.options.Log, cfg.Log)
	return cfg, nil
}

// watchConfig applies reloads and watches the configuration's source until stop is called or ctx ends. wait
// returns only after that, since the source does not end by itself; its error is the source's.
func (a *Agent) watchConfig(ctx context.Context, parts *taskSet) (stop func(), wait func() error) {
	ctx, stop = context.WithCancel(ctx)
	if a.startError == nil {
		cfg := a.Config()
		a.applied = &cfg
	}
	var group errgroup.Group
	group.Go(func() error {
		a.applyReloads(ctx, parts)
		return nil
	})
	if a.source != nil {
		group.Go(func() error { return a.source.Run(ctx) })
	}
	return stop, group.Wait
}

// sourceApplied notes an applied configuration. The source learns that it is good only once the agent serves:
// a configuration that prevents serving must not become the last good one.
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

// sourceRefused notifies the source of a refused configuration.
func (a *Agent) sourceRefused(err error) {
	if a.source != nil {
		a.source.Refused(err)
	}
}

// sourceName returns the name of the configuration's source.
func (a *Agent) sourceName() string {
	if a.source == nil {
		return ""
	}
	return a.source.Name()
}

// withHint turns a source error with a hint into a [HintError].
func withHint(err error) error {
	if hint := hintFor(err); hint != "" {
		return &HintError{Err: err, Hint: hint}
	}
	return err
}

// hintFor returns the hint of an error, "" if it has none.
func hintFor(err error) string {
	if wrong := (*origin.Error)(nil); errors.As(err, &wrong) {
		return wrong.Hint
	}
	if wrong := (*HintError)(nil); errors.As(err, &wrong) {
		return wrong.Hint
	}
	return ""
}

// SourceStatus describes where the configuration comes from.
type SourceStatus struct {
	Source   string          `json:"source"`             // one of source.Kinds
	File     string          `json:"file"`               // path; empty: not in a file
	Object   string          `json:"object,omitempty"`   // the ConfigMap, as namespace/name
	KubeDNS  string          `json:"kubeDNS,omitempty"`  // folder of a kube-dns ConfigMap that is merged into it
	Unread   *SourceProblem  `json:"unread,omitempty"`   // why the source is unreadable now; nil: it is readable
	LastGood *LastGoodStatus `json:"lastGood,omitempty"` // nil: not kept
}

// A SourceProblem is a problem of the configuration's source.
type SourceProblem struct {
	What string `json:"what"`
	Hint string `json:"hint"`
}

// LastGoodStatus describes the last good configuration.
type LastGoodStatus struct {
	Folder    string `json:"folder"`
	InUse     bool   `json:"inUse"` // it runs now: the source had no good one at the start
	Kept      string `json:"kept"`  // when it was last saved, RFC 3339; "not yet" since the start
	LastError string `json:"lastError,omitempty"`
}

func (a *Agent) sourceStatus() SourceStatus {
	if a.source == nil {
		return SourceStatus{Source: origin.KindNone}
	}
	st := a.source.Status()
	s := SourceStatus{Source: st.Kind, KubeDNS: st.KubeDNS}
	if st.Kind == origin.KindFile {
		s.File = st.Name
	} else {
		s.Object = st.Name
	}
	if st.Problem != nil {
		s.Unread = &SourceProblem{What: st.Problem.Error(), Hint: st.Problem.Hint}
	}
	if st.LastGood != "" {
		s.LastGood = &LastGoodStatus{Folder: st.LastGood, InUse: st.LastGoodInUse, Kept: "not yet", LastError: st.SaveError}
		if !st.Saved.IsZero() {
			s.LastGood.Kept = st.Saved.UTC().Format(time.RFC3339)
		}
	}
	return s
}

// sourceProblems reports a configuration that is unreadable, refused, replaced by the last good one, or not
// saved.
func sourceProblems(s *ConfigStatus) (list []Problem) {
	if s.Unread != nil {
		list = append(list, Problem{Where: "config", What: s.Unread.What, Hint: s.Unread.Hint})
	}
	old := s.LastGood != nil && s.LastGood.InUse
	if !s.LastOK && (s.Unread == nil || !old) { // else the unread problem is the reason
		list = append(list, refusedProblem(s))
	}
	if old {
		list = append(list, Problem{
			Where: "config", What: "the last good configuration of " + cmp.Or(s.File, s.Object) + " is in use, from " + s.LastGood.Folder,
			Hint: "there was no valid configuration at the start; the next valid one replaces it",
		})
	}
	if s.LastGood != nil && s.LastGood.LastError != "" {
		list = append(list, Problem{
			Where: "config", What: "the last good configuration is not saved: " + s.LastGood.LastError,
			Hint: "check that the folder is writable and has free space; the agent retries every minute",
		})
	}
	return list
}

// refusedProblem reports a configuration that was read and refused.
func refusedProblem(s *ConfigStatus) Problem {
	first, _, _ := strings.Cut(s.LastError, "\n")
	thing, place := "file", "the file"
	if s.Object != "" {
		thing, place = "configuration", "ConfigMap "+s.Object
	}
	return Problem{
		Where: "config", What: fmt.Sprintf("the last %s was refused: %s", thing, first),
		Hint: "fix " + place + "; config.lastError lists all errors. The previous configuration stays in use",
	}
}
