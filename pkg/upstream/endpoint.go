// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/nodecache/node-cache/pkg/wire"
)

// An endpoint is one upstream: its address, its transports, and what was learned about it.
type endpoint struct {
	*common
	endpointKey
	count       counters
	primary     transport     // takes queries
	tcpFallback transport     // repeats over TCP what primary could not deliver whole; nil: none
	limiter     *rate.Limiter // nil: no limit
	outstanding atomic.Int32  // pending attempts
	failing     atomic.Bool   // the latest attempts failed
	lastReason  atomic.Uint32 // Reason of the latest failure
	down        atomic.Bool   // failing for so long that it gets only probes
	loopMonitor *loopMonitor  // nil: no loop detection

	mu           sync.Mutex // guards the fields below
	latency      latency
	lastQuery    time.Time
	lastPenalty  time.Time // when a failure last counted
	lastAnswer   time.Time // when an answer last came
	failureRun   failureRun
	capabilities capabilities
	prober       prober
}

func newEndpoint(c *common, k endpointKey) *endpoint {
	e := &endpoint{common: c, endpointKey: k}
	switch k.network {
	case "udp":
		e.primary, e.tcpFallback = newSocketPool(c, k.addr, &e.count), newConnPool(c, k.target("udp"), &e.count)
	case "https":
		e.primary = newHTTPSPool(c, k.target(k.network), &e.count)
	default:
		e.primary = newConnPool(c, k.target(k.network), &e.count)
	}
	if c.loopDetector != nil {
		e.loopMonitor = &loopMonitor{
			common: c, detector: c.loopDetector, zone: c.zone, network: k.network, addr: k.addr,
			send: e.sendLoopProbe,
		}
	}
	if c.rate > 0 {
		e.limiter = rate.NewLimiter(rate.Limit(c.rate), max(int(c.rate/10), 1))
	}
	return e
}

// transports lists the endpoint's transports.
func (e *endpoint) transports() []transport {
	if e.tcpFallback == nil {
		return []transport{e.primary}
	}
	return []transport{e.primary, e.tcpFallback}
}

// shutdown refuses new queries.
func (e *endpoint) shutdown() {
	e.stopProbes()
	for _, t := range e.transports() {
		t.shutdown()
	}
}

// closeIdle keeps nothing open without a query from now on.
func (e *endpoint) closeIdle() {
	e.stopProbes()
	for _, t := range e.transports() {
		t.closeIdle()
	}
}

// wait returns when, after shutdown or closeIdle, nothing is open.
func (e *endpoint) wait() {
	for _, t := range e.transports() {
		t.wait()
	}
}

// openCount counts open sockets and connections.
func (e *endpoint) openCount() int {
	n := 0
	for _, t := range e.transports() {
		now, _ := t.openCount()
		n += now
	}
	return n
}

func (e *endpoint) stopProbes() {
	e.loopMonitor.stop()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.prober.stopLocked()
	e.prober.stopped = true
}

// healthy reports whether the upstream is expected to answer a query.
func (e *endpoint) healthy() bool { return !e.failing.Load() && !e.loopMonitor.looped() }

// send starts an attempt. An error is final.
func (e *endpoint) send(a *attempt, batch *wire.SendBatch) error {
	if e.limiter != nil && !e.limiter.AllowN(a.sentAt, 1) {
		return errRate
	}
	e.count.requests.Add(1)
	e.loopMonitor.onQuery(a.sentAt)
	e.prepare(a)
	a.transport = e.primary
	if err := a.transport.send(a, batch); err != nil {
		return err
	}
	e.outstanding.Add(1)
	return nil
}

// prepare adapts an attempt to the upstream's capabilities and records the time of the query.
func (e *endpoint) prepare(a *attempt) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a.latencyStale = decaySteps(a.sentAt, e.lastQuery) > 0
	if a.sentAt.After(e.lastQuery) {
		e.lastQuery = a.sentAt
	}
	e.capabilities.apply(a, e.network == "udp", e.randomCase)
}

// handleReply processes the reply to an attempt. final is false if the attempt goes on: an answer that was truncated
// over UDP, or that came in another case, is requested again over TCP.
func (e *endpoint) handleReply(a *attempt, in reply, now time.Time, batch *wire.SendBatch) (out outcome, final bool) {
	if in.truncated || in.caseChanged {
		if out = e.retryOverTCP(a, &in, now, batch); out.err == nil {
			return outcome{}, false
		}
		e.release(a)
		return out, true
	}
	e.release(a)
	switch {
	case in.err != nil:
		return e.recordFailure(a, in.err, now), true
	case in.headerOnlyRcode != 0:
		a.exchange.headerOnly = true
		return e.recordBadAnswer(a, now, outcome{cause: rcodeCause(in.headerOnlyRcode), rcode: in.headerOnlyRcode, err: errRcode}), true
	}
	return e.recordAnswer(a, in.m, now), true
}

// release ends the accounting of a pending attempt.
func (e *endpoint) release(a *attempt) {
	e.outstanding.Add(-1)
	if a.tcpRetry {
		a.tcpRetry = false
		e.mu.Lock()
		defer e.mu.Unlock()
		e.capabilities.tcpRetries--
	}
}

// retryOverTCP repeats an attempt over TCP. Its round trip time is that of UDP.
func (e *endpoint) retryOverTCP(a *attempt, in *reply, now time.Time, batch *wire.SendBatch) outcome {
	a.udpRTT = max(now.Sub(a.sentAt), 1) // 0 means no UDP answer
	a.caseChanged = in.caseChanged
	if in.truncated {
		e.count.truncated.Add(1)
	} else {
		e.count.failures[CauseMismatch].Add(1)
	}
	e.mu.Lock()
	a.tcpRetry = e.capabilities.allowTCPRetry(now)
	e.mu.Unlock()
	if !a.tcpRetry {
		return e.recordFailure(a, errNoTCP, now)
	}
	a.transport = e.tcpFallback
	if err := a.transport.send(a, batch); err != nil {
		return e.recordFailure(a, err, now)
	}
	return outcome{}
}
