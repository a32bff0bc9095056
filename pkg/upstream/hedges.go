// SPDX-License-Identifier: Apache-2.0

package upstream

import "sync/atomic"

// Hedges are extra queries: few in a hundred, so that an upstream that is slow for all of them does not get twice as many
// to be slow for.
const (
	hedgePercent   = 3    // of a hundred queries
	maxHedgeBudget = 3200 // hundredths that may be saved up
)

// hedges is how many hundredths of a hedge may be spent.
type hedgeBudget struct{ hundredths atomic.Int64 }

// earn is called for each query.
func (h *hedgeBudget) earn() {
	if h.hundredths.Load() < maxHedgeBudget {
		h.hundredths.Add(hedgePercent)
	}
}

// spend takes one hedge, if there is one.
func (h *hedgeBudget) spend() bool {
	if h.hundredths.Add(-100) >= 0 {
		return true
	}
	h.hundredths.Add(100)
	return false
}
