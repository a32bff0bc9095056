// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"
)

// suspendEvery is how often it is looked whether the machine was suspended, and so how long after a resume TTLs and the
// age of the view of the cluster may still be without it.
const suspendEvery = time.Second

// leastSuspend is what counts as a suspend.
const leastSuspend = 100 * time.Millisecond

// watchSuspends calls report with the length of each suspend until ctx ends. asleep is how long the machine was
// suspended since its boot, at least.
//
// Go reads CLOCK_MONOTONIC, which stands still in a suspend. Reading CLOCK_BOOTTIME for each batch of queries would cost
// a system call: the runtime has no vDSO call for it. So one reading a second finds out by how much the two have moved
// apart.
func watchSuspends(ctx context.Context, asleep func() time.Duration, report func(time.Duration)) {
	known := asleep()
	ticker := time.NewTicker(suspendEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if d := asleep() - known; d >= leastSuspend {
			known += d
			report(d)
		}
	}
}

// slept makes what is held older by a suspend.
func (a *Agent) slept(d time.Duration) {
	r := a.running.Load()
	r.cache.Slept(d)
	if c := r.cluster; c != nil && c.events != nil {
		c.events.AddSuspend(d)
	}
	a.log.Info("machine was suspended", "for", d.Round(time.Millisecond).String())
}
