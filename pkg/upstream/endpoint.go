// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/nodecache/node-cache/pkg/wire"
)

// An endpoint is one upstream: an address, what is known about it, and the ways to it.
type endpoint struct {
	*common
	listing
	count       counters
	first       carrier       // takes queries
	second      carrier       // takes what first cannot bring whole; nil: none
	bucket      *rate.Limiter // nil: no bound
	outstanding atomic.Int32  // tries under way
	failing     atomic.Bool   // the latest tries failed
	fault       atomic.Uint32 // the Reason of the latest failure
	down        atomic.Bool   // it has been failing for so long that it is not asked
	guard       *loopGuard    // nil: it is not looked whether what is sent to it comes back

	mu      sync.Mutex // guards the fields below
	latency latency
	asked   time.Time // when last
	slowed  time.Time // when a failure last counted
	good    time.Time // when an answer last came
	faults  faults
	manners manners
	prober  prober
}

func newEndpoint(c *common, l listing) *endpoint {
	e := &endpoint{common: c, listing: l}
	switch l.network {
	case "udp":
		e.first, e.second = newSockets(c, l.addr, &e.count), newLines(c, l.target("udp"), &e.count)
	case "https":
		e.first = newHTTPS(c, l.target(l.network), &e.count)
	default:
		e.first = newLines(c, l.target(l.network), &e.count)
	}
	if c.loops != nil {
		e.guard = &loopGuard{
			common: c, loops: c.loops, zone: c.zone, network: l.network, addr: l.addr,
			send: e.sendAlone,
		}
	}
	if c.rate > 0 {
		e.bucket = rate.NewLimiter(rate.Limit(c.rate), max(int(c.rate/10), 1))
	}
	return e
}

// carriers are the ways to the upstream.
func (e *endpoint) carriers() []carrier {
	if e.second == nil {
		return []carrier{e.first}
	}
	return []carrier{e.first, e.second}
}

// leave lets no query go there any more.
func (e *endpoint) leave() {
	e.endProbes()
	for _, c := range e.carriers() {
		c.leave()
	}
}

// retire keeps nothing open without a query.
func (e *endpoint) retire() {
	e.endProbes()
	for _, c := range e.carriers() {
		c.retire()
	}
}

// wait returns when, after leave or retire, nothing is open.
func (e *endpoint) wait() {
	for _, c := range e.carriers() {
		c.wait()
	}
}

// open counts what is open.
func (e *endpoint) open() int {
	n := 0
	for _, c := range e.carriers() {
		now, _ := c.open()
		n += now
	}
	return n
}

func (e *endpoint) endProbes() {
	e.guard.stop()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.prober.stopLocked()
	e.prober.gone = true
}

// hopeful tells whether a query may be expected to be answered.
func (e *endpoint) hopeful() bool { return !e.failing.Load() && !e.guard.looped() }

// begin sends a try on its way. An error says that nothing will come of it.
func (e *endpoint) begin(t *try, batch *wire.SendBatch) error {
	if e.bucket != nil && !e.bucket.AllowN(t.began, 1) {
		return errRate
	}
	e.count.requests.Add(1)
	e.guard.use(t.began)
	e.fit(t)
	t.over = e.first
	if err := t.over.carry(t, batch); err != nil {
		return err
	}
	e.outstanding.Add(1)
	return nil
}

// fit makes a try what the upstream can cope with, and notes when it was asked.
func (e *endpoint) fit(t *try) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t.stale = halvings(t.began, e.asked) > 0
	if t.began.After(e.asked) {
		e.asked = t.began
	}
	e.manners.apply(t, e.network == "udp", e.mixCase)
}

// heard takes what came for a try. settled is false when that is not the end of it: an answer that UDP did not bring
// whole, or that somebody on the way has changed, is fetched over TCP.
func (e *endpoint) heard(t *try, in received, now time.Time, batch *wire.SendBatch) (out outcome, settled bool) {
	if in.truncated || in.recased {
		if out = e.fetch(t, &in, now, batch); out.err == nil {
			return outcome{}, false
		}
		e.settled(t)
		return out, true
	}
	e.settled(t)
	switch {
	case in.err != nil:
		return e.failed(t, in.err, now), true
	case in.noEDNS != 0:
		t.race.bare = true
		return e.refused(t, now, outcome{cause: rcodeCause(in.noEDNS), rcode: in.noEDNS, err: errRcode}), true
	}
	return e.answered(t, in.m, now), true
}

// settled takes a try off what is counted of those under way.
func (e *endpoint) settled(t *try) {
	e.outstanding.Add(-1)
	if t.fetching {
		t.fetching = false
		e.mu.Lock()
		defer e.mu.Unlock()
		e.manners.fetches--
	}
}

// fetch sends a try over TCP after what came over UDP. The time that it took is that of UDP.
func (e *endpoint) fetch(t *try, in *received, now time.Time, batch *wire.SendBatch) outcome {
	t.rtt = max(now.Sub(t.began), 1) // 0: it has not been heard
	t.recased = in.recased
	if in.truncated {
		e.count.truncated.Add(1)
	} else {
		e.count.failures[CauseMismatch].Add(1)
	}
	e.mu.Lock()
	t.fetching = e.manners.mayFetch(now)
	e.mu.Unlock()
	if !t.fetching {
		return e.failed(t, errNoTCP, now)
	}
	t.over = e.second
	if err := t.over.carry(t, batch); err != nil {
		return e.failed(t, err, now)
	}
	return outcome{}
}
