// SPDX-License-Identifier: Apache-2.0

// Package retry has the delays between attempts that fail, and a sleep that a context ends.
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
