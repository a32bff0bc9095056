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
	probeEvery = 500 * time.Millisecond // and after a probe, which has so long to be answered
)

// probeQuery asks for the root's name servers, which every server has something to say about; what it says is of no
// matter.
const probeQuery = "\x00\x00\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x01"

// A prober sends probes while its upstream fails. It is guarded by endpoint.mu.
type prober struct {
	timer   *time.Timer // nil until first needed
	running bool
	gone    bool // the upstream has left
	try     *try // under way; nil: none
}

// startLocked begins to probe, unless that goes on already.
func (p *prober) startLocked(e *endpoint) {
	if p.running || p.gone {
		return
	}
	p.running = true
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
	p.giveUpLocked()
}

func (p *prober) giveUpLocked() {
	if p.try != nil {
		_ = p.try.over.drop(p.try)
		p.try = nil
	}
}

// probe gives up the last probe and sends the next one.
func (e *endpoint) probe() {
	defer e.recovered(context.Background(), func() {})
	var later wire.Later
	defer later.Flush()
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.prober.running {
		return
	}
	e.prober.timer.Reset(probeEvery)
	e.prober.giveUpLocked()
	t := &try{query: []byte(probeQuery), over: e.first, began: e.now(), ep: e}
	t.report = func(r received, _ *wire.Later) { e.probed(t, r) }
	e.count.probes.Add(1)
	if t.over.carry(t, &later) == nil { // else the next one may fare better
		e.prober.try = t
	}
}

// probed takes what came for a probe.
func (e *endpoint) probed(t *try, r received) {
	now := e.now()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.prober.try != t {
		return
	}
	e.prober.try = nil
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
	var later wire.Later
	defer later.Flush()
	t := &try{query: query, over: e.first, began: e.now(), ep: e, report: func(received, *wire.Later) {}}
	if t.over.carry(t, &later) == nil {
		time.AfterFunc(aloneTime, func() { _ = t.over.drop(t) })
	}
}
