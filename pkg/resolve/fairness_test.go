// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A slowpoke is an upstream that answers every query with one address, when it may.
type slowUpstream struct {
	delay   time.Duration // of each answer; 0: none comes
	each    time.Duration // what it works on one: others wait in a queue
	mu      sync.Mutex    // guards all below
	engaged time.Time     // with what is in the queue, until then
}

// Ask implements resolve.Asker.
func (s *slowUpstream) Ask(q []byte, until time.Time, to wire.AnswerReceiver, _ *wire.SendBatch) {
	now := time.Now()
	s.mu.Lock()
	if s.engaged.Before(now) {
		s.engaged = now
	}
	s.engaged = s.engaged.Add(s.each)
	at := s.engaged.Add(s.delay)
	s.mu.Unlock()
	var batch wire.SendBatch
	if s.delay == 0 || at.After(until) {
		time.AfterFunc(until.Sub(now), func() { to.Answered(nil, context.DeadlineExceeded, &batch) })
		return
	}
	time.AfterFunc(at.Sub(now), func() { respond(to, addressFor(q), nil, &batch) })
}

// addressFor answers q with an address.
func addressFor(q []byte) []byte {
	end := 12
	for q[end] != 0 {
		end += 1 + int(q[end])
	}
	r := append([]byte(nil), q[:end+5]...)
	r[2], r[3] = 0x81, 0x80
	copy(r[4:12], []byte{0, 1, 0, 1, 0, 0, 0, 0})
	return append(r, 0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 192, 0, 2, 1)
}

// A pod queries names that are not cached, and counts its replies.
type pod struct {
	worker *resolve.Worker
	from   wire.Peer
	pkt    []byte // of which the eight bytes from the 13th on number the name
	next   uint32

	good, failed, shed, ignored atomic.Int64
}

func newPod(tb testing.TB, r *resolve.Resolver, n int) *pod {
	tb.Helper()
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 53)
	return &pod{
		worker: r.NewWorker(), from: wire.Peer{Addr: addr},
		pkt: pack(tb, question(fmt.Sprintf("xxxxxxxx.pod-%d.test.", n), dns.TypeA)),
	}
}

// A podQuery takes the reply to one query of a pod.
type podQuery struct {
	*pod
	at time.Time
}

// Reply implements wire.Replier. Who is shed hears so at once.
func (q podQuery) Reply(msg []byte, _ *wire.SendBatch) {
	switch {
	case msg == nil:
		q.ignored.Add(1)
	case msg[3]&15 == dns.RcodeSuccess:
		q.good.Add(1)
	case time.Since(q.at) == 0:
		q.shed.Add(1)
	default:
		q.failed.Add(1)
	}
}

// ask asks for so many names.
func (p *pod) ask(n int) {
	now := time.Now()
	for range n {
		p.next++
		for i := range 8 {
			p.pkt[13+i] = 'a' + byte(p.next>>(4*i)&15)
		}
		if _, verdict := p.worker.AnswerFromMemory(p.pkt, &p.from, now, nil); verdict == wire.Missed {
			p.worker.Resolve(&p.from, now, podQuery{p, now})
		}
	}
	p.worker.Flush(now)
}

func (p *pod) replies() int64 {
	return p.good.Load() + p.failed.Load() + p.shed.Load() + p.ignored.Load()
}

func (p *pod) String() string {
	return fmt.Sprintf("%d asked: %d answered, %d failed, %d turned away, %d ignored",
		p.next, p.good.Load(), p.failed.Load(), p.shed.Load(), p.ignored.Load())
}

