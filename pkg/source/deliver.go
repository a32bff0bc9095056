// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
)

// doubt is how long something must be gone before it is believed: most are replaced.
const goneDelay = 2 * time.Second

// again is the pause between two attempts with a configuration that could not be used at the start.
const retryInterval = time.Minute

// telling is what Changed was told last.
type reportedState struct {
	main, overlay uint64 // numbers of the contents
	why           string // there is no configuration; empty: there is
}

// set takes a new content of a part.
func (s *Source) setContent(part *content, c content) {
	s.mu.Lock()
	c.number = part.number + 1
	*part = c
	s.mu.Unlock()
}

// found takes a new content of a part and has Run tell of it.
func (s *Source) report(part *content, c content) {
	s.setContent(part, c)
	s.notify()
}

// wake has deliver look whether there is something to tell.
func (s *Source) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// A verdict is the whole configuration, or why there is none.
type outcome struct {
	config    config.Config
	err       error
	confirmed bool // false: what is wrong may be over in a moment
	reportedState
}

// combined is what the parts make together.
func (s *Source) combined() outcome {
	s.mu.Lock()
	base, over := s.mainContent, s.overlay
	s.mu.Unlock()
	v := outcome{
		err: cmp.Or(base.err, over.err), confirmed: !base.transient && !over.transient,
		reportedState: reportedState{main: base.number, overlay: over.number},
	}
	if v.err == nil {
		v.err = s.recovering("laying the kube-dns folder over the configuration", func() (err error) {
			v.config, err = merged(base.config, over.routes, s.cfg.KubeDNS)
			return err
		})
	}
	if v.err != nil {
		v.why = v.err.Error()
	}
	return v
}

// tell notes that Changed is told something, and is false if that is what it was told before. It is not of the parts as they
// are by now: they may have changed again.
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

// Run follows the source until ctx ends. Load must have been called. Whatever goes wrong meanwhile is told to Changed, and is
// no end of it: its error is of what is closed at the end.
func (s *Source) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	var followed error
	tasks.Go(func() {
		followed = s.runWithRestarts(ctx, s.readAction(), s.main.run, func(why error) {
			s.main.reset()
			s.report(&s.mainContent, content{err: why})
		})
	})
	if s.dns != nil {
		tasks.Go(func() { s.dns.run(ctx) })
	}
	if s.lastGood != nil {
		tasks.Go(func() { s.lastGood.run(ctx) })
	}
	if s.events != nil {
		tasks.Go(func() {
			_ = s.runWithRestarts(ctx, "writing events", s.events.run, func(error) {})
		})
	}
	_ = s.runWithRestarts(ctx, "telling of a configuration", s.deliver, func(error) { s.forgetReported() })
	tasks.Wait()
	return followed
}

// untell has what there is told once more.
func (s *Source) forgetReported() {
	s.mu.Lock()
	s.reported = reportedState{}
	s.mu.Unlock()
	s.notify()
}

// deliver tells Changed of what is found.
func (s *Source) deliver(ctx context.Context) error {
	settled, retry := stoppedTimer(), time.NewTimer(retryInterval)
	defer settled.Stop()
	defer retry.Stop()
	doubting := false
	for {
		believe := false
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		case <-settled.C:
			believe, doubting = true, false
		case <-retry.C:
			retry.Reset(retryInterval)
			if !s.retry() {
				continue
			}
		}
		v := s.combined()
		switch {
		case !v.confirmed && !believe:
			if !doubting {
				settled.Reset(goneDelay)
				doubting = true
			}
			continue
		case v.confirmed:
			settled.Stop()
			doubting = false
		}
		if s.markReported(v.reportedState) {
			s.cfg.Changed(v.config, v.err)
		}
	}
}

// retry has the configuration told once more, if there is one and it could not be used at the start.
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
