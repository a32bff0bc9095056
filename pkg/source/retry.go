// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"
)

const (
	// The pauses between attempts double from the first to the last. The last pause is short, as for the watches of the
	// cluster, so that an edit made during an outage is applied soon after it.
	firstBackoff = 500 * time.Millisecond
	lastBackoff  = 5 * time.Second

	// deniedBackoff is the last pause if the server denies the request: permissions change at any time, but rarely. A server
	// that has just started also denies requests for a moment.
	deniedBackoff = 20 * time.Second

	maxRetryAfter = 30 * time.Second // the longest pause that a server may request
)

// A backoff is the state of the pauses between attempts. Its zero value is ready to use.
type backoff struct{ last time.Duration }

// after returns the pause after an error. It adds up to half of it, so that agents do not retry at the same time.
func (p *backoff) after(err error) time.Duration {
	last := lastBackoff
	if word := reasonOf(err); word == reasonForbidden || word == reasonUnauthorized {
		last = deniedBackoff
	}
	p.last = min(max(2*p.last, firstBackoff), last)
	d := p.last
	if no := asStatusError(err); no != nil {
		d = max(d, no.after)
	}
	return d + time.Duration(rand.Int64N(int64(d)/2))
}

func (p *backoff) reset() { p.last = 0 }

// sleep waits for d. It reports false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// After a panic, a part restarts: soon, since the cause may be fixed, and then less and less often.
const (
	firstRestartDelay = 5 * time.Second
	lastRestartDelay  = time.Minute
)

var errPanic = errors.New("internal error, the log has its stack trace")

// panicError counts and logs a recovered panic, and returns it as an error.
func (s *Source) panicError(doing string, panicked any, stack []byte) error {
	s.panics.Add(1)
	s.cfg.Log.Error("recovered from a panic", "where", "source", "doing", doing, "panic", fmt.Sprint(panicked), "stack", string(stack))
	return &Error{Err: fmt.Errorf("%s: %w", doing, errPanic), Hint: "the agent retries by itself; the running configuration stays"}
}

// recovering runs do. A panic in it becomes its error.
func (s *Source) recovering(doing string, do func() error) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = s.panicError(doing, panicked, debug.Stack())
		}
	}()
	return do()
}

// runWithRestarts runs a part until ctx ends. After each panic, it calls broke with the error and restarts the part after
// a pause.
func (s *Source) runWithRestarts(ctx context.Context, doing string, run func(context.Context) error, broke func(why error)) error {
	rest := firstRestartDelay
	for {
		began := s.cfg.Now()
		err := s.recovering(doing, func() error { return run(ctx) })
		if !errors.Is(err, errPanic) {
			return err
		}
		broke(err)
		if s.cfg.Now().Sub(began) > lastRestartDelay {
			rest = firstRestartDelay
		}
		if !sleep(ctx, rest) {
			return nil
		}
		rest = min(2*rest, lastRestartDelay)
	}
}
