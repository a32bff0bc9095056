// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/nodecache/node-cache/pkg/wire"
)

// An endpoint is one upstream: its address, its transports, and what was learned about it.
type endpoint struct {
	*common
	Target
	label       string // such as udp://192.0.2.1:53
	count       counters
	sockets     *socketPool   // takes queries over UDP; nil: not a UDP upstream
	conns       *connPool     // takes queries over TCP, TLS or HTTPS; of a UDP upstream, those that go over TCP
	primary     transport     // sockets or conns
	limiter     *rate.Limiter // nil: no limit
	outstanding atomic.Int32  // pending attempts
	failing     atomic.Bool   // the latest attempts failed
	lastCause   atomic.Uint32 // Cause of the latest attempt without an answer
	down        atomic.Bool   // failing for so long that it gets only probes
	loopMonitor *loopMonitor

	mu           sync.Mutex // guards the fields below
	latency      latency
	lastQuery    time.Time
	lastPenalty  time.Time // when a failure last counted
	lastAnswer   time.Time // when an answer last came
	failures     int       // consecutive failures
	failingSince time.Time // when the first of these failures was
	errorRun     errorRun  // the latest answers, if all were errors
	capabilities capabilities
	probeTimer   *time.Timer // nil until first needed
	probing      bool
	probesEnded  bool        // the upstream was removed
	probesSent   int         // probes sent since it began to fail
	probes       [2]*attempt // the pending quick probe and slow probe; nil: none
}

func newEndpoint(c *common, t Target) *endpoint {
	e := &endpoint{common: c, Target: t, label: t.Network + "://" + t.Addr.String()}
	e.lastCause.Store(uint32(CauseNetwork)) // of an upstream that is looped and never failed
	e.conns = newConns(c, t, &e.count)
	e.primary = e.conns
	if t.Network == "udp" {
		e.sockets = newSocketPool(c, t.Addr, &e.count)
		e.primary = e.sockets
	}
	e.loopMonitor = newLoopMonitor(c, e.label, e.sendLoopProbe)
	if c.Rate > 0 {
		e.limiter = rate.NewLimiter(rate.Limit(c.Rate), max(int(c.Rate/10), 1))
	}
	return e
}

// newConns makes the connections of a target.
func newConns(c *common, t Target, count *counters) *connPool {
	if t.Network == "https" {
		return newHTTPSPool(c, t, count)
	}
	return newStreamPool(c, t, count)
}

// transports lists the endpoint's transports.
func (e *endpoint) transports() []transport {
	if e.sockets == nil {
		return []transport{e.conns}
	}
	return []transport{e.sockets, e.conns}
}

// closeIdle ends probing, closes each socket and connection once it has no query, and refuses new queries if refuse is set.
func (e *endpoint) closeIdle(refuse bool) {
	e.stopProbes()
	for _, t := range e.transports() {
		t.closeIdle(refuse)
	}
}

// wait returns when, after closeIdle, nothing is open.
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
	e.stopProbingLocked()
	e.probesEnded = true
}

// healthy reports whether the upstream is expected to answer a query.
func (e *endpoint) healthy() bool { return !e.failing.Load() && !e.loopMonitor.looping.Load() }

// send starts an attempt. If it returns an error, the attempt has ended.
func (e *endpoint) send(a *attempt, batch *wire.SendBatch) error {
	if e.limiter != nil && !e.limiter.AllowN(a.sentAt, 1) {
		return errRate
	}
	e.count.requests.Add(1)
	if a.sentAt.UnixNano() >= e.loopMonitor.nextProbe.Load() {
		e.loopMonitor.probeDue(a.sentAt)
	}
	e.prepare(a)
	if tap := e.Tap.Load(); tap != nil {
		tap.ForwarderQuery(e.network(a.overTCP), e.Addr, a.sentAt, a.query)
	}
	if err := e.transmit(a, batch); err != nil {
		return err
	}
	e.outstanding.Add(1)
	return nil
}

