// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// An faultyServer is a server that is not as it should be: one of the first three.
type faultyServer struct {
	name   string
	script upstreamtest.Script
	start  func(t *testing.T) (addr string)
	addr   string
	tcp    bool // it is asked over TCP only
	alone  bool // it serves all the same when there is no other

	maxDelay time.Duration // that clients may have to bear with while it is asked first; 0: next to none
}

// serve starts the server and tells what an agent calls it.
func (o *faultyServer) serve(t *testing.T) (to string) {
	t.Helper()
	addr := o.addr
	switch {
	case o.script != nil:
		addr = upstreamtest.New(o.script).Listen(t).String()
	case o.start != nil:
		addr = o.start(t)
	}
	if o.tcp {
		return "tcp://" + addr
	}
	return addr
}

// withoutEDNS does something with queries that have an OPT record, and is good to others.
func withoutEDNS(a upstreamtest.Action) upstreamtest.Script {
	return func(q upstreamtest.Query) upstreamtest.Action {
		if q.EDNS {
			return a
		}
		return answerAddrInName(q)
	}
}

// truncateAll is a script for UDP that cuts every answer.
func truncateAll(upstreamtest.Query) upstreamtest.Action { return upstreamtest.Action{Truncate: true} }

// garbage is a message of random bytes, with the ID of the query.
func garbage(q []byte) []byte {
	b := make([]byte, 40)
	for i := range b {
		b[i] = byte(rand.IntN(256))
	}
	return append(append([]byte(nil), q[:2]...), b...)
}

func faultyServers() []faultyServer {
	const unused = "127.0.0.1:9"
	always := upstreamtest.Always
	return []faultyServer{
		{name: "FORMERR to EDNS", alone: true, script: withoutEDNS(upstreamtest.Action{Rcode: dns.RcodeFormatError, NoEDNS: true})},
		{name: "NOTIMP to EDNS", alone: true, script: withoutEDNS(upstreamtest.Action{Rcode: dns.RcodeNotImplemented, NoEDNS: true})},
		{name: "EDNS dropped", script: withoutEDNS(upstreamtest.Action{Drop: true})},
		{name: "answers cut", alone: true, script: upstreamtest.By(truncateAll, answerAddrInName)},
		{name: "answers cut, TCP reset", script: upstreamtest.By(truncateAll, always(upstreamtest.Action{Reset: true}))},
		{name: "answers cut, TCP refused", start: truncateOnly},
		{name: "REFUSED", script: always(upstreamtest.Action{Rcode: dns.RcodeRefused})},
		{name: "SERVFAIL", script: always(upstreamtest.Action{Rcode: dns.RcodeServerFailure})},
		{name: "garbage", script: always(upstreamtest.Action{Raw: []upstreamtest.Raw{garbage, garbage}})},
		{name: "silent", script: always(upstreamtest.Action{Drop: true})},
		{name: "no server listens", addr: unused},
		{name: "letters not kept", alone: true, start: lowerCase},
		{name: "slow, a fifth lost", maxDelay: 400 * time.Millisecond, script: func(q upstreamtest.Query) upstreamtest.Action {
			a := answerAddrInName(q)
			a.Delay, a.Drop = 300*time.Millisecond, rand.IntN(5) == 0
			return a
		}},
		{name: "TCP refused", tcp: true, addr: unused},
		{name: "TCP reset at once", tcp: true, start: resetting},
		{name: "TCP reset at a query", tcp: true, script: always(upstreamtest.Action{Reset: true})},
		{name: "TCP half open", tcp: true, start: halfOpen},
		{name: "TCP garbage", tcp: true, script: always(upstreamtest.Action{Raw: []upstreamtest.Raw{garbage}})},
	}
}

// truncateOnly cuts every answer, and takes no TCP connection.
func truncateOnly(t *testing.T) (addr string) {
	t.Helper()
	return startFakeServer(t, func(f *fakeServer, q []byte, from netip.AddrPort) {
		r := append([]byte(nil), q[:endOfQuestion(q)]...)
		r[2], r[3] = 0x82|q[2]&1, 0x80
		clear(r[6:12])
		f.send(r, from)
	}).addr.String()
}

