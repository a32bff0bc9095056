// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// recordAnswer records an answer.
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

// recordBadAnswer records an answer with a bad response code. It does not count as a latency sample: a server that
// refuses everything does so quickly.
func (e *endpoint) recordBadAnswer(a *attempt, now time.Time, out outcome) outcome {
	e.count.failures[out.cause].Add(1)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.markAliveLocked()
	e.capabilities.learnFromRefusal(now, wire.QueryType(a.query), out.cause)
	return out
}

// recordFailure records that an attempt ended with an error.
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

// recordFaultLocked records that an attempt got no answer or a network error. An upstream that answered over UDP
// stays healthy even if its TCP connections fail.
func (e *endpoint) recordFaultLocked(a *attempt, now time.Time) {
	if a.udpRTT > 0 {
		if a.transport == e.tcpFallback { // otherwise TCP was not tried
			e.capabilities.tcpRetryFailed(a, now)
		}
		return
	}
	e.penalizeLocked(a.sentAt, now)
}

// recordTimeout records that an attempt timed out. An answer may still come.
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

// cancel abandons an attempt because another one had an answer or the deadline has passed. It returns the error of a
// malformed answer that came for it, nil if there was none.
func (e *endpoint) cancel(a *attempt, now time.Time) (malformed error) {
	malformed = a.transport.cancel(a)
	e.release(a)
	if now.Sub(a.sentAt) >= a.timeout {
		e.recordTimeout(a, now)
	}
	return malformed
}

// recordLateReply records the reply to an attempt whose exchange has ended.
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

// markAliveLocked records that the upstream sends something.
func (e *endpoint) markAliveLocked() {
	e.failing.Store(false)
	if e.down.Swap(false) {
		e.loopMonitor.recheck() // the address may now belong to another server
	}
	e.failureRun = failureRun{}
	e.prober.stopLocked()
}

// penalizeLocked raises the latency after an attempt, sent at start, that got no answer or a network error. Parallel
// attempts see the same fault, which counts once.
func (e *endpoint) penalizeLocked(start, now time.Time) {
	if start.Before(e.lastPenalty) {
		return
	}
	e.latency.penalize()
	e.lastPenalty = now
	if start.Before(e.lastAnswer) {
		return // an answer came since: only this query failed
	}
	e.failing.Store(true)
	if e.failureRun.add(now) {
		e.down.Store(true)
	}
	e.prober.startLocked(e)
}

// A failureRun is a series of consecutive failures.
type failureRun struct {
	n     int
	since time.Time
}

// When an upstream counts as down. It then gets only probes.
const (
	downFailures = 3
	downAfter    = 800 * time.Millisecond // longer than a path needs to show that it has only become slower
)

// add counts a failure and reports whether the upstream is down now.
func (f *failureRun) add(now time.Time) (down bool) {
	if f.n == 0 {
		f.since = now
	}
	f.n++
	return f.n >= downFailures && now.Sub(f.since) >= downAfter
}
