// SPDX-License-Identifier: Apache-2.0

package upstream

import "time"

// Penalized is the smoothed round trip with penalties of a server, by which timeouts are set; 0: unknown.
func (p *Pool) Penalized(server int) time.Duration {
	e := p.currentSnapshot().all[server]
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.latency.srtt
}
