// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A Pool asks the upstreams of a route. Its methods are safe for concurrent use.
type Pool struct {
	*common
	sources  []*source // one per target, in order; after New only Run uses them
	hedges   atomic.Int64
	explored exploration
	timers   timerHeap
	snapshot atomic.Pointer[snapshot] // may be outdated; currentSnapshot returns the current one

	mu       sync.Mutex  // guards changes of snapshot, and the fields below
	draining []*endpoint // removed from the list, may still have connections
	runEnded bool        // Run has returned: keep no idle connections
}

// A snapshot is the list of a pool's upstreams at one time. A published snapshot is immutable.
type snapshot struct {
	all        []*endpoint      // in order, last resorts at the end
	lastResort []*endpoint      // the end of all: used only while no other upstream is healthy
	version    uint64           // the version of Endpoints that it was made from
	selfAddrs  []netip.AddrPort // addresses of Endpoints that were excluded: this process listens on them
}

// primary returns the upstreams that are not last resorts.
func (s *snapshot) primary() []*endpoint { return s.all[:len(s.all)-len(s.lastResort)] }

// downReason returns the most specific reason why all upstreams are down.
func (s *snapshot) downReason() Reason {
	why := Network
	for _, e := range s.all {
		why = max(why, Cause(e.lastCause.Load()).reason()) //nolint:gosec // it was stored from a Cause
	}
	return why
}

// currentSnapshot returns the current list.
func (p *Pool) currentSnapshot() *snapshot {
	snap := p.snapshot.Load()
	if p.Endpoints == nil || snap.version == p.Endpoints.version.Load() {
		return snap
	}
	return p.refreshSnapshot()
}

// refreshSnapshot publishes the current endpoints, unless another goroutine just did.
func (p *Pool) refreshSnapshot() *snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	ready, lastResort, version := p.Endpoints.list()
	old := p.snapshot.Load()
	if old.version == version {
		return old
	}
	next := &snapshot{version: version}
	others := func(servers []Server) []Target {
		list := make([]Target, 0, len(servers))
		for _, s := range servers {
			switch {
			case !p.Self(s.Addr):
				list = append(list, p.Secure.target(s))
				continue
			case !slices.Contains(old.selfAddrs, s.Addr):
				p.Log.Warn("upstream excluded", "reason", "own address", "upstream", s.Addr)
			}
			next.selfAddrs = append(next.selfAddrs, s.Addr)
		}
		return list
	}
	p.publishLocked(next, others(ready), others(lastResort))
	return next
}

// publishLocked fills next and replaces the current snapshot by it. An upstream in both keeps its endpoint, with latency,
// counters and connections. A removed upstream gets no more queries.
func (p *Pool) publishLocked(next *snapshot, entries, last []Target) {
	known := map[Target]*endpoint{}
	for _, e := range p.snapshot.Load().all {
		known[e.Target] = e
	}
	seen := map[Target]bool{}
	add := func(entries []Target) {
		for _, k := range entries {
			if !seen[k] {
				seen[k] = true
				next.all = append(next.all, p.endpointLocked(known, k))
			}
		}
	}
	add(entries)
	primary := len(next.all)
	add(last)
	next.lastResort = next.all[primary:]
	p.snapshot.Store(next)
	for _, e := range known {
		e.closeIdle(true)
		if !p.runEnded {
			p.draining = append(p.draining, e)
		}
	}
}

// endpointLocked takes the endpoint of target k out of known, or makes a new one.
func (p *Pool) endpointLocked(known map[Target]*endpoint, k Target) *endpoint {
	if e := known[k]; e != nil {
		delete(known, k)
		e.loopMonitor.recheck() // the server behind the address may have changed too
		return e
	}
	e := newEndpoint(p.common, k)
	if p.runEnded {
		e.closeIdle(false)
	}
	return e
}