// lowerCase gives each name the address that it spells, in small letters.
func lowerCase(t *testing.T) (addr string) {
	t.Helper()
	return startFakeServer(t, func(f *fakeServer, q []byte, from netip.AddrPort) {
		for i := headerLen; i < endOfQuestion(q)-5; i++ {
			if q[i] >= 'A' && q[i] <= 'Z' {
				q[i] |= 0x20
			}
		}
		if r := answerTo(q); r != nil {
			f.send(r, from)
		}
	}).addr.String()
}

// answerTo gives a name the address that it spells.
func answerTo(q []byte) []byte {
	end := endOfQuestion(q)
	if end == 0 {
		return nil
	}
	a, ok := addrInName(string(q[headerLen+1:headerLen+1+min(labelLen, end-headerLen-1)]) + ".")
	if !ok {
		return nil
	}
	return answerWith(q, a)
}

// resetting answers every connection with a reset.
func resetting(t *testing.T) (addr string) {
	t.Helper()
	ln := listenTCP(t)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := ln.AcceptTCP()
			if err != nil {
				return // closed
			}
			_ = c.SetLinger(0)
			_ = c.Close()
		}
	})
	t.Cleanup(running.Wait)
	t.Cleanup(func() { _ = ln.Close() }) // before it is waited for
	return ln.Addr().String()
}

// halfOpen leaves connections to the kernel, which takes what is sent until it has enough.
func halfOpen(t *testing.T) (addr string) {
	t.Helper()
	ln := listenTCP(t)
	t.Cleanup(func() { _ = ln.Close() })
	return ln.Addr().String()
}

func listenTCP(t *testing.T) *net.TCPListener {
	t.Helper()
	ln, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// TestFaultyUpstream has an odd upstream beside a good one, with the quickest asked first and with the odd one asked first, and
// by itself where it can serve.
func TestFaultyUpstream(t *testing.T) {
	t.Parallel()
	for _, tt := range faultyServers() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			odd := tt.serve(t)
			both := fmt.Sprintf("to: [%q, %q]", odd, upstreamtest.New(answerAddrInName).Listen(t).String())
			a := start(t, settings{rest: fmt.Sprintf("forward: [{zone: ., %[1]s}, {zone: order.test, %[1]s, policy: sequential}, {zone: alone.test, to: [%[2]q]}]\n",
				both, odd)})
			options := loadOptions{addr: a.settings.listen, dial: a.settings.dial, rate: 100, length: proctest.OrdinaryOrSoak(2*time.Second, 10*time.Second), suffix: "fastest.test"}
			fastest := startLoad(t, options)
			options.suffix = "order.test"
			ordered := startLoad(t, options)
			fastest.finish()
			ordered.finish()
			checkFaulty(t, "the quickest first", fastest, 0)
			checkFaulty(t, "the odd one first", ordered, tt.maxDelay)
			if tt.alone {
				a.expectAnswersAlone(t)
			}
			if t.Failed() {
				t.Logf("/status: %+v", a.status(t).Upstreams)
			}
		})
	}
}

// checkFaulty expects that the faulty upstream cost no answer, and little time once it was known.
func checkFaulty(t *testing.T, order string, l *load, lag time.Duration) {
	t.Helper()
	all, then := l.all(), l.between(l.began.Add(l.length/2), time.Now())
	proctest.Figure(t, "%s: %s; of the second half: p99 %s", order, all, ms(then.quantile(990)))
	if all.by[ownAddr()] != all.asked {
		t.Errorf("%s: %s, addresses %v, want the right one for each", order, all, all.by)
	}
	// No query waits for a server that does not answer, but for the few that probe it.
	if all.quantile(1000) > 4*time.Second || then.quantile(proctest.OrdinaryOrSoak(500, 950)) > max(lag, 100*time.Millisecond) {
		t.Errorf("%s: %s; of the second half: %s", order, all, then)
	}
}

// expectAnswersAlone asks for names that only the odd upstream has. The first may be lost while it is found out what is odd.
func (a *agent) expectAnswersAlone(t *testing.T) {
	t.Helper()
	const asked, lost = 20, 3
	failed := 0
	for i := range asked {
		r, took := a.ask(t, nameOf(i, "alone.test"))
		if addressOf(r) == addressIn(i).String() {
			continue
		}
		t.Logf("alone: query %d: %s after %s", i, dns.RcodeToString[r.Rcode], ms(took))
		if failed++; failed > lost {
			t.Errorf("alone: %d of %d names lost, and it is not learned how to ask", failed, i+1)
			return
		}
	}
	proctest.Figure(t, "alone: %d of %d names lost", failed, asked)
}
