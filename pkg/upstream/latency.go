// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"sync/atomic"
	"time"
)

// How latency becomes a score, a timeout and a hedge delay.
const (
	decayInterval = 5 * time.Second        // without a query for so long, the score halves
	minPenalty    = 100 * time.Millisecond // added at least by a failure
	maxPenalty    = time.Second            // of the latency after failures
	initialSRTT   = 100 * time.Millisecond // queried, but without an answer yet
	minTimeout    = 150 * time.Millisecond
	maxTimeout    = 800 * time.Millisecond
	timeoutSRTTs  = 4
	minHedgeDelay = 5 * time.Millisecond // lower bound for fast upstreams
	minSamples    = 16                   // before the p95 is used
)

// A latency holds what is known of an upstream's round trips.
type latency struct {
	srtt    time.Duration // smoothed, including penalties; 0: unknown
	p95     time.Duration // approximate p95 of recent round trips; 0: unknown
	samples uint8         // up to minSamples
}

// observe adds a round trip (RFC 6298 section 2.3). stale says that the previous value is too old to be used.
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

// trackP95 moves the p95 estimate: up by nineteen steps for a sample above it, down by one step for one below.
func (l *latency) trackP95(rtt time.Duration) {
	step := max(l.p95/256, 1)
	if rtt > l.p95 {
		l.p95 = min(l.p95+19*step, rtt)
		return
	}
	l.p95 -= step
}

// penalize raises the latency after a failure.
func (l *latency) penalize() {
	l.srtt = max(l.srtt, min(max(2*l.srtt, minPenalty), maxPenalty))
}

// timeout returns how long to wait for an answer before the next attempt starts.
func (l *latency) timeout() time.Duration {
	srtt := l.srtt
	if srtt == 0 {
		srtt = initialSRTT
	}
	return min(max(timeoutSRTTs*srtt, minTimeout), maxTimeout)
}

// hedgeDelay returns after which time an answer is late; 0: unknown yet.
func (l *latency) hedgeDelay() time.Duration {
	if l.samples < minSamples {
		return 0
	}
	return max(l.p95+l.p95/4, minHedgeDelay) // a quarter more, for upstreams with a constant latency
}

// decaySteps returns how often the score of an upstream last queried then is halved.
func decaySteps(now, asked time.Time) int {
	return int(min(max(now.Sub(asked), 0)/decayInterval, 40)) // 40 leaves almost nothing of any duration
}

// Hedges are extra queries. They are a small share, so that a slow upstream does not get twice the load.
const (
	hedgePercent   = 3    // of all queries
	maxHedgeBudget = 3200 // in hundredths of a hedge
)

// A hedgeBudget is the number of hedges that may be sent, in hundredths.
type hedgeBudget struct{ hundredths atomic.Int64 }

// earn is called for each query.
func (h *hedgeBudget) earn() {
	if h.hundredths.Load() < maxHedgeBudget {
		h.hundredths.Add(hedgePercent)
	}
}

// spend takes one hedge and reports whether there was one.
func (h *hedgeBudget) spend() bool {
	if h.hundredths.Add(-100) >= 0 {
		return true
	}
	h.hundredths.Add(100)
	return false
}
