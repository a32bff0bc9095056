// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// answered books an answer.
func (e *endpoint) answered(t *try, m *wire.Message, now time.Time) outcome {
	rcode := m.Rcode()
	switch {
	case rcode != wire.RcodeSuccess && rcode != wire.RcodeNXDomain:
		return e.refused(t, now, outcome{cause: rcodeCause(rcode), rcode: rcode, edns: m.HasOPT(), err: errRcode})
	case m.IsReferral():
		return e.refused(t, now, outcome{cause: CauseLame, rcode: wire.RcodeServFail, edns: true, err: errLame})
	}
	if !e.trustAD && e.network != "tls" && e.network != "https" {
		m.ClearAuthentic()
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
		if t.over == e.second { // else nobody tried
			e.manners.fetchFailed(t, now)
		}
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
	e.settled(t)
	if now.Sub(t.began) >= t.patience {
		e.lostPatience(t, now)
	}
	return malformed
}

// heardOrphan books what came for a try whose race has ended.
func (e *endpoint) heardOrphan(t *try, in received, now time.Time) {
	e.settled(t)
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
	downTime   = 800 * time.Millisecond // more than what a way that has become longer takes to show that it still is one
)

// count adds a fault, and tells whether they are too many now.
func (f *faults) count(now time.Time) (down bool) {
	if f.n == 0 {
		f.since = now
	}
	f.n++
	return f.n >= downFaults && now.Sub(f.since) >= downTime
}
