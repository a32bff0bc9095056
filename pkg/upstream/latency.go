// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"sync/atomic"
	"time"
)

// How latency becomes order and patience.
const (
	decayInterval = 5 * time.Second        // not asked for so long: counts as twice as fast
	minPenalty    = 100 * time.Millisecond // what a failure costs at least
	maxPenalty    = time.Second            // and at most
	initialSRTT   = 100 * time.Millisecond // asked, but has not answered yet
	minTimeout    = 150 * time.Millisecond
	maxTimeout    = 800 * time.Millisecond
	timeoutSRTTs  = 4
	minHedgeDelay = 5 * time.Millisecond // an upstream that is quicker is given so long all the same
	minSamples    = 16                   // before anybody can say what is late
)

// A latency is what is known of an upstream's round trips.
type latency struct {
	srtt    time.Duration // smoothed, penalties included; 0: not known yet
	p95     time.Duration // of the recent ones, nearly; 0: not known yet
	samples uint8         // as far as minSamples
}

// measured takes a round trip into account (RFC 6298 section 2.3). stale says that what was known before is of no worth.
func (l *latency) observe(rtt time.Duration, stale bool) {
	rtt = max(rtt, 1) // 0 means unknown
	if l.srtt == 0 || stale {
		l.srtt = rtt
	} else {
		l.srtt = max(l.srtt+(rtt-l.srtt)/8, 1)
	}
	if l.samples < minSamples {
		l.samples++
		l.p95 = max(l.p95, rtt)
		return
	}
	l.trackP95(rtt)
}

// track moves the percentile: up by nineteen steps for one that was above, down by one step for the nineteen that should
// be below.
func (l *latency) trackP95(rtt time.Duration) {
	step := max(l.p95/256, 1)
	if rtt > l.p95 {
		l.p95 = min(l.p95+19*step, rtt)
		return
	}
	l.p95 -= step
}

// punished makes it longer after a failure.
func (l *latency) penalize() {
	l.srtt = max(l.srtt, min(max(2*l.srtt, minPenalty), maxPenalty))
}

// patience is how long a try may be silent before the next one starts.
func (l *latency) timeout() time.Duration {
	srtt := l.srtt
	if srtt == 0 {
		srtt = initialSRTT
	}
	return min(max(timeoutSRTTs*srtt, minTimeout), maxTimeout)
}

// hedge is how long a try may be silent before it is late; 0: nobody can say yet.
func (l *latency) hedgeDelay() time.Duration {
	if l.samples < minSamples {
		return 0
	}
	return max(l.p95+l.p95/4, minHedgeDelay) // the quarter is for those that always take as long
}

// halvings is how often what was known of an upstream that was last asked then has lost half its worth.
func decaySteps(now, asked time.Time) int {
	return int(min(max(now.Sub(asked), 0)/decayInterval, 40)) // 40: hardly any duration is left
}

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
