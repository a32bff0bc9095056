// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"math/rand/v2"
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
func (p Policy) String() string {
	switch p {
	case Fastest:
		return "fastest"
	case Sequential:
		return "sequential"
	case Random:
		return "random"
	}
	return fmt.Sprintf("policy %d", uint8(p))
}

// A candidate is an upstream that an exchange may ask.
type candidate struct {
	endpoint    *endpoint
	timeout     time.Duration
	hedgeDelay  time.Duration // after which an answer counts as late; 0: unknown
	nextHealthy bool          // the next candidate is healthy: hedging makes sense
	lastResort  bool          // used only if no other candidate is healthy
	attempts    int
	noOPT       bool // it does not support EDNS: ask without an OPT record
	timedOut    bool // maybe because its answers are too large for the path
	excluded    bool // it refused: do not ask again
}

// candidates are the upstreams of an exchange, best first.
type candidates struct {
	list  [maxCandidates]candidate
	count int
}

// A class ranks above the score.
type class uint8

const (
	classHealthy    class = iota
	classLastResort       // used only if no other upstream is healthy
	classFailing          // it fails, or refuses the type
	classExcluded         // never asked
)

// A standing is the rank of an upstream for a query.
type standing struct {
	class      class
	score      time.Duration // rank within the class, lower is better
	timeout    time.Duration // of an attempt, after which the next one starts
	hedgeDelay time.Duration
}

// standing returns the upstream's rank. One without queries so far has the best score, so that each upstream is
// measured. The score improves with the time since the last query.
func (e *endpoint) standing(now time.Time, rrtype uint16) standing {
	if e.down.Load() || e.loopMonitor.looped() {
		return standing{class: classExcluded}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s := standing{timeout: e.latency.timeout(), hedgeDelay: e.latency.hedgeDelay()}
	if !e.lastQuery.IsZero() {
		s.score = e.latency.srtt
		if s.score == 0 {
			s.score = initialSRTT
		}
		s.score >>= decaySteps(now, e.lastQuery)
	}
	if e.failing.Load() || e.capabilities.isTypeRefused(now, rrtype) {
		s.class = classFailing
	}
	return s
}

// selectCandidates selects the upstreams for one exchange.
//
// Last resorts come after all others while one of those is healthy. If all others fail, last resorts are ranked like
// them.
func (p *Pool) selectCandidates(snap *snapshot, q []byte, now time.Time) candidates {
	rrtype := wire.QueryType(q)
	r := ranking{limit: p.maxCandidates}
	primary := snap.all[:len(snap.all)-len(snap.lastResort)]
	if p.endpoints != nil {
		r.insertSample(primary, now, rrtype)
	} else {
		for i, e := range primary {
			s := e.standing(now, rrtype)
			switch p.policy {
			case Sequential:
				s.score = time.Duration(i)
			case Random:
				s.score = time.Duration(rand.Int64N(1 << 30)) //nolint:gosec // not security relevant
			case Fastest:
			}
			r.insert(e, s)
		}
	}
	lastClass := classHealthy
	if r.count > 0 && r.standings[0].class == classHealthy {
		lastClass = classLastResort
	}
	for _, e := range snap.lastResort {
		s := e.standing(now, rrtype)
		s.class = max(s.class, lastClass)
		r.insert(e, s)
	}
	if r.count > 1 {
		// Little may be known of the first one, or it is being measured again. Do not wait longer for it than for the
		// second.
		r.list[0].timeout = min(r.list[0].timeout, r.list[1].timeout)
	}
	if r.count == 1 || r.standings[1].class == classFailing {
		r.list[0].hedgeDelay = 0 // no other one is better
	}
	for i := range max(r.count-1, 0) {
		r.list[i].nextHealthy = r.standings[i+1].class == classHealthy
	}
	return r.candidates
}

// A ranking holds the best upstreams so far.
type ranking struct {
	candidates
	standings [maxCandidates]standing
	limit     int
}

// insert adds an upstream in order, and drops the last one beyond the limit.
func (r *ranking) insert(e *endpoint, s standing) {
	if s.class == classExcluded {
		return
	}
	at := r.count
	for at > 0 && (s.class < r.standings[at-1].class || s.class == r.standings[at-1].class && s.score < r.standings[at-1].score) {
		at--
	}
	if at == r.limit {
		return
	}
	r.count = min(r.count+1, r.limit)
	copy(r.list[at+1:r.count], r.list[at:])
	copy(r.standings[at+1:r.count], r.standings[at:])
	r.list[at], r.standings[at] = candidate{endpoint: e, timeout: s.timeout, hedgeDelay: s.hedgeDelay, lastResort: s.class == classLastResort}, s
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
func (r *ranking) insertSample(list []*endpoint, now time.Time, rrtype uint16) {
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
		near = near || e.near
		r.insert(e, e.loadStanding(now, rrtype))
		at = (at + step) % len(list)
	}
	for i := 0; !near && i < len(list); i++ { // few of many may be near
		if e := list[(at+i)%len(list)]; e.near {
			r.insert(e, e.loadStanding(now, rrtype))
			near = true
		}
	}
}

// loadStanding returns the rank of a server of Endpoints.
func (e *endpoint) loadStanding(now time.Time, rrtype uint16) standing {
	s := e.standing(now, rrtype)
	waiting := int64(e.outstanding.Load()) + 1
	s.score = time.Duration(waiting * int64(max(s.score, minScoreSRTT)))
	if !e.near {
		s.score = s.score*otherZoneFactor + otherZoneExtra
	}
	return s
}
