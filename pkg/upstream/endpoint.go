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
func (e *endpoint) begin(t *try, later *wire.Later) error {
	if e.bucket != nil && !e.bucket.AllowN(t.began, 1) {
		return errRate
	}
	e.count.requests.Add(1)
	e.guard.use(t.began)
	e.mu.Lock()
	t.stale = halvings(t.began, e.asked) > 0
	if t.began.After(e.asked) {
		e.asked = t.began
	}
	e.manners.apply(t, e.network == "udp", e.mixCase)
	e.mu.Unlock()
	t.over = e.first
	if err := t.over.carry(t, later); err != nil {
		return err
	}
	e.outstanding.Add(1)
	return nil
}

// heard takes what came for a try. settled is false when that is not the end of it: an answer that UDP did not bring
// whole, or that somebody on the way has changed, is fetched over TCP.
func (e *endpoint) heard(t *try, in received, now time.Time, later *wire.Later) (out outcome, settled bool) {
	if in.truncated || in.recased {
		if out = e.fetch(t, &in, now, later); out.err == nil {
			return outcome{}, false
		}
		e.outstanding.Add(-1)
		return out, true
	}
	e.outstanding.Add(-1)
	if in.err != nil {
		return e.failed(t, in.err, now), true
	}
	return e.answered(t, in.m, now), true
}

// fetch sends a try over TCP after what came over UDP. The time that it took is that of UDP.
func (e *endpoint) fetch(t *try, in *received, now time.Time, later *wire.Later) outcome {
	t.rtt = max(now.Sub(t.began), 1) // 0: it has not been heard
	t.recased = in.recased
	if in.truncated {
		e.count.truncated.Add(1)
	} else {
		e.count.failures[CauseMismatch].Add(1)
	}
	e.mu.Lock()
	hopeless := e.manners.noTCP.holds(now)
	e.mu.Unlock()
	if hopeless {
		return e.failed(t, errNoTCP, now)
	}
	t.mixed = false // nobody forges an answer on a connection by guessing
	t.over = e.second
	if err := t.over.carry(t, later); err != nil {
		return e.failed(t, err, now)
	}
	return outcome{}
}

// answered books an answer.
func (e *endpoint) answered(t *try, m *wire.Message, now time.Time) outcome {
	rcode := m.Rcode()
	switch {
	case rcode != wire.RcodeSuccess && rcode != wire.RcodeNXDomain:
		return e.refused(t, now, outcome{cause: rcodeCause(rcode), rcode: rcode, edns: m.HasOPT(), err: errRcode})
	case m.Lame():
		return e.refused(t, now, outcome{cause: CauseLame, rcode: wire.RcodeServFail, edns: true, err: errLame})
	}
	rtt := t.rtt
	if rtt == 0 {
		rtt = now.Sub(t.began)
	}
	e.count.took(rtt)
	if t.number > 0 {
		e.count.won.Add(1)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.aliveLocked()
	e.good = t.began.Add(rtt)
	e.latency.measured(rtt, t.stale)
	e.manners.answered(t, now)
	return outcome{}
}

// refused books an answer that helps nobody. It is no measure of speed: a server that refuses all is quick at it.
func (e *endpoint) refused(t *try, now time.Time, out outcome) outcome {
	e.count.failures[out.cause].Add(1)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.aliveLocked()
	e.manners.refused(now, wire.QueryType(t.query), out.cause)
	return out
}

// failed books that a try ended with an error.
func (e *endpoint) failed(t *try, err error, now time.Time) outcome {
	cause := errorCause(err)
	if cause != CauseMalformed && (cause != CauseTimeout || !t.blamed) { // those are counted already
		e.count.failures[cause].Add(1)
	}
	out := outcome{cause: cause, err: err}
	if cause == CauseLimit {
		return out
	}
	e.fault.Store(uint32(out.reason()))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fellShortLocked(t, now)
	return out
}

// fellShortLocked takes note that a try ended in silence or an error of the network. An upstream that has answered over
// UDP is well, whatever became of its connections.
func (e *endpoint) fellShortLocked(t *try, now time.Time) {
	if t.rtt > 0 {
		e.manners.noTCP.shown(now, 2) // the third try then fares better
		return
	}
	e.slowLocked(t.began, now)
}

// lostPatience books that a try was silent for longer than it should. It may still be answered.
func (e *endpoint) lostPatience(t *try, now time.Time) {
	if t.blamed {
		return
	}
	t.blamed = true
	e.count.failures[CauseTimeout].Add(1)
	e.fault.Store(uint32(Timeout))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fellShortLocked(t, now)
}

// gaveUp books that nobody waits for the try any more, because another one was better or time is up. It returns what
// was wrong with a malformed answer that came for it, nil if none did.
func (e *endpoint) gaveUp(t *try, now time.Time) (malformed error) {
	malformed = t.over.drop(t)
	e.outstanding.Add(-1)
	if now.Sub(t.began) >= t.patience {
		e.lostPatience(t, now)
	}
	return malformed
}

// heardOrphan books what came for a try whose race has ended.
func (e *endpoint) heardOrphan(t *try, in received, now time.Time) {
	e.outstanding.Add(-1)
	switch {
	case in.err != nil:
		e.failed(t, in.err, now)
	case in.m != nil:
		e.answered(t, in.m, now)
	default:
		e.mu.Lock()
		defer e.mu.Unlock()
		e.aliveLocked()
	}
}

// aliveLocked notes that the upstream says something.
func (e *endpoint) aliveLocked() {
	e.failing.Store(false)
	if e.down.Swap(false) {
		e.guard.again() // it may be another one that is back
	}
	e.faults = faults{}
	e.prober.stopLocked()
}

// slowLocked makes the upstream slower after a try, begun at start, that ended in silence or a network error. Tries that
// ran side by side tell of the same fault and count once.
func (e *endpoint) slowLocked(start, now time.Time) {
	if start.Before(e.slowed) {
		return
	}
	e.latency.punished()
	e.slowed = now
	if start.Before(e.good) {
		return // it was only this query that failed
	}
	e.failing.Store(true)
	if e.faults.count(now) {
		e.down.Store(true)
	}
	e.prober.startLocked(e)
}

// faults are those in a row.
type faults struct {
	n     int
	since time.Time
}

// Upstreams that fail so often, over so long, are down: they are not asked but by a probe.
const (
	downFaults = 3
	downTime   = 300 * time.Millisecond
)

// count adds a fault, and tells whether they are too many now.
func (f *faults) count(now time.Time) (down bool) {
	if f.n == 0 {
		f.since = now
	}
	f.n++
	return f.n >= downFaults && now.Sub(f.since) >= downTime
}
