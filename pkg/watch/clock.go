// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"math/rand/v2"
	"time"

	"k8s.io/utils/clock"
)

// An endingClock does not wait beyond the end of the feed: the reflector's pauses cannot be cancelled.
type cancelableClock struct {
	clock.RealClock
	done <-chan struct{}
}

// After gives a channel that tells when d has passed or the feed has ended.
func (c cancelableClock) After(d time.Duration) <-chan time.Time {
	out := make(chan time.Time, 1)
	timer := time.NewTimer(d)
	go func() {
		defer timer.Stop()
		select {
		case now := <-timer.C:
			out <- now
		case <-c.done:
			out <- c.Now()
		}
	}()
	return out
}

// sleep waits for d, and gives false if ctx ended before.
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

// jittered adds up to half to d.
func jittered(d time.Duration) time.Duration {
	return d + time.Duration(float64(d)*pauseJitter*rand.Float64())
}
