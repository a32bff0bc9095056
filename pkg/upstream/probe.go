// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A failing upstream is probed, so that no client query has to find out that it has recovered.
const (
	firstProbeDelay = 200 * time.Millisecond // after the failure
	probeInterval   = 500 * time.Millisecond // between probes
	slowProbeEvery  = 10                     // probes, one of which is slow
)

// The probes. A quick probe is answered before the next one is sent, or abandoned with its socket or connection. It
// detects recovery soon. That is too short for an upstream with a long round trip or slow handshakes, so a slow probe
// may take until the next slow one. It asks another question, as some filters drop that of the quick one.
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

// A prober sends probes while its upstream fails. endpoint.mu guards it.
type prober struct {
	timer   *time.Timer // nil until first needed
	running bool
	stopped bool     // the upstream was removed
	sent    int      // probes since the start
	quick   *attempt // pending; nil: none
	slow    *attempt // pending; nil: none
}

// startLocked starts probing unless it is running.
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

// stopLocked stops probing.
func (p *prober) stopLocked() {
	if p.running {
		p.running = false
		p.timer.Stop()
	}
	cancelProbe(&p.quick)
	cancelProbe(&p.slow)
}

// cancelProbe cancels a probe, if there is one.
func cancelProbe(probe **attempt) {
	if a := *probe; a != nil {
		_ = a.transport.cancel(a)
		*probe = nil
	}
}

// probe sends the next probe and cancels the previous one of its kind.
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
	if a.transport.send(a, &batch) == nil { // on error the next probe may succeed
		*kind = a
	}
}

// handleProbeReply handles the reply to a probe.
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
	e.latency.srtt = max(now.Sub(a.sentAt), 1) // values and penalties from before the failure no longer apply
	e.markAliveLocked()
}

// loopProbeReplyTime is how long the answer to a loop probe is still recognized.
const loopProbeReplyTime = 2 * time.Second

// sendLoopProbe sends a query and ignores its answer.
func (e *endpoint) sendLoopProbe(query []byte) {
	var batch wire.SendBatch
	defer batch.Flush()
	a := &attempt{query: query, transport: e.primary, sentAt: e.now(), endpoint: e, onReply: func(reply, *wire.SendBatch) {}}
	if a.transport.send(a, &batch) == nil {
		time.AfterFunc(loopProbeReplyTime, func() { _ = a.transport.cancel(a) })
	}
}
