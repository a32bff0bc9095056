// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

var (
	_ transport = (*socketPool)(nil)
	_ transport = (*connPool)(nil)
	_ transport = (*httpsPool)(nil)
)

// A lab is one carrier and what it counts, without a pool around it.
type harness struct {
	*common
	transport
	count counters
}

// labOf makes a carrier for the target. It is retired when the test ends, and then nothing may be left of it.
func newHarness(tb testing.TB, target Target, connections int, dial func(context.Context, string, netip.AddrPort) (net.Conn, error)) *harness {
	tb.Helper()
	if err := target.check(); err != nil {
		tb.Fatal(err)
	}
	if dial == nil {
		dial = withDefaults(Config{}).Dial
	}
	h := &harness{common: &common{
		dial: dial, rand: rand.Reader, now: time.Now, log: slog.New(slog.DiscardHandler), connections: connections,
	}}
	if target.Network == "https" {
		h.transport = newHTTPSPool(h.common, target, &h.count)
	} else {
		h.transport = newConnPool(h.common, target, &h.count)
	}
	tb.Cleanup(func() {
		h.closeIdle()
		if tb.Failed() {
			return // queries that nobody waits for any more would be waited for
		}
		h.wait()
		if open, _ := h.openCount(); open != 0 || h.panics.Load() != 0 {
			tb.Errorf("%d connections are left, and there were %d panics", open, h.panics.Load())
		}
	})
	return h
}

// A ticket is a query under way.
type pendingAnswer struct {
	attempt
	harness *harness
	result  chan string // has room for one
}

// send starts a query for the name's address without waiting.
func (h *harness) query(tb testing.TB, name string, change ...func(*attempt)) *pendingAnswer {
	tb.Helper()
	var batch wire.SendBatch
	p := h.queryInBatch(tb, name, &batch, change...)
	batch.Flush()
	return p
}

// sendLater is send in a batch.
func (h *harness) queryInBatch(tb testing.TB, name string, batch *wire.SendBatch, change ...func(*attempt)) *pendingAnswer {
	tb.Helper()
	p := &pendingAnswer{harness: h, result: make(chan string, 1)}
	p.query = askFor(tb, name)
	p.onReply = func(r reply, _ *wire.SendBatch) { p.result <- outcomeOf(r) }
	for _, c := range change {
		c(&p.attempt)
	}
	if err := h.send(&p.attempt, batch); err != nil {
		p.result <- "refused: " + errorCause(err).String()
	}
	return p
}

// wait gives the first address of the answer or what else came, and gives up after so long.
func (p *pendingAnswer) wait(long time.Duration) string {
	timer := time.NewTimer(long)
	defer timer.Stop()
	select {
	case told := <-p.result:
		return told
	case <-timer.C:
		_ = p.harness.cancel(&p.attempt)
		return "timeout"
	}
}

// ask is send and wait.
func (h *harness) ask(tb testing.TB, name string) string {
	tb.Helper()
	return h.query(tb, name).wait(4500 * time.Millisecond)
}

func askFor(tb testing.TB, name string) []byte {
	tb.Helper()
	q, err := new(dns.Msg).SetQuestion(name, dns.TypeA).SetEdns0(1232, false).Pack()
	if err != nil {
		tb.Fatal(err)
	}
	return q
}

// outcomeOf is what came, in a word.
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

// number answers n7.example. with 192.0.2.7 after a delay that is longer for low numbers.
func answerIndex(q upstreamtest.Query) upstreamtest.Action {
	var n int
	_, _ = fmt.Sscanf(q.Name, "n%d.example.", &n)
	return upstreamtest.Action{
		Records: []string{fmt.Sprintf("%s 60 IN A 192.0.2.%d", q.Name, n)},
		Delay:   time.Duration(100-n) * time.Millisecond,
	}
}

// known answers for any name.
func answerOrRefuse(q upstreamtest.Query) upstreamtest.Action {
	return upstreamtest.Action{Records: []string{q.Name + " 60 IN A 192.0.2.10"}}
}