// TestFairness has clients flood names at 100,000 a second while nine others ask for
// 50 each: none of the nine is shed, and what the upstream can answer they get.
func TestFairness(t *testing.T) {
	t.Parallel()
	const others, rate, flood = 9, 50, 100_000
	for _, tt := range []struct {
		name     string
		upstream *slowUpstream
		greedy   int // clients that flood
		client   int // what one client may have
		answered bool
	}{
		{"silent", &slowUpstream{}, 1, 256, false},
		{"slow", &slowUpstream{delay: 50 * time.Millisecond}, 1, 256, true},
		{"overloaded", &slowUpstream{delay: time.Millisecond, each: time.Millisecond}, 1, 256, true},
		{"silent, no bound per client", &slowUpstream{}, 1, 0, false},
		{"slow, no bound per client", &slowUpstream{delay: 50 * time.Millisecond}, 1, 0, true},
		{"overloaded, no bound per client", &slowUpstream{delay: time.Millisecond, each: time.Millisecond}, 1, 0, true},
		{"silent, seven greedy clients", &slowUpstream{}, 7, 0, false},
		{"slow, seven greedy clients", &slowUpstream{delay: 50 * time.Millisecond}, 7, 0, true},
		{"slow, a hundred greedy clients", &slowUpstream{delay: 50 * time.Millisecond}, 100, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := plan(t, tt.upstream)
				p.Waiting, p.PerClient = 16384, tt.client
				if !tt.answered {
					p.Deadline = 800 * time.Millisecond // so that as many end as begin
				}
				r := newResolver(t, p)
				pods := make([]*pod, tt.greedy+others)
				for i := range pods {
					pods[i] = newPod(t, r, i)
				}
				const step = time.Millisecond
				for tick := range int(time.Second / step) {
					for _, p := range pods[:tt.greedy] {
						p.ask(flood / tt.greedy / int(time.Second/step))
					}
					for i, p := range pods[tt.greedy:] {
						if (tick+2*i)%(int(time.Second/step)/rate) == 0 {
							p.ask(1)
						}
					}
					time.Sleep(step)
				}
				time.Sleep(p.Deadline)
				synctest.Wait()
				t.Logf("greedy: %s", pods[0])
				for _, p := range pods {
					if p.replies() != int64(p.next) {
						t.Errorf("%s, want a call for each", p)
					}
				}
				for _, p := range pods[tt.greedy:] {
					if want := int64(rate); p.shed.Load() > 0 || p.ignored.Load() > 0 || p.replies() != want || tt.answered && p.good.Load() != want {
						t.Errorf("one of the others: %s", p)
					}
				}
				s := r.Stats()
				if s.Inflight != 0 || s.Waiting != 0 || s.Clients != 0 {
					t.Errorf("in the end %d in flight, %d waiting, %d clients", s.Inflight, s.Waiting, s.Clients)
				}
				if s.Shed[resolve.ShedClient] == 0 || s.Shed[resolve.ShedInflight]+s.Shed[resolve.ShedWaiting] != 0 {
					t.Errorf("sheds %v, want some of greedy clients only", s.Shed)
				}
			})
		})
	}
}

// TestIdleNode lets one client use more than half of the in-flight limit while no other client is
// active.
func TestIdleNode(t *testing.T) {
	t.Parallel()
	for _, names := range []int{400, 3300} {
		synctest.Test(t, func(t *testing.T) {
			p := plan(t, &slowUpstream{delay: time.Second})
			p.Waiting = 16384
			r := newResolver(t, p)
			pod := newPod(t, r, 0)
			pod.ask(names)
			time.Sleep(2 * time.Second)
			if pod.good.Load() != int64(names) {
				t.Errorf("%s, want an answer for each", pod)
			}
		})
	}
}

// TestPlacesAreReleased has a client take all places that it can get before a second one sends queries. The first gets
// none of the places that become free until the second has its share.
func TestPlacesAreReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := plan(t, &slowUpstream{delay: 500 * time.Millisecond})
		p.Waiting = 16384
		r := newResolver(t, p)
		first, second := newPod(t, r, 0), newPod(t, r, 1)
		for tick := range 2500 {
			if tick < 500 {
				first.ask(8) // 16,000 a second: 8,000 at once, if it could have as many
			} else {
				first.ask(100) // and always ahead of the second,
				second.ask(5)  // which wants 2,500 at once
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(p.Deadline)
		t.Logf("first: %s; second: %s", first, second)
		const share = 1750 // 3/7 of 4,096
		if got := second.good.Load(); got < 4*share*9/10 {
			t.Errorf("%d answers for the second client in 4 times 500 ms, want about %d at once", got, share)
		}
	})
}

// TestForgedAddress has a sender flood cold names, from a neighbour's address and then from each of 20,000.
// The neighbour's own queries with a valid cookie, and those over TCP, are answered.
func TestForgedAddress(t *testing.T) {
	t.Parallel()
	for _, addresses := range []int{1, 20_000} {
		t.Run(fmt.Sprint(addresses), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := plan(t, &slowUpstream{delay: 500 * time.Millisecond})
				p.Waiting = 16384
				r := newResolver(t, p)
				forger, plain, proven, stream := newPod(t, r, 0), newPod(t, r, 0), newPod(t, r, 0), newPod(t, r, 0)
				plain.pkt = pack(t, question("xxxxxxxx.plain.test.", dns.TypeA))
				stream.pkt = pack(t, question("xxxxxxxx.stream.test.", dns.TypeA))
				stream.from.Stream = true
				proven.pkt = packWithCookie(t, r, proven.from, "xxxxxxxx.proven.test.")
				for tick := range 1000 {
					for range 100 {
						host := int(forger.next) % addresses
						forger.from.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(host >> 8), byte(host)}), 53)
						forger.ask(1)
					}
					if tick%40 == 0 {
						plain.ask(1)
						proven.ask(1)
						stream.ask(1)
					}
					time.Sleep(time.Millisecond)
				}
				time.Sleep(p.Deadline)
				t.Logf("forger: %s; the neighbour without a cookie: %s", forger, plain)
				for name, pod := range map[string]*pod{"with a cookie": proven, "over TCP": stream} {
					if pod.good.Load() != int64(pod.next) {
						t.Errorf("the neighbour %s: %s, want an answer for each", name, pod)
					}
				}
				if plain.good.Load() == int64(plain.next) {
					t.Errorf("the neighbour without a cookie: %s: the flood is too small to show anything", plain)
				}
			})
		})
	}
}