// network returns the network of a query, which goes over TCP to a UDP upstream if overTCP is set.
func (e *endpoint) network(overTCP bool) string {
	if overTCP {
		return "tcp"
	}
	return e.Network
}

// transmit passes the attempt to its transport. An attempt to a UDP upstream that should go over TCP and cannot goes over UDP.
func (e *endpoint) transmit(a *attempt, batch *wire.SendBatch) error {
	if a.overTCP {
		a.transport = e.conns
		if a.transport.send(a, batch) == nil {
			return nil
		}
		a.leaveTCP()
	}
	a.transport = e.primary
	return a.transport.send(a, batch)
}

// prepare adapts an attempt to the upstream's capabilities and records the time of the query.
func (e *endpoint) prepare(a *attempt) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a.latencyStale = a.sentAt.Sub(e.lastQuery) >= staleAfter
	if a.sentAt.After(e.lastQuery) {
		e.lastQuery = a.sentAt
	}
	e.capabilities.apply(a, e.sockets != nil, e.RandomCase)
}

// acceptReply processes the reply to an attempt. final is false if the attempt goes on: it asks again after an answer
// that was truncated over UDP, or one to the random case that is not believed (case.go).
func (e *endpoint) acceptReply(a *attempt, in reply, now time.Time, batch *wire.SendBatch) (out Failure, final bool) {
	if out, final = e.askAgain(a, &in, now, batch); !final {
		return out, false
	}
	e.release(a)
	if out.Err != nil {
		return out, true
	}
	if tap := e.Tap.Load(); tap != nil && in.m != nil {
		tap.ForwarderResponse(e.network(a.transport != e.primary), e.Addr, a.sentAt, now, a.query, in.m.Raw)
	}
	switch {
	case in.err != nil:
		return e.recordFailure(a, in.err, now), true
	case in.headerOnlyRcode != 0:
		return e.recordBadAnswer(a, now, Failure{Rcode: in.headerOnlyRcode, Err: errRcode, cause: rcodeCause(in.headerOnlyRcode), headerOnly: true}), true
	}
	return e.recordAnswer(a, in.m, now), true
}

// askAgain repeats an attempt after a truncated answer, an error over TCP, or a doubted answer to the random case. final
// is false if the attempt goes on. Otherwise out.Err says why it could not be repeated; nil: the reply stands.
func (e *endpoint) askAgain(a *attempt, in *reply, now time.Time, batch *wire.SendBatch) (out Failure, final bool) {
	if in.truncated {
		out = e.retryOverTCP(a, now, batch)
		return out, out.Err != nil
	}
	if in.err != nil && a.overTCP { // TCP failed: ask over UDP
		if errorCause(in.err) != CauseLimit {
			e.mu.Lock()
			e.capabilities.tcpFailed(now)
			e.mu.Unlock()
		}
		a.leaveTCP()
	} else {
		if a.randomCase {
			a.doubt, a.doubted = doubtReply(in)
		}
		if !a.randomCase || a.doubt == noDoubt {
			return Failure{}, true
		}
		if out = e.askInLowerCase(a, now); out.Err != nil {
			return out, true
		}
	}
	if err := e.transmit(a, batch); err != nil {
		return e.recordFailure(a, err, now), true
	}
	return Failure{}, false
}

