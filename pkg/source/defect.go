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
	firstRest = 5 * time.Second
	lastRest  = time.Minute
)

var errDefect = errors.New("a defect, the log has its stack")

// defect counts and logs a panic that was recovered in doing something, and gives the error that it becomes.
func (s *Source) defect(doing string, panicked any, stack []byte) error {
	s.panics.Add(1)
	s.cfg.Log.Error("recovered from a panic", "where", "source", "doing", doing, "panic", fmt.Sprint(panicked), "stack", string(stack))
	return &Error{Err: fmt.Errorf("%s: %w", doing, errDefect), Hint: "it is tried again by itself; what runs stays meanwhile"}
}

// guarded does something. A panic in it becomes its error.
func (s *Source) guarded(doing string, do func() error) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = s.defect(doing, panicked, debug.Stack())
		}
	}()
	return do()
}

// steadily runs a part until ctx ends. Each time that a defect cuts it short, broke is told why, and it begins anew after a
// rest.
func (s *Source) steadily(ctx context.Context, doing string, run func(context.Context) error, broke func(why error)) error {
	rest := firstRest
	for {
		began := s.cfg.Now()
		err := s.guarded(doing, func() error { return run(ctx) })
		if !errors.Is(err, errDefect) {
			return err
		}
		broke(err)
		if s.cfg.Now().Sub(began) > lastRest {
			rest = firstRest
		}
		if !sleep(ctx, rest) {
			return nil
		}
		rest = min(2*rest, lastRest)
	}
}
