// SPDX-License-Identifier: Apache-2.0

// Package task helps long-lived goroutines: a sleep that a context ends, delays between attempts, recovery from panics.
package task

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// Sleep waits for d. If ctx ends first, it returns the error of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A Backoff is a series of delays between attempts that fail. Each is twice the one before.
type Backoff struct {
	First, Last time.Duration // the shortest and the longest delay, before the random part

	delay time.Duration // the latest one
	began time.Time     // the latest attempt; zero: Begin is not used
}

// Begin marks the begin of an attempt. If it fails after more than the longest delay, it worked for a while, and the next delay is
// the first one. So a server that takes connections and ends them at once gets no more attempts than one that takes none.
func (b *Backoff) Begin() { b.began = time.Now() } //nolint:forbidigo // measures a duration

// Next returns the delay after one more failure. A random part of up to half of it is added, so that agents which fail for the
// same cause do not retry at the same time.
func (b *Backoff) Next() time.Duration {
	if !b.began.IsZero() && time.Since(b.began) > b.Last {
		b.Reset()
	}
	b.delay = min(max(2*b.delay, b.First), b.Last)
	return b.delay + rand.N(b.delay/2+1)
}

// Reset makes the next delay the first one.
func (b *Backoff) Reset() { b.delay = 0 }

// ErrPanic is the error of a function that panicked.
var ErrPanic = errors.New("internal error: the log has its stack trace")

// A Guard recovers panics, so that a defect ends one step and not the process.
type Guard struct {
	Where string         // the part that may panic, for the log
	Log   *slog.Logger   // required
	Count *atomic.Uint64 // of recovered panics; nil: not counted
}

// Do calls do and returns its error. If do panics, the error is [ErrPanic].
func (g Guard) Do(ctx context.Context, do func() error) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = g.Recovered(ctx, panicked)
		}
	}()
	return do()
}

// Recovered logs and counts a panic that the caller has recovered, and returns [ErrPanic]. It must be called by the deferred
// function: the stack is that of the panic.
func (g Guard) Recovered(ctx context.Context, panicked any) error {
	g.Log.ErrorContext(ctx, "recovered from a panic", "where", g.Where, "panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
	if g.Count != nil {
		g.Count.Add(1) // last: a reader of the counter finds the log
	}
	return ErrPanic
}
