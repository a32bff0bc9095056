// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// TestOneFlightForMany is the promise that a cold name costs one query upstream,
// however many ask for it.
func TestIdenticalQueriesJoin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t, "www.test. 300 IN A 192.0.2.1")
		u.gate = make(chan struct{})
		r := newResolver(t, plan(t, u))
		const n = 10_000
		clients := make([]*client, n)
		for i := range clients {
			clients[i] = newClient(r, i%2 == 0)
			m := question([]string{"www.test.", "WWW.test.", "www.TEST."}[i%3], dns.TypeA)
			m.Id = uint16(i)
			clients[i].send(pack(t, m))
		}
		synctest.Wait()
		if s := r.Stats(); s.Inflight != 1 || s.Waiting != n || s.Joined != n-1 {
			t.Errorf("in flight %d, waiting %d, joined %d; want 1, %d, %d", s.Inflight, s.Waiting, s.Joined, n, n-1)
		}
		close(u.gate)
		for i, c := range clients {
			m := unpack(t, <-c.got)
			want := []string{"www.test.", "WWW.test.", "www.TEST."}[i%3]
			if m.Id != uint16(i) || m.Question[0].Name != want || len(m.Answer) != 1 {
				t.Fatalf("client %d got\n%s", i, m)
			}
		}
		if got := u.count(); got != 1 {
			t.Errorf("%d queries upstream, want 1", got)
		}
		if s := r.Stats(); s.Inflight != 0 || s.Waiting != 0 {
			t.Errorf("afterwards in flight %d, waiting %d", s.Inflight, s.Waiting)
		}
	})
}

// TestApart holds the queries that must never share an answer.
func TestApart(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "www.test. 300 IN A 192.0.2.1")
	r := newResolver(t, plan(t, u))
	ask := func(change func(*dns.Msg)) {
		m := question("www.test.", dns.TypeA)
		m.SetEdns0(1232, false)
		change(m)
		newClient(r, false).exchange(t, pack(t, m))
	}
	ask(func(*dns.Msg) {})
	ask(func(m *dns.Msg) { m.IsEdns0().SetDo() })
	ask(func(m *dns.Msg) { m.CheckingDisabled = true })
	ask(func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAAAA })
	ask(func(m *dns.Msg) { m.Question[0].Name = "ww.test." })
	if got := u.count(); got != 5 {
		t.Errorf("%d queries upstream, want 5: no two are the same question", got)
	}
	for i, want := range []struct{ do, cd bool }{{}, {do: true}, {cd: true}} {
		if m := u.asked[i]; m.IsEdns0().Do() != want.do || m.CheckingDisabled != want.cd || !m.AuthenticatedData {
			t.Errorf("query %d upstream, want DO=%t CD=%t AD=true:\n%s", i, want.do, want.cd, m)
		}
	}
}

// TestAuthenticData returns AD only to clients that asked for it (RFC 6840 section 5.7).
func TestAuthenticData(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		upstream       bool
		ad, do, wantAD bool
	}{
		{"asked by AD", true, true, false, true},
		{"asked by DO", true, false, true, true},
		{"not asked", true, false, false, false},
		{"never made up", false, true, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t, "www.test. 300 IN A 192.0.2.1")
			u.mangle = func(m *dns.Msg) { m.AuthenticatedData = tt.upstream }
			r := newResolver(t, plan(t, u))
			m := question("www.test.", dns.TypeA)
			m.SetEdns0(1232, tt.do)
			m.AuthenticatedData = tt.ad
			for range 2 { // from upstream, then from the cache
				if got := unpack(t, newClient(r, false).exchange(t, pack(t, m))); got.AuthenticatedData != tt.wantAD || got.IsEdns0().Do() != tt.do {
					t.Errorf("AD %t, want %t:\n%s", got.AuthenticatedData, tt.wantAD, got)
				}
			}
		})
	}
}

func TestClientSubnet(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "www.test. 300 IN A 192.0.2.1")
	p := plan(t, u)
	p.Routes[0].Subnet = true
	r := newResolver(t, p)
	ask := func(subnet byte) {
		m := question("www.test.", dns.TypeA)
		m.SetEdns0(1232, false)
		if subnet > 0 {
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_SUBNET{Code: 8, Family: 1, SourceNetmask: 24, Address: []byte{10, 0, subnet, 0}}}
		}
		if got := unpack(t, newClient(r, false).exchange(t, pack(t, m))); len(got.IsEdns0().Option) > 0 || len(got.Answer) != 1 {
			t.Errorf("subnet %d got\n%s", subnet, got)
		}
	}
	for _, subnet := range []byte{0, 1, 2, 0, 1, 2} {
		ask(subnet)
	}
	var sent []string
	for _, m := range u.asked {
		sent = append(sent, fmt.Sprint(m.IsEdns0().Option))
	}
	if got, want := strings.Join(sent, " "), "[] [10.0.1.0/24/0] [10.0.2.0/24/0]"; got != want {
		t.Errorf("options upstream %s, want %s: one query for each subnet", got, want)
	}
}

