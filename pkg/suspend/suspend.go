// SPDX-License-Identifier: Apache-2.0

// Package suspend notices that the host was suspended.
package suspend

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// interval is the time between two checks for a suspend. After a resume, TTLs and the cluster's age
// may ignore the suspend for that long.
const interval = time.Second

// minSuspend is the shortest suspend that counts.
const minSuspend = 100 * time.Millisecond

// Watch calls report with the length of each suspend until ctx ends.
//
// Go reads CLOCK_MONOTONIC, which stops during a suspend. Reading CLOCK_BOOTTIME for each batch of queries would cost a system
// call, because the runtime has no vDSO call for it. So Watch compares the two clocks once a second.
func Watch(ctx context.Context, report func(time.Duration)) { watch(ctx, suspendedTime, report) }

// watch is Watch with a function asleep that returns how long, at least, the host was suspended since boot.
func watch(ctx context.Context, asleep func() time.Duration, report func(time.Duration)) {
	known := asleep()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if d := asleep() - known; d >= minSuspend {
			known += d
			report(d)
		}
	}
}

// suspendedTime returns how long the host was suspended since boot. Other processes may run between the two
// clock reads, so it takes the longest of three: a value may be too short but never too long.
func suspendedTime() (longest time.Duration) {
	for range 3 {
		var boot, awake unix.Timespec
		if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &awake) != nil {
			return 0
		}
		longest = max(longest, time.Duration(boot.Nano()-awake.Nano()))
	}
	return longest
}
