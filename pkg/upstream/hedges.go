// SPDX-License-Identifier: Apache-2.0

package upstream

import "sync/atomic"

// Hedges are extra queries: few in a hundred, so that an upstream that is slow for all of them does not get twice as many
// to be slow for.
const (
	hedgeShare = 3    // of a hundred queries
	maxHedges  = 3200 // hundredths that may be saved up
)

// hedges is how many hundredths of a hedge may be spent.
type hedges struct{ saved atomic.Int64 }

// earn is called for each query.
func (h *hedges) earn() {
	if h.saved.Load() < maxHedges {
		h.saved.Add(hedgeShare)
	}
}

// spend takes one hedge, if there is one.
func (h *hedges) spend() bool {
	if h.saved.Add(-100) >= 0 {
		return true
	}
	h.saved.Add(100)
	return false
}
