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
const doubt = 2 * time.Second

// again is the pause between two attempts with a configuration that could not be used at the start.
const again = time.Minute

// telling is what Changed was told last.
type telling struct {
	base, over uint64 // numbers of the contents
	why        string // there is no configuration; empty: there is
}

// set takes a new content of a part.
func (s *Source) set(part *content, c content) {
	s.mu.Lock()
	c.number = part.number + 1
	*part = c
	s.mu.Unlock()
}

// found takes a new content of a part and has Run tell of it.
func (s *Source) found(part *content, c content) {
	s.set(part, c)
	s.wake()
}

// wake has deliver look whether there is something to tell.
func (s *Source) wake() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// A verdict is the whole configuration, or why there is none.
type verdict struct {
	config config.Config
	err    error
	sure   bool // false: what is wrong may be over in a moment
	telling
}

// combined is what the parts make together.
func (s *Source) combined() verdict {
	s.mu.Lock()
	base, over := s.base, s.over
	s.mu.Unlock()
	v := verdict{
		err: cmp.Or(base.err, over.err), sure: !base.doubtful && !over.doubtful,
		telling: telling{base: base.number, over: over.number},
	}
	if v.err == nil {
		v.err = s.guarded("laying the kube-dns folder over the configuration", func() (err error) {
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
func (s *Source) tell(t telling) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.told
	s.told = t
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
		followed = s.steadily(ctx, s.reading(), s.main.run, func(why error) {
			s.main.forget()
			s.found(&s.base, content{err: why})
		})
	})
	if s.dns != nil {
		tasks.Go(func() { s.dns.run(ctx) })
	}
	if s.kept != nil {
		tasks.Go(func() { s.kept.run(ctx) })
	}
	if s.events != nil {
		tasks.Go(func() {
			_ = s.steadily(ctx, "writing events", s.events.run, func(error) {})
		})
	}
	_ = s.steadily(ctx, "telling of a configuration", s.deliver, func(error) { s.untell() })
	tasks.Wait()
	return followed
}

// untell has what there is told once more.
func (s *Source) untell() {
	s.mu.Lock()
	s.told = telling{}
	s.mu.Unlock()
	s.wake()
}

// deliver tells Changed of what is found.
func (s *Source) deliver(ctx context.Context) error {
	settled, retry := stoppedTimer(), time.NewTimer(again)
	defer settled.Stop()
	defer retry.Stop()
	doubting := false
	for {
		believe := false
		select {
		case <-ctx.Done():
			return nil
		case <-s.news:
		case <-settled.C:
			believe, doubting = true, false
		case <-retry.C:
			retry.Reset(again)
			if !s.retry() {
				continue
			}
		}
		v := s.combined()
		switch {
		case !v.sure && !believe:
			if !doubting {
				settled.Reset(doubt)
				doubting = true
			}
			continue
		case v.sure:
			settled.Stop()
			doubting = false
		}
		if s.tell(v.telling) {
			s.cfg.Changed(v.config, v.err)
		}
	}
}

// retry has the configuration told once more, if there is one and it could not be used at the start.
func (s *Source) retry() bool {
	if !s.inUse.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.base.number == 0 || s.base.err != nil || s.over.err != nil {
		return false
	}
	s.told = telling{}
	return true
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}
