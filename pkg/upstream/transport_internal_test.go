// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

var (
	_ transport = (*socketPool)(nil)
	_ transport = (*connPool)(nil)
)

// A harness is one transport with its counters, without a pool.
type harness struct {
	*common
	transport
	count counters
}

// newHarness makes a transport for the target. At the end of the test it checks that nothing is left open.
func newHarness(tb testing.TB, target Target, connections int, dial func(context.Context, string, netip.AddrPort) (net.Conn, error)) *harness {
	tb.Helper()
	assert.NoError(tb, target.check())
	h := &harness{common: newCommon(Config{Dial: dial, Connections: connections})}
	h.transport = newConns(h.common, target, &h.count)
	tb.Cleanup(func() {
		h.closeIdle(false)
		if tb.Failed() {
			return // wait would wait for queries that the test abandoned
		}
		h.wait()
		if open, _ := h.openCount(); open != 0 || h.panics.Load() != 0 {
			tb.Errorf("%d connections are left, and there were %d panics", open, h.panics.Load())
		}
	})
	return h
}

// A pendingAnswer is a query under way.
type pendingAnswer struct {
	attempt
	harness *harness
	result  chan string // has room for one
}

// query sends a query for the name's address and does not wait.
func (h *harness) query(tb testing.TB, name string, change ...func(*attempt)) *pendingAnswer {
	tb.Helper()
	var batch wire.SendBatch
	p := h.queryInBatch(tb, name, &batch, change...)
	batch.Flush()
	return p
}

// queryInBatch is query as part of a batch.
func (h *harness) queryInBatch(tb testing.TB, name string, batch *wire.SendBatch, change ...func(*attempt)) *pendingAnswer {
	tb.Helper()
	p := &pendingAnswer{harness: h, result: make(chan string, 1)}
	p.query = upstreamtest.Question(tb, name)
	p.receiver = replyFunc(func(r reply, _ *wire.SendBatch) { p.result <- outcomeOf(r) })
	for _, c := range change {
		c(&p.attempt)
	}
	if err := h.send(&p.attempt, batch); err != nil {
		p.result <- "refused: " + errorCause(err).String()
	}
	return p
}

// wait returns the first address of the answer, or the outcome in a word. It gives up after the time.
func (p *pendingAnswer) wait(long time.Duration) string {
	timer := time.NewTimer(long)
	defer timer.Stop()
	select {
	case got := <-p.result:
		return got
	case <-timer.C:
		_ = p.harness.cancel(&p.attempt)
		return "timeout"
	}
}

// ask sends a query for www.example. and waits.
func (h *harness) ask(tb testing.TB) string {
	tb.Helper()
	return h.query(tb, "www.example.").wait(4500 * time.Millisecond)
}

// outcomeOf describes a reply in a word.
func outcomeOf(r reply) string {
	switch {
	case r.err != nil:
		return errorCause(r.err).String()
	case r.truncated:
		return "truncated"
	case r.caseChanged:
		return "recased"
	}
	var m dns.Msg
	if err := m.Unpack(r.m.Raw); err != nil {
		return err.Error()
	}
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			return a.A.String()
		}
	}
	return dns.RcodeToString[m.Rcode]
}

// answerIndex answers n7.example. with 192.0.2.7, low numbers later.
func answerIndex(q upstreamtest.Query) upstreamtest.Action {
	var n int
	_, _ = fmt.Sscanf(q.Name, "n%d.example.", &n)
	return upstreamtest.Action{
		Records: []string{fmt.Sprintf("%s 60 IN A 192.0.2.%d", q.Name, n)},
		Delay:   time.Duration(100-n) * time.Millisecond,
	}
}

// answerOrRefuse answers any name.
func answerOrRefuse(q upstreamtest.Query) upstreamtest.Action {
	return upstreamtest.Action{Records: []string{q.Name + " 60 IN A 192.0.2.10"}}
}

// A replyFunc receives the replies to an attempt.
type replyFunc func(r reply, batch *wire.SendBatch)

func (f replyFunc) handleReply(_ *attempt, r reply, batch *wire.SendBatch) { f(r, batch) }