// A candidate is an upstream that an exchange may ask.
type candidate struct {
	endpoint    *endpoint
	class       int
	nextHealthy bool          // the next candidate is healthy: hedging makes sense
	noOPT       bool          // it may not support EDNS: ask without an OPT record
	headerOnly  bool          // it answered the OPT record with a bare header, hence noOPT
	timedOut    bool          // an attempt timed out, maybe because the answer is too large for the path
	excluded    bool          // do not ask it again for this query
	attempts    int           // attempts started so far
	score       time.Duration // rank within the class, lower is better
	timeout     time.Duration // time after which the next attempt starts
	hedgeDelay  time.Duration // time after which an answer counts as late; 0: unknown
}

// A candidate's class ranks above its score.
const (
	classHealthy    = iota
	classLastResort // used only if no other upstream is healthy
	classFailing    // it fails, or refuses the type
	classExcluded   // down or looping: never asked
)

// The most upstreams that are asked for one query.
const (
	targetCandidates   = 2 // most candidates in a pool with Targets
	endpointCandidates = 3 // most candidates in a pool with Endpoints, which change more often
	maxCandidates      = max(targetCandidates, endpointCandidates)
)

// selectCandidates appends the upstreams for one exchange to list, which is empty, best first.
//
// Last resorts come after all others while one of those is healthy. If all others fail, last resorts are ranked like
// them.
func (p *Pool) selectCandidates(list []candidate, snap *snapshot, q []byte, now time.Time) []candidate {
	rrtype, limit := wire.QueryType(q), targetCandidates
	primary := snap.primary()
	if p.Endpoints != nil {
		limit = endpointCandidates
		list = insertSample(list, primary, now, rrtype)
	} else {
		for i, e := range primary {
			c := e.candidate(now, rrtype)
			switch p.Policy {
			case Sequential:
				c.score = time.Duration(i)
			case Random:
				c.score = time.Duration(rand.Int64N(1 << 30)) //nolint:gosec // not security relevant
			case Fastest:
			}
			list = insert(list, c, limit)
		}
	}
	lastClass := classHealthy
	if len(list) > 0 && list[0].class == classHealthy {
		lastClass = classLastResort
	}
	for _, e := range snap.lastResort {
		c := e.candidate(now, rrtype)
		c.class = max(c.class, lastClass)
		list = insert(list, c, limit)
	}
	if len(list) > 1 {
		// Little may be known of the first candidate, or it is being measured again. Do not wait longer for it than for
		// the second.
		list[0].timeout = min(list[0].timeout, list[1].timeout)
	}
	if len(list) == 1 || len(list) > 1 && list[1].class == classFailing {
		list[0].hedgeDelay = 0 // no second candidate works, so none can be asked if the first is late
	}
	for i := 1; i < len(list); i++ {
		list[i-1].nextHealthy = list[i].class == classHealthy
	}
	return list
}

// insert adds a candidate in order, and drops the last one beyond the limit.
func insert(list []candidate, c candidate, limit int) []candidate {
	at := len(list)
	for at > 0 && (c.class < list[at-1].class || c.class == list[at-1].class && c.score < list[at-1].score) {
		at--
	}
	if c.class == classExcluded || at == limit {
		return list
	}
	return slices.Insert(list[:min(len(list), limit-1)], at, c)
}

// How the load of Endpoints is scored.
const (
	sampleSize      = 8                    // endpoints considered for one query
	minScoreSRTT    = time.Millisecond     // lower latencies score like this one, so that queries spread over all
	otherZoneFactor = 4                    // multiplies the score of an endpoint in another zone
	otherZoneExtra  = 2 * time.Millisecond // added to the score of an endpoint in another zone, after otherZoneFactor
)

