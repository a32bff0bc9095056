// SPDX-License-Identifier: Apache-2.0

package suspend

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
)

// A suspend is detected within a second and counted once. The difference between two readings of the clocks is not one.
func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var asleep atomic.Int64
		asleep.Store(int64(time.Hour)) // before this process
		var found []time.Duration
		go watch(ctx, func() time.Duration { return time.Duration(asleep.Load()) }, func(d time.Duration) { found = append(found, d) })
		time.Sleep(interval / 2) // between two readings
		for _, d := range []time.Duration{0, 8 * time.Hour, time.Microsecond, -time.Microsecond, time.Minute, 0} {
			asleep.Add(int64(d))
			time.Sleep(interval)
		}
		cancel()
		synctest.Wait()
		assert.Same(t, "suspends", []time.Duration{8 * time.Hour, time.Minute}, found)
	})
}

// The clocks of the machine do not drift apart while the process works.
func TestTimeSuspended(t *testing.T) {
	t.Parallel()
	before := suspendedTime()
	for start := time.Now(); time.Since(start) < 5*time.Millisecond; {
		if d := suspendedTime() - before; d >= minSuspend {
			t.Fatalf("suspended for %s", d)
		}
	}
}
