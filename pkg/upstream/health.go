// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// answered books an answer.
func (e *endpoint) recordAnswer(a *attempt, m *wire.Message, now time.Time) outcome {
	rcode := m.Rcode()
	switch {
	case rcode != wire.RcodeSuccess && rcode != wire.RcodeNXDomain:
		return e.recordBadAnswer(a, now, outcome{cause: rcodeCause(rcode), rcode: rcode, edns: m.HasOPT(), err: errRcode})
	case m.IsReferral():
		return e.recordBadAnswer(a, now, outcome{cause: CauseLame, rcode: wire.RcodeServFail, edns: true, err: errLame})
	}
	if !e.trustAD && e.network != "tls" && e.network != "https" {
		m.ClearAuthentic()
	}
	rtt := a.udpRTT
	if rtt == 0 {
		rtt = now.Sub(a.sentAt)
	}
	e.count.observeRTT(rtt)
	if a.index > 0 {
		e.count.won.Add(1)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.markAliveLocked()
	e.lastAnswer = a.sentAt.Add(rtt)
	e.latency.observe(rtt, a.latencyStale)
	e.capabilities.learnFromAnswer(a, now)
	return outcome{}
}

// refused books an answer that helps nobody. It is no measure of speed: a server that refuses all is quick at it.
func (e *endpoint) recordBadAnswer(a *attempt, now time.Time, out outcome) outcome {
	e.count.failures[out.cause].Add(1)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.markAliveLocked()
	e.capabilities.learnFromRefusal(now, wire.QueryType(a.query), out.cause)
	return out
}

// failed books that a try ended with an error.
func (e *endpoint) recordFailure(a *attempt, err error, now time.Time) outcome {
	cause := errorCause(err)
	if cause != CauseMalformed && (cause != CauseTimeout || !a.timeoutCounted) { // those are counted already
		e.count.failures[cause].Add(1)
	}
	out := outcome{cause: cause, err: err}
	if cause == CauseLimit {
		return out
	}
	e.lastReason.Store(uint32(out.reason()))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recordFaultLocked(a, now)
	return out
}

// fellShortLocked takes note that a try ended in silence or an error of the network. An upstream that has answered over
// UDP is well, whatever became of its connections.
func (e *endpoint) recordFaultLocked(a *attempt, now time.Time) {
	if a.udpRTT > 0 {
		if a.transport == e.tcpFallback { // else nobody tried
			e.capabilities.tcpRetryFailed(a, now)
		}
		return
	}
	e.penalizeLocked(a.sentAt, now)
}

// lostPatience books that a try was silent for longer than it should. It may still be answered.
func (e *endpoint) recordTimeout(a *attempt, now time.Time) {
	if a.timeoutCounted {
		return
	}
	a.timeoutCounted = true
	e.count.failures[CauseTimeout].Add(1)
	e.lastReason.Store(uint32(Timeout))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recordFaultLocked(a, now)
}

// gaveUp books that nobody waits for the try any more, because another one was better or time is up. It returns what
// was wrong with a malformed answer that came for it, nil if none did.
func (e *endpoint) cancel(a *attempt, now time.Time) (malformed error) {
	malformed = a.transport.cancel(a)
	e.release(a)
	if now.Sub(a.sentAt) >= a.timeout {
		e.recordTimeout(a, now)
	}
	return malformed
}

// heardOrphan books what came for a try whose race has ended.
func (e *endpoint) recordLateReply(a *attempt, in reply, now time.Time) {
	e.release(a)
	switch {
	case in.err != nil:
		e.recordFailure(a, in.err, now)
	case in.m != nil:
		e.recordAnswer(a, in.m, now)
	default:
		e.mu.Lock()
		defer e.mu.Unlock()
		e.markAliveLocked()
	}
}

// aliveLocked notes that the upstream says something.
func (e *endpoint) markAliveLocked() {
	e.failing.Store(false)
	if e.down.Swap(false) {
		e.loopMonitor.recheck() // it may be another one that is back
	}
	e.failureRun = failureRun{}
	e.prober.stopLocked()
}

// slowLocked makes the upstream slower after a try, begun at start, that ended in silence or a network error. Tries that
// ran side by side tell of the same fault and count once.
func (e *endpoint) penalizeLocked(start, now time.Time) {
	if start.Before(e.lastPenalty) {
		return
	}
	e.latency.penalize()
	e.lastPenalty = now
	if start.Before(e.lastAnswer) {
		return // it was only this query that failed
	}
	e.failing.Store(true)
	if e.failureRun.add(now) {
		e.down.Store(true)
	}
	e.prober.startLocked(e)
}

// faults are those in a row.
type failureRun struct {
	n     int
	since time.Time
}

// Upstreams that fail so often, over so long, are down: they are not asked but by a probe.
const (
	downFailures = 3
	downAfter    = 800 * time.Millisecond // more than what a way that has become longer takes to show that it still is one
)

// count adds a fault, and tells whether they are too many now.
func (f *failureRun) add(now time.Time) (down bool) {
	if f.n == 0 {
		f.since = now
	}
	f.n++
	return f.n >= downFailures && now.Sub(f.since) >= downAfter
}