// insertSample adds random endpoints, scored by pending queries times latency. The less busy of a random sample is
// almost as good as the least busy of all (Mitzenmacher 2001, the power of two choices).
func insertSample(list []candidate, servers []*endpoint, now time.Time, rrtype uint16) []candidate {
	if len(servers) == 0 {
		return list
	}
	step := max(len(servers)/sampleSize, 1)
	at := rand.IntN(len(servers)) //nolint:gosec // not security relevant
	near := false
	for range min(len(servers), sampleSize) {
		e := servers[at]
		near = near || !e.far
		list = insert(list, e.loadCandidate(now, rrtype), endpointCandidates)
		at = (at + step) % len(servers)
	}
	for i := 0; !near && i < len(servers); i++ { // no endpoint of the sample is in this zone: add the next one that is
		if e := servers[(at+i)%len(servers)]; !e.far {
			list = insert(list, e.loadCandidate(now, rrtype), endpointCandidates)
			near = true
		}
	}
	return list
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
// upstream is measured.
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
		c.score = e.latency.score()
	}
	if e.failing.Load() || e.capabilities.isTypeRefused(now, rrtype) {
		c.class = classFailing
	}
	return c
}

// How often an upstream is measured that is not the best. Its query goes to the best one at the same time, so that no
// client waits for it.
const (
	exploreEvery = 101             // queries from one exploration to the next; odd, so that it is not always the second of A and AAAA
	exploreAfter = 5 * time.Second // time after which exploreLeast queries are enough
	exploreLeast = 11              // queries from one exploration to the next in any case
)

// An exploration says when the next upstream is measured.
type exploration struct {
	queries atomic.Int64 // queries since the last exploration
	at      atomic.Int64 // time of the last exploration, Unix ns
}

// due counts a query and reports whether an exploration is due with it.
func (x *exploration) due(now time.Time) bool {
	n := x.queries.Add(1)
	if n < exploreLeast || n < exploreEvery && now.UnixNano()-x.at.Load() < int64(exploreAfter) {
		return false
	}
	x.queries.Store(0)
	x.at.Store(now.UnixNano())
	return true
}

// soon makes an exploration due with the next query.
func (x *exploration) soon() { x.queries.Store(exploreEvery) }

// retry makes an exploration due after a few queries.
func (x *exploration) retry() { x.queries.Store(exploreEvery - exploreLeast) }

// explore makes the healthy upstream of a sample that was asked least recently the second candidate, and reports whether
// this query is to measure it. Without exploration an upstream that gets no queries would keep the score that it had.
func (p *Pool) explore(list []candidate, snap *snapshot, q []byte, now time.Time) bool {
	byLatency := p.Endpoints != nil || p.Policy == Fastest
	if !byLatency || len(list) < 2 || list[0].class != classHealthy || !p.explored.due(now) {
		return false
	}
	var next candidate
	oldest := now.Add(-sampleInterval) // upstreams that were asked more recently are measured anyway
	primary := snap.primary()
	start := rand.IntN(len(primary)) //nolint:gosec // not security relevant
	for i := range min(len(primary), sampleSize) {
		e := primary[(start+i)%len(primary)]
		c := e.candidate(now, wire.QueryType(q))
		if e == list[0].endpoint || c.class != classHealthy {
			continue
		}
		if asked := e.lastAsked(); asked.Before(oldest) {
			next, oldest = c, asked
		}
	}
	if next.endpoint == nil {
		p.explored.retry()
		return false
	}
	at := slices.IndexFunc(list, func(c candidate) bool { return c.endpoint == next.endpoint })
	if at > 1 {
		list[at], list[at].nextHealthy = list[1], false
	}
	list[0].nextHealthy, list[1] = false, next // the second candidate is asked at once, so there is no hedge to it
	return true
}

// lastAsked returns when the upstream was last asked.
func (e *endpoint) lastAsked() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lastQuery
}

// Hedges are extra queries. They are a small share, so that a slow upstream does not get twice the load. Pool.hedges
// is the number of hedges that may be sent, in hundredths.
const (
	hedgePercent = 3    // hedges per 100 queries
	maxHedges    = 3200 // hundredths of a hedge: 32 hedges
)

// earnHedge adds hedgePercent to the hedges. It is called for each query.
func (p *Pool) earnHedge() {
	if p.hedges.Load() < maxHedges {
		p.hedges.Add(hedgePercent)
	}
}

// spendHedge takes one hedge and reports whether there was one.
func (p *Pool) spendHedge() bool {
	if p.hedges.Add(-100) >= 0 {
		return true
	}
	p.hedges.Add(100)
	return false
}
