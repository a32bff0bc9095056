// SPDX-License-Identifier: Apache-2.0

// Package retry computes the delays between failed attempts, and has a sleep that a context can end.
package retry

import (
	"context"
	"math/rand/v2"
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

	delay time.Duration // the latest delay, before the random part; 0: none yet
	began time.Time     // start of the latest attempt; zero: Begin is not used
}

// Begin marks the start of an attempt. If the attempt lasts longer than Last before it fails, it worked for a while, and the next
// delay is First. A server that accepts connections and closes them at once gets no more attempts than one that accepts none.
func (b *Backoff) Begin() { b.began = time.Now() } //nolint:forbidigo // measures a duration

// Next returns the delay after one more failure. A random part of up to half the delay is added, so that agents that fail for the
// same cause do not retry at the same time.
func (b *Backoff) Next() time.Duration {
	if !b.began.IsZero() && time.Since(b.began) > b.Last {
		b.Reset()
	}
	b.delay = min(max(2*b.delay, b.First), b.Last)
	return b.delay + rand.N(b.delay/2+1)
}

// Reset sets the next delay to First.
func (b *Backoff) Reset() { b.delay = 0 }
