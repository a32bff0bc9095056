// SPDX-License-Identifier: Apache-2.0

// Package panics recovers from panics, so that a defect ends one operation and not the process.
package panics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
)

// Err is the error of a function that panicked.
var Err = errors.New("internal error: the log has its stack trace")

var total atomic.Uint64 //nolint:gochecknoglobals // it counts for the whole process

// Total returns how many panics this process has logged.
func Total() uint64 { return total.Load() }

// Log logs a recovered panic with the stack of the caller, which is that of the panic while a deferred function runs.
func Log(ctx context.Context, log *slog.Logger, where string, panicked any) {
	log.ErrorContext(ctx, "recovered from a panic", "where", where, "panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
	total.Add(1)
}

// A Guard recovers panics of one part.
type Guard struct {
	Where string         // the part that may panic, for the log
	Log   *slog.Logger   // required
	Count *atomic.Uint64 // number of recovered panics; nil: not counted
}

// Do calls do and returns its error. If do panics, the error is [Err].
func (g Guard) Do(ctx context.Context, do func() error) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = g.Recovered(ctx, panicked)
		}
	}()
	return do()
}

// Recovered logs and counts a panic that the caller has recovered, and returns [Err]. Call it while the deferred
// function runs, so that the logged stack is that of the panic.
func (g Guard) Recovered(ctx context.Context, panicked any) error {
	Log(ctx, g.Log, g.Where, panicked)
	if g.Count != nil {
		g.Count.Add(1) // after logging: a reader of the counter finds the log entry
	}
	return Err
}
