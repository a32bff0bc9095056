// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A Policy is the order in which a pool asks its targets. Failing ones always come last.
type Policy uint8

// The policies.
const (
	Fastest    Policy = iota // by measured latency
	Sequential               // in the order of the configuration
	Random                   // in a new order for each query
)

// String returns the policy as it is configured.
func (p Policy) String() string { return label(int(p), "fastest", "sequential", "random") }

// A class ranks above the score.
type class uint8

const (
	classHealthy    class = iota
	classLastResort       // used only if no other upstream is healthy
	classFailing          // it fails, or refuses the type
	classExcluded         // never asked
)

// A candidate is an upstream that an exchange may ask.
type candidate struct {
	endpoint    *endpoint
	class       class
	nextHealthy bool          // the next candidate is healthy: hedging makes sense
	noOPT       bool          // it does not support EDNS: ask without an OPT record
	timedOut    bool          // maybe because its answers are too large for the path
	excluded    bool          // it refused: do not ask again
	attempts    int           // so far
	score       time.Duration // rank within the class, lower is better
	timeout     time.Duration // of an attempt, after which the next one starts
	hedgeDelay  time.Duration // after which an answer counts as late; 0: unknown
}

// candidates are the upstreams of an exchange, best first.
type candidates struct {
	list  [maxCandidates]candidate
	count int
}

// currentSnapshot returns the current list.
func (p *Pool) currentSnapshot() *snapshot {
	snap := p.snapshot.Load()
	if p.endpoints == nil || snap.members == p.endpoints.load() {
		return snap
	}
	return p.refreshSnapshot()
}

// selectCandidates selects the upstreams for one exchange.
//
// Last resorts come after all others while one of those is healthy. If all others fail, last resorts are ranked like
// them.
func (p *Pool) selectCandidates(snap *snapshot, q []byte, now time.Time) (r candidates) {
	rrtype := wire.QueryType(q)
	primary := snap.all[:len(snap.all)-len(snap.lastResort)]
	if p.endpoints != nil {
		r.insertSample(primary, now, rrtype, p.maxCandidates)
	} else {
		for i, e := range primary {
			c := e.candidate(now, rrtype)
			switch p.policy {
			case Sequential:
				c.score = time.Duration(i)
			case Random:
				c.score = time.Duration(rand.Int64N(1 << 30)) //nolint:gosec // not security relevant
			case Fastest:
			}
			r.insert(c, p.maxCandidates)
		}
	}
	lastClass := classHealthy
	if r.count > 0 && r.list[0].class == classHealthy {
		lastClass = classLastResort
	}
	for _, e := range snap.lastResort {
		c := e.candidate(now, rrtype)
		c.class = max(c.class, lastClass)
		r.insert(c, p.maxCandidates)
	}
	if r.count > 1 {
		// Little may be known of the first one, or it is being measured again. Do not wait longer for it than for the
		// second.
		r.list[0].timeout = min(r.list[0].timeout, r.list[1].timeout)
	}
	if r.count == 1 || r.list[1].class == classFailing {
		r.list[0].hedgeDelay = 0 // no other one is better
	}
	for i := range max(r.count-1, 0) {
		r.list[i].nextHealthy = r.list[i+1].class == classHealthy
	}
	return r
}

// insert adds a candidate in order, and drops the last one beyond the limit.
func (r *candidates) insert(c candidate, limit int) {
	if c.class == classExcluded {
		return
	}
	at := r.count
	for at > 0 && (c.class < r.list[at-1].class || c.class == r.list[at-1].class && c.score < r.list[at-1].score) {
		at--
	}
	if at == limit {
		return
	}
	r.count = min(r.count+1, limit)
	copy(r.list[at+1:r.count], r.list[at:])
	r.list[at] = c
}

// How the load of Endpoints is scored.
const (
	sampleSize      = 8                    // endpoints considered for one query
	minScoreSRTT    = time.Millisecond     // faster does not score better, so that queries spread over all
	otherZoneFactor = 4                    // an endpoint in another zone counts as so much busier
	otherZoneExtra  = 2 * time.Millisecond // and as so much slower
)

// insertSample adds random endpoints, scored by pending queries times latency. The less busy of a random sample is
// almost as good as the least busy of all (Mitzenmacher 2001, the power of two choices).
func (r *candidates) insertSample(list []*endpoint, now time.Time, rrtype uint16, limit int) {
	if len(list) == 0 {
		return
	}
	step := 1
	if len(list) > sampleSize {
		step = len(list) / sampleSize
	}
	at := rand.IntN(len(list)) //nolint:gosec // not security relevant
	near := false
	for range min(len(list), sampleSize) {
		e := list[at]
		near = near || !e.far
		r.insert(e.loadCandidate(now, rrtype), limit)
		at = (at + step) % len(list)
	}
	for i := 0; !near && i < len(list); i++ { // few of many may be near
		if e := list[(at+i)%len(list)]; !e.far {
			r.insert(e.loadCandidate(now, rrtype), limit)
			near = true
		}
	}
}

// loadCandidate returns the rank of a server of Endpoints.
func (e *endpoint) loadCandidate(now time.Time, rrtype uint16) candidate {
	c := e.candidate(now, rrtype)
	pending := int64(e.outstanding.Load()) + 1
	c.score = time.Duration(pending * int64(max(c.score, minScoreSRTT)))
	if e.far {
		c.score = c.score*otherZoneFactor + otherZoneExtra
	}
	return c
}

// candidate returns the upstream's rank for a query. One without queries so far has the best score, so that each
// upstream is measured. The score improves with the time since the last query.
func (e *endpoint) candidate(now time.Time, rrtype uint16) candidate {
	c := candidate{endpoint: e}
	if e.down.Load() || e.loopMonitor.looping.Load() {
		c.class = classExcluded
		return c
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	c.timeout, c.hedgeDelay = e.latency.timeout(), e.latency.hedgeDelay()
	if !e.lastQuery.IsZero() {
		c.score = e.latency.srtt
		if c.score == 0 {
			c.score = initialSRTT
		}
		c.score >>= decaySteps(now, e.lastQuery)
	}
	if e.failing.Load() || e.capabilities.isTypeRefused(now, rrtype) {
		c.class = classFailing
	}
	return c
}

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
