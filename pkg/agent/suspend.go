// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/hex"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/snapshot"
)

// suspendInterval is the time between two checks for a suspend. After a resume, TTLs and the cluster's age
// may ignore the suspend for that long.
const suspendInterval = time.Second

// minSuspend is the shortest suspend that counts.
const minSuspend = 100 * time.Millisecond

// watchSuspends ages the cache and the cluster's objects by each suspend until ctx ends.
func (a *Agent) watchSuspends(ctx context.Context) { followSuspends(ctx, suspendedTime, a.addSuspend) }

// followSuspends calls report with the length of each suspend until ctx ends. asleep returns how long the host
// has been suspended since boot, at least.
//
// Go reads CLOCK_MONOTONIC, which stops during a suspend. Reading CLOCK_BOOTTIME for each batch of queries
// would cost a system call, because the runtime has no vDSO call for it. So followSuspends compares the two
// clocks once a second.
func followSuspends(ctx context.Context, asleep func() time.Duration, report func(time.Duration)) {
	known := asleep()
	ticker := time.NewTicker(suspendInterval)
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

// addSuspend ages the cache and the cluster's objects by a suspend.
func (a *Agent) addSuspend(d time.Duration) {
	r := a.running.Load()
	r.cache.AddSuspend(d)
	if c := r.cluster; c.events != nil {
		c.events.AddSuspend(d)
	}
	a.log.Info("host was suspended", "for", d.Round(time.Millisecond).String())
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

// readClocks reads the host's clocks.
func readClocks() snapshot.ClockState {
	m := snapshot.ClockState{Wall: time.Now()}
	var up unix.Timespec
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return m // the wall clock alone
	}
	id, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", ""))
	if err == nil && len(id) == len(m.BootID) {
		copy(m.BootID[:], id)
		m.Uptime = time.Duration(up.Nano())
	}
	return m
}
