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
type side struct {
	ep       *endpoint
	patience time.Duration
	hedge    time.Duration // after which a try is late; 0: nobody can say
	relief   bool          // who is asked next is able: worth a hedge
	spare    bool          // a last resort, while others are able
	tries    int
	plain    bool // it does not know EDNS: ask without the OPT record
	silent   bool // it may be so because what it says is too large for the way
	done     bool // it said no: do not ask again
}

// sides are the upstreams of a race, the best first.
type sides struct {
	list  [maxSides]side
	count int
}

// A class goes before what makes one upstream better than another in it.
type class uint8

const (
	able    class = iota // nothing speaks against it
	spare                // a last resort, while others are able
	unable               // it fails, or refuses what is asked
	nowhere              // it is not asked
)

// A standing is what an upstream's past makes of it.
type standing struct {
	class    class
	score    time.Duration // its place among its class, lower is better
	patience time.Duration // how long a try may be silent before the next one starts
	hedge    time.Duration
}

// standing says how good the upstream is for a query. One that nobody has asked yet has the best score, so that each is
// measured; and the longer one was not asked, the better is its.
func (e *endpoint) standing(now time.Time, rrtype uint16) standing {
	if e.down.Load() || e.guard.looped() {
		return standing{class: nowhere}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s := standing{patience: e.latency.patience(), hedge: e.latency.hedge()}
	if !e.asked.IsZero() {
		s.score = e.latency.srtt
		if s.score == 0 {
			s.score = unknownSRTT
		}
		s.score >>= halvings(now, e.asked)
	}
	if e.failing.Load() || e.manners.refusesType(now, rrtype) {
		s.class = unable
	}
	return s
}

// choose picks the upstreams of one race from the roster.
//
// Last resorts come after all others while one of these is able, and only if those are few. Once each of the others
// fails they take part like any.
func (p *Pool) choose(list *roster, q []byte, now time.Time) sides {
	rrtype := wire.QueryType(q)
	o := order{limit: p.maxSides}
	firsts := list.all[:len(list.all)-len(list.last)]
	if p.follow != nil {
		o.sample(firsts, now, rrtype)
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
			o.add(e, s)
		}
	}
	lasts := able
	if o.count > 0 && o.standings[0].class == able {
		lasts = spare
	}
	for _, e := range list.last {
		s := e.standing(now, rrtype)
		s.class = max(s.class, lasts)
		o.add(e, s)
	}
	if o.count > 1 {
		// The first may be one of which little is known, or that is about to be measured anew. The client need not wait
		// for it longer than for the other.
		o.list[0].patience = min(o.list[0].patience, o.list[1].patience)
	}
	if o.count == 1 || o.standings[1].class == unable {
		o.list[0].hedge = 0 // there is nobody better
	}
	for i := range max(o.count-1, 0) {
		o.list[i].relief = o.standings[i+1].class == able
	}
	return o.sides
}

// An order is the best upstreams so far.
type order struct {
	sides
	standings [maxSides]standing
	limit     int
}

// add sorts an upstream in. The one that is then too many falls out.
func (o *order) add(e *endpoint, s standing) {
	if s.class == nowhere {
		return
	}
	at := o.count
	for at > 0 && (s.class < o.standings[at-1].class || s.class == o.standings[at-1].class && s.score < o.standings[at-1].score) {
		at--
	}
	if at == o.limit {
		return
	}
	o.count = min(o.count+1, o.limit)
	copy(o.list[at+1:o.count], o.list[at:])
	copy(o.standings[at+1:o.count], o.standings[at:])
	o.list[at], o.standings[at] = side{ep: e, patience: s.patience, hedge: s.hedge, spare: s.class == spare}, s
}

// What a followed endpoint's load is worth.
const (
	sampled   = 8                    // endpoints that one query looks at; of few all
	flatSRTT  = time.Millisecond     // quicker is no better: queries are spread, not heaped on the nearest
	farFactor = 4                    // an endpoint of another zone counts as so much busier,
	farExtra  = 2 * time.Millisecond // and slower
)

// sample sorts in some endpoints at random, by what a query has to expect there: so many that wait, for so long each.
// Of two that know nothing of each other the less busy one is taken, which spreads the load as evenly as if all were
// looked at (Mitzenmacher 2001, the power of two choices).
func (o *order) sample(list []*endpoint, now time.Time, rrtype uint16) {
	if len(list) == 0 {
		return
	}
	step := 1
	if len(list) > sampled {
		step = len(list) / sampled
	}
	at := rand.IntN(len(list)) //nolint:gosec // nothing hangs on its being guessed
	near := false
	for range min(len(list), sampled) {
		e := list[at]
		near = near || e.near
		o.add(e, e.busyness(now, rrtype))
		at = (at + step) % len(list)
	}
	for i := 0; !near && i < len(list); i++ { // of many, few may be near
		if e := list[(at+i)%len(list)]; e.near {
			o.add(e, e.busyness(now, rrtype))
			near = true
		}
	}
}

// busyness is the standing of a followed endpoint.
func (e *endpoint) busyness(now time.Time, rrtype uint16) standing {
	s := e.standing(now, rrtype)
	waiting := int64(e.outstanding.Load()) + 1
	s.score = time.Duration(waiting * int64(max(s.score, flatSRTT)))
	if !e.near {
		s.score = s.score*farFactor + farExtra
	}
	return s
}