// askInLowerCase prepares an attempt whose answer is not believed for the same query in lower case.
func (e *endpoint) askInLowerCase(a *attempt, now time.Time) Failure {
	a.udpRTT = max(now.Sub(a.sentAt), 1) // 0 means no UDP answer
	if a.doubt == doubtCase {
		e.count.failures[CauseMismatch].Add(1)
	}
	if e.limiter != nil && !e.limiter.AllowN(now, 1) {
		return e.recordFailure(a, errRate, now)
	}
	e.count.caseChecks.Add(1)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.capabilities.caseMemory.askAgain(a, e.capabilities.noTCP.active(now))
	return Failure{}
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
func (e *endpoint) retryOverTCP(a *attempt, now time.Time, batch *wire.SendBatch) Failure {
	if a.udpRTT == 0 {
		a.udpRTT = max(now.Sub(a.sentAt), 1) // 0 means no UDP answer
	}
	e.count.truncated.Add(1)
	e.mu.Lock()
	a.tcpRetry = e.capabilities.allowTCPRetry(now)
	e.mu.Unlock()
	if !a.tcpRetry {
		return e.recordFailure(a, errNoTCP, now)
	}
	a.transport = e.conns
	if err := a.transport.send(a, batch); err != nil {
		return e.recordFailure(a, err, now)
	}
	return Failure{}
}

// recordAnswer records an answer. The result says why the answer is not good; its Err is nil if it is.
func (e *endpoint) recordAnswer(a *attempt, m *wire.Message, now time.Time) Failure {
	rcode := m.Rcode()
	switch {
	case rcode != wire.RcodeSuccess && rcode != wire.RcodeNXDomain:
		return e.recordBadAnswer(a, now, Failure{Rcode: rcode, Err: errRcode, cause: rcodeCause(rcode), edns: m.HasOPT()})
	case m.IsReferral():
		return e.recordBadAnswer(a, now, Failure{Rcode: wire.RcodeServFail, Err: errLame, cause: CauseLame, edns: true})
	}
	if !e.TrustAD && e.Network != "tls" && e.Network != "https" {
		m.ClearAuthentic()
	}
	rtt := a.udpRTT
	if rtt == 0 {
		rtt = now.Sub(a.sentAt)
	}
	e.count.observeRTT(rtt)
	if a.repeats {
		e.count.won.Add(1)
	}
	if e.learnFromAnswer(a, m, rtt, now) {
		e.Log.Warn("upstream compares names byte by byte", "upstream", e.Addr, "name", string(wire.AppendText(nil, wire.QueryName(a.query))))
	}
	return Failure{}
}

// learnFromAnswer updates what is known of the upstream. sensitive says that the upstream is now known to compare names
// byte by byte, and was not before.
func (e *endpoint) learnFromAnswer(a *attempt, m *wire.Message, rtt time.Duration, now time.Time) (sensitive bool) {
	overTCP := a.transport != e.primary
	e.mu.Lock()
	defer e.mu.Unlock()
	e.markAliveLocked()
	e.errorRun = errorRun{}
	if a.udpRTT > 0 || !overTCP { // a round trip over TCP is longer and does not count
		e.lastAnswer = a.sentAt.Add(rtt)
		e.latency.observe(rtt, a.latencyStale)
		if !a.nameSlow {
			e.latency.record(rtt, now)
		}
	}
	e.capabilities.learnFromAnswer(a, overTCP, now)
	return e.RandomCase && e.capabilities.caseMemory.learn(a, kindOf(m), now)
}

// recordBadAnswer records an answer with a bad response code. It does not count as a latency sample: a server that
// refuses everything does so quickly.
func (e *endpoint) recordBadAnswer(a *attempt, now time.Time, out Failure) Failure {
	out.Reason = Rcode
	e.count.failures[out.cause].Add(1)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.markAliveLocked()
	e.errorRun.add(wire.QueryName(a.query), out.cause, now)
	e.capabilities.learnFromRefusal(now, wire.QueryType(a.query), out.cause)
	return out
}

// recordFailure records that an attempt ended with an error.
func (e *endpoint) recordFailure(a *attempt, err error, now time.Time) Failure {
	out := failureOf(err)
	if out.cause != CauseMalformed && (out.cause != CauseTimeout || !a.timeoutCounted) { // the transport counts malformed answers
		e.count.failures[out.cause].Add(1)
	}
	if out.cause == CauseLimit {
		return out
	}
	e.lastCause.Store(uint32(out.cause))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recordFaultLocked(a, now)
	return out
}

// recordFaultLocked records that an attempt got no answer or a network error. An upstream that answered over UDP
// stays healthy even if its TCP connections fail.
func (e *endpoint) recordFaultLocked(a *attempt, now time.Time) {
	switch {
	case a.transport != e.primary: // TCP of a UDP upstream: UDP may still work
		if a.udpRTT > 0 || e.lastAnswer.After(a.sentAt) {
			e.capabilities.tcpFailed(now)
		}
	case a.udpRTT == 0:
		e.penalizeLocked(a.sentAt, now)
	}
}

// recordTimeout records that an attempt timed out. An answer may still come.
func (e *endpoint) recordTimeout(a *attempt, now time.Time) {
	if a.timeoutCounted {
		return
	}
	a.timeoutCounted = true
	e.count.failures[CauseTimeout].Add(1)
	e.lastCause.Store(uint32(CauseTimeout))
	onOld := e.conns.timedOut(a)
	if onOld && a.transport != e.primary {
		return // the connection may be broken, but it was open, so the upstream accepts TCP
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recordFaultLocked(a, now)
}

// cancel abandons a pending attempt. It records a timeout if the attempt's time is up. It returns the error of a malformed
// answer to the attempt, or nil.
func (e *endpoint) cancel(a *attempt, now time.Time) (malformed error) {
	if now.Sub(a.sentAt) >= a.timeout {
		e.recordTimeout(a, now)
		if a.beaten {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.latency.record(lostSample, now)
		}
	}
	malformed = a.transport.cancel(a)
	e.release(a)
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
	e.failures = 0
	e.stopProbingLocked()
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
	if e.failures == 0 {
		e.failingSince = now
	}
	if e.failures++; e.failures >= downFailures && now.Sub(e.failingSince) >= downAfter {
		e.down.Store(true)
	}
	e.startProbingLocked()
}

// When an upstream counts as down. It then gets only probes.
const (
	downFailures = 3                      // consecutive failures, over downAfter or longer
	downAfter    = 800 * time.Millisecond // long enough for late answers, which show that a path has only become slower
)

// A failing upstream is probed, so that no client query has to find out that it has recovered.
const (
	firstProbeDelay = 200 * time.Millisecond // from the failure to the first probe
	probeInterval   = 500 * time.Millisecond // between probes
	slowProbeEvery  = 10                     // one of so many probes is slow, beginning with the first
)

// The probes. A quick probe is abandoned when the next quick one is sent, mostly after probeInterval. That is too short
// for an upstream with a long round trip or slow handshakes. A slow probe may take until the next slow one. It asks
// another question than quick probes, as some filters drop theirs.
const (
	// quickProbe asks for the name servers of the root, which every server answers in some way. The answer itself
	// does not matter.
	quickProbe = "\x00\x00\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x00\x00\x02\x00\x01" + probeOPT
	// probeOPT is the OPT record that client queries have too: an upstream that does not answer those has not
	// recovered.
	probeOPT = "\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00"
	// slowProbe asks for the SOA record of the root.
	slowProbe = "\x00\x00\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x00\x00\x06\x00\x01" + probeOPT
)

// startProbingLocked starts probing, unless it has started already or the upstream was removed.
func (e *endpoint) startProbingLocked() {
	if e.probing || e.probesEnded {
		return
	}
	e.probing, e.probesSent = true, 0
	if e.probeTimer == nil {
		e.probeTimer = time.AfterFunc(firstProbeDelay, e.probe)
		return
	}
	e.probeTimer.Reset(firstProbeDelay)
}

// stopProbingLocked stops probing.
func (e *endpoint) stopProbingLocked() {
	if e.probing {
		e.probing = false
		e.probeTimer.Stop()
	}
	for i := range e.probes {
		e.cancelProbeLocked(i)
	}
}

// cancelProbeLocked cancels the pending quick probe (0) or slow probe (1), if there is one.
func (e *endpoint) cancelProbeLocked(i int) {
	if a := e.probes[i]; a != nil {
		_ = a.transport.cancel(a)
		e.probes[i] = nil
	}
}

// probe sends the next probe and cancels the previous one of its kind.
func (e *endpoint) probe() {
	defer e.recoverPanic(context.Background(), func() {})
	var batch wire.SendBatch
	defer batch.Flush()
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.probing {
		return
	}
	e.probeTimer.Reset(probeInterval)
	kind, query := 0, quickProbe
	if e.probesSent%slowProbeEvery == 0 {
		kind, query = 1, slowProbe
	}
	e.probesSent++
	e.cancelProbeLocked(kind)
	a := &attempt{query: []byte(query), transport: e.primary, sentAt: e.Now(), receiver: e, index: kind}
	e.count.probes.Add(1)
	if a.transport.send(a, &batch) == nil { // on error the next probe may succeed
		e.probes[kind] = a
	}
}

// handleReply handles the reply to a probe. It ignores the reply to a loop probe.
func (e *endpoint) handleReply(a *attempt, r reply, _ *wire.SendBatch) {
	now := e.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.probes[a.index] != a {
		return
	}
	e.probes[a.index] = nil
	if r.err != nil {
		return
	}
	e.lastAnswer = now
	e.latency.srtt = max(now.Sub(a.sentAt), 1) // values and penalties from before the failure no longer apply
	e.latency.record(e.latency.srtt, now)
	e.markAliveLocked()
}

// loopProbeReplyTime is how long a loop probe stays pending. An answer that comes later counts as a mismatch.
const loopProbeReplyTime = 2 * time.Second

// sendLoopProbe sends a query and ignores its answer.
func (e *endpoint) sendLoopProbe(query []byte) {
	var batch wire.SendBatch
	defer batch.Flush()
	a := &attempt{query: query, transport: e.primary, sentAt: e.Now(), receiver: e}
	if a.transport.send(a, &batch) == nil {
		time.AfterFunc(loopProbeReplyTime, func() { _ = a.transport.cancel(a) })
	}
}

// observeRTT adds the round trip of a good answer to the histogram.
func (c *counters) observeRTT(rtt time.Duration) {
	i, _ := slices.BinarySearch(rttBounds[:], rtt)
	c.rtts[i].Add(1)
	c.rttSum.Add(int64(rtt))
}

func (e *endpoint) stats() ServerStats {
	s := ServerStats{
		Network: e.Network, Name: e.Name, Addr: e.Addr, Far: e.far,
		Requests: e.count.requests.Load(), Truncated: e.count.truncated.Load(), CaseChecks: e.count.caseChecks.Load(),
		Hedged: e.count.hedged.Load(), Won: e.count.won.Load(), Explored: e.count.explored.Load(), Probes: e.count.probes.Load(),
		RTTSum: time.Duration(e.count.rttSum.Load()), Outstanding: int(e.outstanding.Load()),
		Failing: e.failing.Load(), Down: e.down.Load(), Looped: e.loopMonitor.looping.Load(),
		Cause: Cause(e.lastCause.Load()), //nolint:gosec // it was stored from a Cause
	}
	for i := range s.RTTs {
		s.RTTs[i] = e.count.rtts[i].Load()
	}
	for cause := range s.Failures {
		s.Failures[cause] = e.count.failures[cause].Load()
	}
	if e.sockets != nil {
		s.Sockets, _ = e.sockets.openCount()
	}
	s.Open, s.Opened = e.conns.openCount()
	s.Resumed = e.count.resumed.Load()
	if err := e.conns.lastError(); err != nil {
		s.LastError = err.Error()
	}
	now := e.Now()
	e.mu.Lock()
	s.SRTT, s.P95 = e.latency.answers, e.latency.p95
	if s.Erring = e.errorRun.shows(now); s.Erring {
		s.Cause = e.errorRun.cause
	}
	s.Limitations = e.capabilities.limitations(now)
	e.mu.Unlock()
	return s
}
