// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// An upstream that fails is asked by a probe now and then, so that no client waits to find out that it is back.
const (
	firstProbeDelay = 200 * time.Millisecond // after the failure
	probeInterval   = 500 * time.Millisecond // and after a probe
	slowProbeEvery  = 10                     // probes, of which one is slow
)

// The probes. Quick ones find an upstream soon after its return, and have until the next one to be answered: what they
// waited on is left with them, and the next is on a fresh socket or connection. That is too short for an upstream that is
// back on a longer way, or has handshakes to make on a long one. A slow probe has until the next slow one, and asks
// something else, as there are filters that drop the quick one's question.
const (
	// quickProbe asks for the root's name servers, which every server has something to say about; what it says is of no
	// matter.
	quickProbe = "\x00\x00\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x00\x00\x02\x00\x01" + probeOPT
	// probeOPT is the OPT record that queries of clients have too: who does not answer those is not to be taken for well.
	probeOPT = "\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00"
	// slowProbe asks for the root's SOA record.
	slowProbe = "\x00\x00\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x00\x00\x06\x00\x01" + probeOPT
)

// A prober sends probes while its upstream fails. It is guarded by endpoint.mu.
type prober struct {
	timer   *time.Timer // nil until first needed
	running bool
	stopped bool     // the upstream has left
	sent    int      // probes, since they began
	quick   *attempt // under way; nil: none
	slow    *attempt // likewise
}

// startLocked begins to probe, unless that goes on already.
func (p *prober) startLocked(e *endpoint) {
	if p.running || p.stopped {
		return
	}
	p.running, p.sent = true, 0
	if p.timer == nil {
		p.timer = time.AfterFunc(firstProbeDelay, e.probe)
		return
	}
	p.timer.Reset(firstProbeDelay)
}

// stopLocked ends it.
func (p *prober) stopLocked() {
	if p.running {
		p.running = false
		p.timer.Stop()
	}
	cancelProbe(&p.quick)
	cancelProbe(&p.slow)
}

// giveUpProbe ends a probe, if there is one.
func cancelProbe(probe **attempt) {
	if a := *probe; a != nil {
		_ = a.transport.cancel(a)
		*probe = nil
	}
}

// probe sends the next probe, in place of the last one of its kind.
func (e *endpoint) probe() {
	defer e.recoverPanic(context.Background(), func() {})
	var batch wire.SendBatch
	defer batch.Flush()
	e.mu.Lock()
	defer e.mu.Unlock()
	p := &e.prober
	if !p.running {
		return
	}
	p.timer.Reset(probeInterval)
	kind, query := &p.quick, quickProbe
	if p.sent%slowProbeEvery == 0 {
		kind, query = &p.slow, slowProbe
	}
	p.sent++
	cancelProbe(kind)
	a := &attempt{query: []byte(query), transport: e.primary, sentAt: e.now(), endpoint: e}
	a.onReply = func(r reply, _ *wire.SendBatch) { e.handleProbeReply(a, r) }
	e.count.probes.Add(1)
	if a.transport.send(a, &batch) == nil { // else the next one may fare better
		*kind = a
	}
}

// probed takes what came for a probe.
func (e *endpoint) handleProbeReply(a *attempt, r reply) {
	now := e.now()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch a {
	case e.prober.quick:
		e.prober.quick = nil
	case e.prober.slow:
		e.prober.slow = nil
	default:
		return
	}
	if r.err != nil {
		return
	}
	e.lastAnswer = now
	e.latency.srtt = max(now.Sub(a.sentAt), 1) // what was known before it failed, and the penalties, are of no worth
	e.markAliveLocked()
}

// aloneTime is how long an answer to a query of our own that nobody waits for is still taken for one.
const loopProbeReplyTime = 2 * time.Second

// sendAlone sends a query whose answer is of no interest.
func (e *endpoint) sendLoopProbe(query []byte) {
	var batch wire.SendBatch
	defer batch.Flush()
	a := &attempt{query: query, transport: e.primary, sentAt: e.now(), endpoint: e, onReply: func(reply, *wire.SendBatch) {}}
	if a.transport.send(a, &batch) == nil {
		time.AfterFunc(loopProbeReplyTime, func() { _ = a.transport.cancel(a) })
	}
}
