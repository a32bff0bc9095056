// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"
)

// suspendInterval is the time between two checks for a suspend. After a resume, TTLs and the cluster's age
// may ignore the suspend for that long.
const suspendInterval = time.Second

// minSuspend is the shortest suspend that counts.
const minSuspend = 100 * time.Millisecond

// watchSuspends calls report with the length of each suspend until ctx ends. asleep returns how long the host
// has been suspended since boot, at least.
//
// Go reads CLOCK_MONOTONIC, which stops during a suspend. Reading CLOCK_BOOTTIME for each batch of queries
// would cost a system call, because the runtime has no vDSO call for it. So watchSuspends compares the two
// clocks once a second.
func watchSuspends(ctx context.Context, asleep func() time.Duration, report func(time.Duration)) {
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
	if c := r.cluster; c != nil && c.events != nil {
		c.events.AddSuspend(d)
	}
	a.log.Info("host was suspended", "for", d.Round(time.Millisecond).String())
}
