// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/task"
)

// goneDelay is how long a missing file or object is ignored: most are replaced.
const goneDelay = 2 * time.Second

// retryInterval is the pause between attempts with a configuration that was unusable at the start.
const retryInterval = time.Minute

// reportedState is the last outcome passed to Apply.
type reportedState struct {
	main, overlay uint64 // numbers of the contents
	why           string // the error; empty: there is a configuration
}

// setContent sets the content of a part.
func (s *Source) setContent(part *content, c content) {
	s.mu.Lock()
	c.number = part.number + 1
	*part = c
	s.mu.Unlock()
}

// report sets the content of a part and wakes Run.
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

// An outcome is the whole configuration, or an error.
type outcome struct {
	config    config.Config
	err       error
	confirmed bool // false: an error may be transient
	reportedState
}

// combined merges the parts.
func (s *Source) combined(ctx context.Context) outcome {
	s.mu.Lock()
	main, over := s.mainContent, s.overlay
	s.mu.Unlock()
	v := outcome{
		err: cmp.Or(main.err, over.err), confirmed: !main.transient && !over.transient,
		reportedState: reportedState{main: main.number, overlay: over.number},
	}
	v.config = main.config
	if v.err == nil && len(over.routes) > 0 {
		v.err = s.recovering(ctx, "merging the kube-dns folder into the configuration", func() (err error) {
			v.config, err = merged(main.config, over.routes, s.cfg.KubeDNS)
			return err
		})
	}
	if v.err != nil {
		v.why = v.err.Error()
	}
	return v
}

// markReported records an outcome passed to Apply, and reports whether it differs from the last one. t is not read from the
// parts, which may have changed again.
func (s *Source) markReported(t reportedState) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.reported
	s.reported = t
	if t.why != "" {
		return t.why != before.why
	}
	return t != before
}

// Run watches the source until ctx ends. Load must have been called before. Errors are passed to Apply and do not end
// Run. The returned error is from closing the source.
func (s *Source) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	var runErr error
	tasks.Go(func() {
		runErr = s.runWithRestarts(ctx, s.readAction(), s.main.run, func(why error) {
			s.main.reset()
			s.report(&s.mainContent, content{err: why})
		})
	})
	if s.dns != nil {
		tasks.Go(func() { s.dns.run(ctx) })
	}
	saving, stopSaving := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSaving()
	if s.lastGood != nil {
		tasks.Go(func() { s.lastGood.run(saving) })
	}
	if s.events != nil {
		tasks.Go(func() {
			_ = s.runWithRestarts(ctx, "writing events", s.events.run, func(error) {})
		})
	}
	_ = s.runWithRestarts(ctx, "reporting a configuration", s.deliver, func(error) { s.forgetReported() })
	stopSaving() // only now: a configuration that was being applied is saved
	tasks.Wait()
	return runErr
}

// forgetReported makes deliver report again.
func (s *Source) forgetReported() {
	s.mu.Lock()
	s.reported = reportedState{}
	s.mu.Unlock()
	s.notify()
}

// deliver applies changes.
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
		case !v.confirmed && !expired:
			if !waiting {
				settled.Reset(goneDelay)
				waiting = true
			}
			continue
		case v.confirmed:
			settled.Stop()
			waiting = false
		}
		if s.markReported(v.reportedState) {
			s.apply(ctx, &v)
		}
	}
}

// apply passes an outcome to the agent, and saves and reports the result.
func (s *Source) apply(ctx context.Context, v *outcome) {
	now, err := s.cfg.Apply(v.config, v.err)
	switch {
	case err == nil:
		s.lastGoodInUse.Store(false)
		if s.lastGood != nil {
			s.lastGood.save(now)
		}
		if s.events != nil {
			s.events.applied(now.Generation)
		}
	case ctx.Err() == nil: // else the agent stops
		s.refused(err)
	}
}

// refused writes an Event about a refused configuration.
func (s *Source) refused(err error) {
	if s.events != nil {
		s.events.refused(err)
	}
}

// retry reports the configuration again, if there is one and it was unusable at the start.
func (s *Source) retry() bool {
	if !s.lastGoodInUse.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mainContent.number == 0 || s.mainContent.err != nil || s.overlay.err != nil {
		return false
	}
	s.reported = reportedState{}
	return true
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// After a panic, a part restarts: soon, since the cause may be fixed, and then less and less often.
const (
	firstRestartDelay = 5 * time.Second
	lastRestartDelay  = time.Minute
)

// panicError returns the error of a part that panicked.
func panicError(doing string, err error) error {
	return &Error{Err: fmt.Errorf("%s: %w", doing, err), Hint: "the agent retries by itself; the running configuration stays"}
}

func (s *Source) guard(doing string) task.Guard {
	return task.Guard{Where: "source", Log: s.cfg.Log.With("doing", doing), Count: &s.panics}
}

// recovering runs do. A panic in it becomes its error.
func (s *Source) recovering(ctx context.Context, doing string, do func() error) error {
	err := s.guard(doing).Do(ctx, do)
	if errors.Is(err, task.ErrPanic) {
		return panicError(doing, err)
	}
	return err
}

// runWithRestarts runs a part until ctx ends. After each panic, it calls broke with the error and restarts the part after
// a pause.
func (s *Source) runWithRestarts(ctx context.Context, doing string, run func(context.Context) error, broke func(why error)) error {
	rest := firstRestartDelay
	for {
		began := s.cfg.Now()
		err := s.recovering(ctx, doing, func() error { return run(ctx) })
		if !errors.Is(err, task.ErrPanic) {
			return err
		}
		broke(err)
		if s.cfg.Now().Sub(began) > lastRestartDelay {
			rest = firstRestartDelay
		}
		if task.Sleep(ctx, rest) != nil {
			return nil //nolint:nilerr // it was asked to end
		}
		rest = min(2*rest, lastRestartDelay)
	}
}
