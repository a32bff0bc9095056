// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// After a defect a part begins anew: soon, since what it met may have been mended, and then less and less often.
const (
	firstRestartDelay = 5 * time.Second
	lastRestartDelay  = time.Minute
)

var errPanic = errors.New("a defect, the log has its stack")

// defect counts and logs a panic that was recovered in doing something, and gives the error that it becomes.
func (s *Source) panicError(doing string, panicked any, stack []byte) error {
	s.panics.Add(1)
	s.cfg.Log.Error("recovered from a panic", "where", "source", "doing", doing, "panic", fmt.Sprint(panicked), "stack", string(stack))
	return &Error{Err: fmt.Errorf("%s: %w", doing, errPanic), Hint: "it is tried again by itself; what runs stays meanwhile"}
}

// guarded does something. A panic in it becomes its error.
func (s *Source) recovering(doing string, do func() error) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = s.panicError(doing, panicked, debug.Stack())
		}
	}()
	return do()
}

// steadily runs a part until ctx ends. Each time that a defect cuts it short, broke is told why, and it begins anew after a
// rest.
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
