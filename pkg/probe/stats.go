// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"time"
)

// NumBuckets is the number of bounds of [Buckets].
const NumBuckets = 12

// Buckets returns the upper bounds of Stats.Took.
func Buckets() [NumBuckets]time.Duration {
	return [NumBuckets]time.Duration{
		250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond,
		25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, time.Second, 5 * time.Second,
	}
}

// ErrPending is the result of a prober before its first query is done.
var ErrPending = errors.New("no result yet: the first query is in progress")

// Stats are the state and the counters of a Prober.
type Stats struct {
	Known bool // a query is done; before that Up and Last are not valid
	Up    bool // the latest query succeeded
	// Last is the duration of the latest successful query; 0: none succeeded.
	Last time.Duration

	Failures [NumReasons]uint64     // failed queries
	Took     [NumBuckets + 1]uint64 // successful queries by duration; the last counts those above every bound
	TookSum  time.Duration          // of the successful queries

	Row       uint64 // failed queries since the latest successful one
	LastError string // why the latest query failed; empty: it did not
	Panics    uint64 // recovered panics, each also logged with its stack
}

// Stats returns the counters.
func (p *Prober) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Result returns nil if the latest query succeeded, else its error; ErrPending before the first is
// done.
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

// recordSuccess counts a success and reports whether the query before had failed.
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

// recordFailure counts a failure and reports whether it is the first one since a success.
func (p *Prober) recordFailure(f *failure) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed = !p.stats.Known || p.stats.Up
	p.stats.Known, p.stats.Up, p.stats.LastError = true, false, f.what
	p.stats.Row++
	p.stats.Failures[f.reason]++
	return changed
}
