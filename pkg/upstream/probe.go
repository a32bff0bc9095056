// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// An upstream that fails is asked by a probe now and then, so that no client waits to find out that it is back.
const (
	firstProbe = 200 * time.Millisecond // after the failure
	probeEvery = 500 * time.Millisecond // and after a probe
	slowEvery  = 10                     // probes, of which one is slow
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
	gone    bool // the upstream has left
	sent    int  // probes, since they began
	quick   *try // under way; nil: none
	slow    *try // likewise
}

// startLocked begins to probe, unless that goes on already.
func (p *prober) startLocked(e *endpoint) {
	if p.running || p.gone {
		return
	}
	p.running, p.sent = true, 0
	if p.timer == nil {
		p.timer = time.AfterFunc(firstProbe, e.probe)
		return
	}
	p.timer.Reset(firstProbe)
}

// stopLocked ends it.
func (p *prober) stopLocked() {
	if p.running {
		p.running = false
		p.timer.Stop()
	}
	giveUpProbe(&p.quick)
	giveUpProbe(&p.slow)
}

// giveUpProbe ends a probe, if there is one.
func giveUpProbe(probe **try) {
	if t := *probe; t != nil {
		_ = t.over.drop(t)
		*probe = nil
	}
}

// probe sends the next probe, in place of the last one of its kind.
func (e *endpoint) probe() {
	defer e.recovered(context.Background(), func() {})
	var batch wire.SendBatch
	defer batch.Flush()
	e.mu.Lock()
	defer e.mu.Unlock()
	p := &e.prober
	if !p.running {
		return
	}
	p.timer.Reset(probeEvery)
	kind, query := &p.quick, quickProbe
	if p.sent%slowEvery == 0 {
		kind, query = &p.slow, slowProbe
	}
	p.sent++
	giveUpProbe(kind)
	t := &try{query: []byte(query), over: e.first, began: e.now(), ep: e}
	t.report = func(r received, _ *wire.SendBatch) { e.probed(t, r) }
	e.count.probes.Add(1)
	if t.over.carry(t, &batch) == nil { // else the next one may fare better
		*kind = t
	}
}

// probed takes what came for a probe.
func (e *endpoint) probed(t *try, r received) {
	now := e.now()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch t {
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
	e.good = now
	e.latency.srtt = max(now.Sub(t.began), 1) // what was known before it failed, and the penalties, are of no worth
	e.aliveLocked()
}

// aloneTime is how long an answer to a query of our own that nobody waits for is still taken for one.
const aloneTime = 2 * time.Second

// sendAlone sends a query whose answer is of no interest.
func (e *endpoint) sendAlone(query []byte) {
	var batch wire.SendBatch
	defer batch.Flush()
	t := &try{query: query, over: e.first, began: e.now(), ep: e, report: func(received, *wire.SendBatch) {}}
	if t.over.carry(t, &batch) == nil {
		time.AfterFunc(aloneTime, func() { _ = t.over.drop(t) })
	}
}