// TestBounds reaches each limit and checks which queries are shed.
func TestBounds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		bound func(*resolve.Plan)
		names []string // asked for while nothing is answered
		shed  int      // how many of them are turned away
		why   resolve.Shed
	}{
		{"flights", func(p *resolve.Plan) { p.Inflight = 2 }, []string{"a.test.", "b.test.", "a.test.", "c.test."}, 1, resolve.ShedInflight},
		{"waiting", func(p *resolve.Plan) { p.Waiting = 3 }, []string{"a.test.", "a.test.", "b.test.", "a.test.", "b.test."}, 2, resolve.ShedWaiting},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				u := newUpstream(t)
				u.gate = make(chan struct{})
				p := plan(t, u)
				tt.bound(p)
				r := newResolver(t, p)
				var clients []*client
				for i, name := range tt.names {
					c := newClient(r, false)
					c.from.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 53)
					m := question(name, dns.TypeA)
					m.SetEdns0(1232, false)
					c.send(pack(t, m))
					clients = append(clients, c)
				}
				synctest.Wait()
				shed := 0
				for _, c := range clients {
					select {
					case reply := <-c.got:
						shed++
						if m := unpack(t, reply); m.Rcode != dns.RcodeServerFailure || !strings.Contains(m.String(), "EDE") {
							t.Errorf("shed with\n%s", m)
						}
					default:
					}
				}
				if got := r.Stats().Shed[tt.why]; shed != tt.shed || got != uint64(tt.shed) {
					t.Errorf("%d shed, %d counted, want %d", shed, got, tt.shed)
				}
				close(u.gate)
				synctest.Wait()
			})
		})
	}
}

// coded is an error that knows its Extended DNS Error.
type coded int

func (c coded) Error() string { return "coded" }
func (c coded) EDE() int      { return int(c) }

func TestFailures(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		make func(*upstream)
		ede  string
	}{
		{"an error that names itself", func(u *upstream) { u.err = coded(23) }, "EDE: 23"},
		{"any other error", func(u *upstream) { u.err = errors.New("odd") }, "EDE: 22"},
		{"no answer by the deadline", func(u *upstream) { u.gate = make(chan struct{}) }, "EDE: 22"},
		{"an answer that is a failure", func(u *upstream) { u.mangle = func(m *dns.Msg) { m.Rcode = dns.RcodeRefused } }, "EDE: 22"},
		{"a panic", func(u *upstream) { u.mangle = func(*dns.Msg) { panic("asked to") } }, "EDE: 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				u := newUpstream(t)
				tt.make(u)
				r := newResolver(t, plan(t, u))
				start := time.Now()
				m := question("www.test.", dns.TypeA)
				m.SetEdns0(1232, false)
				got := unpack(t, newClient(r, false).exchange(t, pack(t, m)))
				if got.Rcode != dns.RcodeServerFailure || !strings.Contains(got.String(), tt.ede) {
					t.Errorf("got, want SERVFAIL and %s:\n%s", tt.ede, got)
				}
				if took := time.Since(start); took > 4*time.Second {
					t.Errorf("took %s, the deadline is 4 s", took)
				}
			})
		})
	}
}

// A breaker is a client whose reply cannot be sent.
type panickingReplier struct{}

func (panickingReplier) Reply([]byte, *wire.SendBatch) { panic("asked to") }

// TestPanicWhileReplying panics in the reply to the first of two waiters. The other one gets its
// reply.
func TestPanicWhileReplying(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t, "www.test. 300 IN A 192.0.2.1")
		u.gate = make(chan struct{})
		r := newResolver(t, plan(t, u))
		pkt := pack(t, question("www.test.", dns.TypeA))
		first, second := newClient(r, false), newClient(r, false)
		now := time.Now()
		if _, verdict := first.worker.AnswerFromMemory(pkt, &first.from, now, nil); verdict != wire.Missed {
			t.Fatalf("verdict %v, want a miss", verdict)
		}
		first.worker.Resolve(&first.from, now, panickingReplier{})
		second.send(pkt)
		close(u.gate)
		if got := unpack(t, <-second.got); got.Rcode != dns.RcodeSuccess || len(got.Answer) != 1 {
			t.Errorf("the second client got, want one address:\n%s", got)
		}
		synctest.Wait()
		if s := r.Stats(); s.Panics != 1 || s.Inflight != 0 || s.Waiting != 0 {
			t.Errorf("panics %d, in flight %d, waiting %d, want 1, 0, 0", s.Panics, s.Inflight, s.Waiting)
		}
	})
}

// TestNobodyIsForgotten swaps plans under many clients: each gets one reply.
func TestEveryWaiterGetsAReply(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "www.test. 300 IN A 192.0.2.1")
	u.gate = make(chan struct{})
	close(u.gate) // answers come from goroutines
	p := plan(t, u)
	p.Inflight = 8
	r := newResolver(t, p)
	var clients sync.WaitGroup
	for n := range 8 {
		clients.Go(func() {
			c := newClient(r, false)
			for i := range 300 {
				c.send(pack(t, question(fmt.Sprintf("n%d.test.", (i+n)%50), dns.TypeA)))
				<-c.got
			}
		})
	}
	for range 100 {
		next := plan(t, u)
		next.Inflight = 8
		r.Swap(next)
	}
	clients.Wait()
	if s := r.Stats(); s.Inflight != 0 || s.Waiting != 0 || s.Clients != 0 {
		t.Errorf("in flight %d, waiting %d, clients %d after all replies", s.Inflight, s.Waiting, s.Clients)
	}
}
