// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A Policy says in which order a pool asks its targets. Those that fail come last, whatever it is.
type Policy uint8

// The policies.
const (
	Fastest    Policy = iota // by measured latency
	Sequential               // in the order of the configuration
	Random                   // in a new order for each query
)

// String is the policy as it is configured.
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

// A side is one upstream in a race.
type candidate struct {
	ep          *endpoint
	timeout     time.Duration
	hedgeDelay  time.Duration // after which a try is late; 0: nobody can say
	nextHealthy bool          // who is asked next is able: worth a hedge
	lastResort  bool          // a last resort, while others are able
	attempts    int
	noOPT       bool // it does not know EDNS: ask without the OPT record
	timedOut    bool // it may be so because what it says is too large for the way
	excluded    bool // it said no: do not ask again
}

// sides are the upstreams of a race, the best first.
type candidates struct {
	list  [maxCandidates]candidate
	count int
}

// A class goes before what makes one upstream better than another in it.
type class uint8

const (
	classHealthy    class = iota // nothing speaks against it
	classLastResort              // a last resort, while others are able
	classFailing                 // it fails, or refuses what is asked
	classExcluded                // it is not asked
)

// A standing is what an upstream's past makes of it.
type standing struct {
	class      class
	score      time.Duration // its place among its class, lower is better
	timeout    time.Duration // how long a try may be silent before the next one starts
	hedgeDelay time.Duration
}

// standing says how good the upstream is for a query. One that nobody has asked yet has the best score, so that each is
// measured; and the longer one was not asked, the better is its.
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

// choose picks the upstreams of one race from the roster.
//
// Last resorts come after all others while one of these is able, and only if those are few. Once each of the others
// fails they take part like any.
func (p *Pool) selectCandidates(snap *snapshot, q []byte, now time.Time) candidates {
	rrtype := wire.QueryType(q)
	r := ranking{limit: p.maxCandidates}
	firsts := snap.all[:len(snap.all)-len(snap.lastResort)]
	if p.endpoints != nil {
		r.insertSample(firsts, now, rrtype)
	} else {
		for i, e := range firsts {
			s := e.standing(now, rrtype)
			switch p.policy {
			case Sequential:
				s.score = time.Duration(i)
			case Random:
				s.score = time.Duration(rand.Int64N(1 << 30)) //nolint:gosec // nothing hangs on its being guessed
			case Fastest:
			}
			r.insert(e, s)
		}
	}
	lasts := classHealthy
	if r.count > 0 && r.standings[0].class == classHealthy {
		lasts = classLastResort
	}
	for _, e := range snap.lastResort {
		s := e.standing(now, rrtype)
		s.class = max(s.class, lasts)
		r.insert(e, s)
	}
	if r.count > 1 {
		// The first may be one of which little is known, or that is about to be measured anew. The client need not wait
		// for it longer than for the other.
		r.list[0].timeout = min(r.list[0].timeout, r.list[1].timeout)
	}
	if r.count == 1 || r.standings[1].class == classFailing {
		r.list[0].hedgeDelay = 0 // there is nobody better
	}
	for i := range max(r.count-1, 0) {
		r.list[i].nextHealthy = r.standings[i+1].class == classHealthy
	}
	return r.candidates
}

// An order is the best upstreams so far.
type ranking struct {
	candidates
	standings [maxCandidates]standing
	limit     int
}

// add sorts an upstream in. The one that is then too many falls out.
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
	r.list[at], r.standings[at] = candidate{ep: e, timeout: s.timeout, hedgeDelay: s.hedgeDelay, lastResort: s.class == classLastResort}, s
}

// What a followed endpoint's load is worth.
const (
	sampleSize      = 8                    // endpoints that one query looks at; of few all
	minScoreSRTT    = time.Millisecond     // quicker is no better: queries are spread, not heaped on the nearest
	otherZoneFactor = 4                    // an endpoint of another zone counts as so much busier,
	otherZoneExtra  = 2 * time.Millisecond // and slower
)

// sample sorts in some endpoints at random, by what a query has to expect there: so many that wait, for so long each.
// Of two that know nothing of each other the less busy one is taken, which spreads the load as evenly as if all were
// looked at (Mitzenmacher 2001, the power of two choices).
func (r *ranking) insertSample(list []*endpoint, now time.Time, rrtype uint16) {
	if len(list) == 0 {
		return
	}
	step := 1
	if len(list) > sampleSize {
		step = len(list) / sampleSize
	}
	at := rand.IntN(len(list)) //nolint:gosec // nothing hangs on its being guessed
	near := false
	for range min(len(list), sampleSize) {
		e := list[at]
		near = near || e.near
		r.insert(e, e.loadStanding(now, rrtype))
		at = (at + step) % len(list)
	}
	for i := 0; !near && i < len(list); i++ { // of many, few may be near
		if e := list[(at+i)%len(list)]; e.near {
			r.insert(e, e.loadStanding(now, rrtype))
			near = true
		}
	}
}

// busyness is the standing of a followed endpoint.
func (e *endpoint) loadStanding(now time.Time, rrtype uint16) standing {
	s := e.standing(now, rrtype)
	waiting := int64(e.outstanding.Load()) + 1
	s.score = time.Duration(waiting * int64(max(s.score, minScoreSRTT)))
	if !e.near {
		s.score = s.score*otherZoneFactor + otherZoneExtra
	}
	return s
}
