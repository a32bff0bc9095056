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
	_ carrier = (*sockets)(nil)
	_ carrier = (*lines)(nil)
	_ carrier = (*sessions)(nil)
)

// A lab is one carrier and what it counts, without a pool around it.
type lab struct {
	*common
	carrier
	count counters
}

// labOf makes a carrier for the target. It is retired when the test ends, and then nothing may be left of it.
func labOf(tb testing.TB, target Target, connections int, dial func(context.Context, string, netip.AddrPort) (net.Conn, error)) *lab {
	tb.Helper()
	if err := target.check(); err != nil {
		tb.Fatal(err)
	}
	if dial == nil {
		dial = withDefaults(Config{}).Dial
	}
	l := &lab{common: &common{
		dial: dial, rand: rand.Reader, now: time.Now, log: slog.New(slog.DiscardHandler), connections: connections,
	}}
	if target.Network == "https" {
		l.carrier = newHTTPS(l.common, target, &l.count)
	} else {
		l.carrier = newLines(l.common, target, &l.count)
	}
	tb.Cleanup(func() {
		l.retire()
		if tb.Failed() {
			return // queries that nobody waits for any more would be waited for
		}
		l.wait()
		if open, _ := l.open(); open != 0 || l.panics.Load() != 0 {
			tb.Errorf("%d connections are left, and there were %d panics", open, l.panics.Load())
		}
	})
	return l
}

// A ticket is a query under way.
type ticket struct {
	try
	lab  *lab
	told chan string // has room for one
}

// send starts a query for the name's address without waiting.
func (l *lab) send(tb testing.TB, name string, change ...func(*try)) *ticket {
	tb.Helper()
	var batch wire.SendBatch
	k := l.sendLater(tb, name, &batch, change...)
	batch.Flush()
	return k
}

// sendLater is send in a batch.
func (l *lab) sendLater(tb testing.TB, name string, batch *wire.SendBatch, change ...func(*try)) *ticket {
	tb.Helper()
	k := &ticket{lab: l, told: make(chan string, 1)}
	k.query = askFor(tb, name)
	k.report = func(r received, _ *wire.SendBatch) { k.told <- outcomeOf(r) }
	for _, c := range change {
		c(&k.try)
	}
	if err := l.carry(&k.try, batch); err != nil {
		k.told <- "refused: " + errorCause(err).String()
	}
	return k
}

// wait gives the first address of the answer or what else came, and gives up after so long.
func (k *ticket) wait(long time.Duration) string {
	timer := time.NewTimer(long)
	defer timer.Stop()
	select {
	case told := <-k.told:
		return told
	case <-timer.C:
		_ = k.lab.drop(&k.try)
		return "timeout"
	}
}

// ask is send and wait.
func (l *lab) ask(tb testing.TB, name string) string {
	tb.Helper()
	return l.send(tb, name).wait(4500 * time.Millisecond)
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
func outcomeOf(r received) string {
	switch {
	case r.err != nil:
		return errorCause(r.err).String()
	case r.truncated:
		return "truncated"
	case r.recased:
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
func number(q upstreamtest.Query) upstreamtest.Action {
	var n int
	_, _ = fmt.Sscanf(q.Name, "n%d.example.", &n)
	return upstreamtest.Action{
		Records: []string{fmt.Sprintf("%s 60 IN A 192.0.2.%d", q.Name, n)},
		Delay:   time.Duration(100-n) * time.Millisecond,
	}
}

// known answers for any name.
func known(q upstreamtest.Query) upstreamtest.Action {
	return upstreamtest.Action{Records: []string{q.Name + " 60 IN A 192.0.2.10"}}
}