// packWithCookie is a query for a name with the cookie that the resolver gives to a client.
func packWithCookie(tb testing.TB, r *resolve.Resolver, from wire.Peer, name string) []byte {
	tb.Helper()
	q := question(name, dns.TypeA)
	q.SetEdns0(1232, false)
	cookie := &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"}
	q.IsEdns0().Option = append(q.IsEdns0().Option, cookie)
	c := newClient(r, false)
	c.from = from
	reply := unpack(tb, c.exchange(tb, pack(tb, q)))
	given, ok := reply.IsEdns0().Option[0].(*dns.EDNS0_COOKIE)
	if !ok || len(given.Cookie) != 48 {
		tb.Fatalf("no cookie in the reply:\n%s", reply)
	}
	cookie.Cookie = given.Cookie
	return pack(tb, q)
}

// TestFlood has a client go on when it was shed: a thousand times a second it
// gets a reply, and then none, but over TCP. What is held it gets all the time.
func TestFlood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := &slowUpstream{delay: 2 * time.Second}
		pl := plan(t, u)
		pl.PerClient, pl.Deadline = 10, 4*time.Second
		var log bytes.Buffer
		r, err := resolve.New(resolve.Config{Plan: pl, Now: time.Now, Rand: rand.Reader, Log: slog.New(slog.NewTextHandler(&log, nil))})
		assert.NoError(t, err)
		held := newClient(r, false)
		warm := pack(t, question("www.test.", dns.TypeA))
		held.exchange(t, warm)
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) // a whole second is to come
		over := newPod(t, r, 0)
		over.ask(10 + 1000)
		if over.shed.Load() != 1000 || over.ignored.Load() != 0 {
			t.Errorf("%s, want 1000 shed", over)
		}
		over.ask(500)
		if over.shed.Load() != 1000 || over.ignored.Load() != 500 {
			t.Errorf("%s, want 500 ignored", over)
		}
		if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "client=10.0.0.0\n") {
			t.Errorf("logged, want one line that names the client:\n%s", got)
		}
		held.from = over.from
		if m := unpack(t, held.exchange(t, warm)); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
			t.Errorf("what is held is answered to one who floods with\n%s", m)
		}
		proven := newPod(t, r, 0)
		proven.from.Stream = true
		proven.pkt = pack(t, question("xxxxxxxx.stream.test.", dns.TypeA))
		proven.ask(10) // its address is proven: it has a share of its own
		stream := newClient(r, true)
		stream.from.Addr = over.from.Addr
		q := question("cold.test.", dns.TypeA)
		q.SetEdns0(1232, false)
		if m := unpack(t, stream.exchange(t, pack(t, q))); m.Rcode != dns.RcodeServerFailure || !strings.Contains(m.String(), "EDE: 0") {
			t.Errorf("over TCP a client that floods got, want SERVFAIL with EDE 0\n%s", m)
		}
		s := r.Stats()
		if s.Shed[resolve.ShedClient] != 1001 || s.Shed[resolve.ShedFlood] != 500 || s.Dropped != 500 {
			t.Errorf("%v and %d without a reply are counted, want 1001 of the client's, 500 in a flood, and 500", s.Shed, s.Dropped)
		}
		time.Sleep(time.Second)
		over.ask(1)
		if over.shed.Load() != 1001 {
			t.Errorf("%s, want a reply in the next second", over)
		}
		time.Sleep(10 * time.Second)
		over.ask(1)
		time.Sleep(10 * time.Second)
		if over.good.Load() != 11 {
			t.Errorf("%s, want an answer after it has ended", over)
		}
	})
}

// TestRefreshesGiveWay checks that prefetching stops while clients use half of the in-flight limit.
func TestRefreshesGiveWay(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		taken, refreshes int
	}{{0, 1}, {3, 1}, {4, 0}, {8, 0}} {
		t.Run(fmt.Sprintf("%d of 8 places", tt.taken), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := plan(t, &slowUpstream{delay: time.Second})
				p.Inflight = 8
				p.Cache.SetPrefetch(cache.Prefetch{Hits: 2, Remaining: 0.1})
				r := newResolver(t, p)
				warm := pack(t, question("www.test.", dns.TypeA))
				c := newClient(r, false)
				for range 20 { // popular
					c.exchange(t, warm)
				}
				time.Sleep(295 * time.Second) // of 300
				for n := range tt.taken {
					newPod(t, r, n).ask(1)
				}
				if m := unpack(t, c.exchange(t, warm)); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
					t.Errorf("what is due is answered with\n%s", m)
				}
				if s := r.Stats(); int(s.Prefetches) != tt.refreshes || int(s.Shed[resolve.ShedRefresh]) != 1-tt.refreshes {
					t.Errorf("%d refreshes, %d shed, want %d, %d", s.Prefetches, s.Shed[resolve.ShedRefresh], tt.refreshes, 1-tt.refreshes)
				}
				time.Sleep(5 * time.Second)
			})
		})
	}
}
