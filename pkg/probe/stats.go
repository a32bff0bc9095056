// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"time"
)

// NumBuckets is how many bounds [Buckets] has.
const NumBuckets = 12

// Buckets are the upper bounds of Stats.Took.
func Buckets() [NumBuckets]time.Duration {
	return [NumBuckets]time.Duration{
		250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond,
		25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, time.Second, 5 * time.Second,
	}
}

// ErrPending is the result of a prober before the first question is over.
var ErrPending = errors.New("nothing is known yet: the first question is under way")

// Stats is what a Prober knows and has counted since it was made.
type Stats struct {
	Known bool // a question is over; before that the two below say nothing
	Up    bool // the latest had a good answer
	// Last is how long that answer took; of the latest good one while it is not Up, 0
	// if there was none.
	Last time.Duration

	Failures [NumReasons]uint64     // questions without a good answer
	Took     [NumBuckets + 1]uint64 // good answers by time; the last is of what took longer than every bound
	TookSum  time.Duration          // of the good answers

	Row       uint64 // questions without a good answer since the latest good one
	LastError string // why the latest had none; empty: it had one, or there was none yet
	Panics    uint64 // recovered, each also logged with its stack
}

// Stats reads the counters.
func (p *Prober) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Result is nil if the latest question had a good answer, else it says what went
// wrong; ErrNotYet before the first is over.
func (p *Prober) Result() error {
	s := p.Stats()
	switch {
	case !s.Known:
		return ErrPending
	case s.Up:
		return nil
	case s.Row > 1:
		return fmt.Errorf("%s for %s from %s, %d times in a row", s.LastError, p.cfg.question(), p.cfg.server(), s.Row)
	}
	return fmt.Errorf("%s for %s from %s", s.LastError, p.cfg.question(), p.cfg.server())
}

// recordSuccess books a good answer and reports whether the one before was not.
func (p *Prober) recordSuccess(took time.Duration) (changed bool) {
	bucket := 0
	for bounds := Buckets(); bucket < NumBuckets && took > bounds[bucket]; {
		bucket++
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	changed = p.stats.Known && !p.stats.Up
	p.stats.Known, p.stats.Up, p.stats.LastError, p.stats.Row, p.stats.Last = true, true, "", 0, took
	p.stats.Took[bucket]++
	p.stats.TookSum += took
	return changed
}

// recordFailure books a question without one and reports whether the one before was another.
func (p *Prober) recordFailure(f *failure) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed = !p.stats.Known || p.stats.Up
	p.stats.Known, p.stats.Up, p.stats.LastError = true, false, f.what
	p.stats.Row++
	p.stats.Failures[f.reason]++
	return changed
}
