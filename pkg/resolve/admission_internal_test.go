// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	crand "crypto/rand"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

// address is the address of client number n.
func address(n int) clientKey {
	b := [4]byte{10}
	binary.BigEndian.PutUint16(b[2:], uint16(n))
	return clientKey{addr: netip.AddrFrom4(b)}
}

// admitted is what a Shed is called here if there is none.
const admitted = shedCount

// TestAdmit has a client ask while it and others wait already.
func TestAdmit(t *testing.T) {
	t.Parallel()
	type held struct{ begun, joined int } // by one client
	for _, tt := range []struct {
		name    string
		bounds  Plan
		held    []held // by the clients; the first is the one who asks
		refresh int
		joins   bool // what he asks is under way
		want    Shed
	}{
		{"no query waits", Plan{Inflight: 1, Waiting: 1}, nil, 0, false, admitted},
		{"no place at all", Plan{}, nil, 0, false, ShedWaiting},
		{"below its own bound", Plan{Inflight: 100, Waiting: 100, PerClient: 4}, []held{{3, 0}}, 0, false, admitted},
		{"at its own bound", Plan{Inflight: 100, Waiting: 100, PerClient: 4}, []held{{4, 0}}, 0, false, ShedClient},
		{"at its own bound by having joined", Plan{Inflight: 100, Waiting: 100, PerClient: 4}, []held{{1, 3}}, 0, false, ShedClient},
		{"at its own bound, joining", Plan{Inflight: 100, Waiting: 100, PerClient: 4}, []held{{0, 4}}, 0, true, ShedClient},
		{"others at theirs", Plan{Inflight: 100, Waiting: 100, PerClient: 4}, []held{{3, 0}, {4, 0}, {0, 4}}, 0, false, admitted},
		{"alone, below five sixths of the queries", Plan{Inflight: 96, Waiting: 100}, []held{{79, 0}}, 0, false, admitted},
		{"alone, with five sixths of the queries", Plan{Inflight: 96, Waiting: 100}, []held{{80, 0}}, 0, false, ShedClient},
		{"alone, with five sixths of the queries, joining", Plan{Inflight: 96, Waiting: 1000}, []held{{80, 0}}, 0, true, admitted},
		{"alone, with one place left", Plan{Inflight: 8, Waiting: 100}, []held{{7, 0}}, 0, false, ShedClient},
		{"many places by having joined", Plan{Inflight: 8, Waiting: 100}, []held{{1, 70}}, 0, false, admitted},
		{"more than its threshold since another client came", Plan{Inflight: 96, Waiting: 100}, []held{{60, 0}, {22, 0}}, 0, false, ShedClient},
		{"the other client", Plan{Inflight: 96, Waiting: 100}, []held{{22, 0}, {60, 0}}, 0, false, admitted},
		{"one of eight greedy ones below a ninth", Plan{Inflight: 9, Waiting: 100}, []held{{0, 0}, {4, 0}, {3, 0}}, 0, false, admitted},
		{"one of eight greedy ones with a ninth", Plan{Inflight: 9, Waiting: 100}, []held{{1, 0}, {4, 0}, {3, 0}}, 0, false, ShedClient},
		{"a newcomer beside two greedy ones", Plan{Inflight: 9, Waiting: 100}, []held{{0, 0}, {4, 0}, {4, 0}}, 0, false, admitted},
		{"a newcomer when all is full", Plan{Inflight: 9, Waiting: 100}, []held{{0, 0}, {5, 0}, {4, 0}}, 0, false, ShedInflight},
		{"a newcomer who joins when all is full", Plan{Inflight: 9, Waiting: 100}, []held{{0, 0}, {5, 0}, {4, 0}}, 0, true, admitted},
		{"refreshes take no client's place", Plan{Inflight: 9, Waiting: 100}, []held{{0, 0}, {4, 0}, {4, 0}}, 9, false, admitted},
		{"below five sixths of the waiting", Plan{Inflight: 96, Waiting: 96}, []held{{0, 79}}, 0, true, admitted},
		{"five sixths of the waiting", Plan{Inflight: 96, Waiting: 96}, []held{{0, 80}}, 0, true, ShedClient},
		{"five sixths of the waiting, beginning", Plan{Inflight: 96, Waiting: 96}, []held{{0, 80}}, 0, false, ShedClient},
		{"a newcomer when none may wait", Plan{Inflight: 8, Waiting: 8}, []held{{0, 0}, {2, 6}}, 0, true, ShedWaiting},
		{"in-flight queries without waiters", Plan{Inflight: 96, Waiting: 100, PerClient: 4}, []held{{80, -80}}, 0, false, ShedClient},
		{"bounds that were lowered", Plan{Inflight: 2, Waiting: 2}, []held{{0, 0}, {8, 8}}, 0, false, ShedWaiting},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var fs queryTable
			fs.init()
			fs.count, fs.refreshes = tt.refresh, tt.refresh
			for i, h := range tt.held {
				if h == (held{}) {
					continue
				}
				c := fs.addClientLocked(address(i))
				c.queries, c.waiting = h.begun, h.begun+h.joined
				fs.count += c.queries
				fs.waiting += c.waiting
			}
			waiting := fs.waiting
			c, why := fs.admitLocked(address(0), !tt.joins, &tt.bounds)
			if c != nil {
				why = admitted
			}
			if why != tt.want {
				t.Errorf("got %s, want %s", shedName(why), shedName(tt.want))
			}
			if counted := fs.waiting == waiting+1; counted != (tt.want == admitted) {
				t.Errorf("%d wait, before it was %d", fs.waiting, waiting)
			}
		})
	}
}

func shedName(s Shed) string { return append(Sheds(), "admitted")[s] }

// A ledger is in-flight queries as they are meant to be, beside those that are.
type ledger struct {
	t      *testing.T
	fs     queryTable
	plan   Plan
	random *rand.Rand
	under  []*inFlight
	begun  map[clientKey]int
	waits  map[clientKey]int
	shed   [shedCount]int
}

// ask has a client ask for a name: it joins an in-flight query, begins one or is shed.
func (l *ledger) ask(who clientKey, name int, now time.Time) {
	key := []byte(strconv.Itoa(name))
	hash := uint64(name & 1023)
	f := l.fs.findLocked(hash, key)
	free := l.plan.Inflight - (l.fs.count - l.fs.refreshes)
	c, why := l.fs.admitLocked(who, f == nil, &l.plan)
	switch {
	case c == nil:
		l.shed[why]++
		_, _ = l.fs.floodLocked(who, now)
		return
	case f != nil:
		f.joined = append(f.joined, waiter{client: c})
	default:
		if reserve := float64(l.plan.Inflight) / 8; l.begun[who] >= free && float64(free) <= reserve {
			l.t.Fatalf("%v has begun %d in-flight queries and may begin one more with %d free: its part of the reserve of %v is less", who, l.begun[who], free, reserve)
		}
		f = &inFlight{key: key, hash: hash, client: c, first: waiter{client: c}}
		l.fs.addLocked(f)
		l.under = append(l.under, f)
		l.begun[who]++
	}
	l.waits[who]++
}

// leave replies to all who wait for an in-flight query, which goes on.
func (l *ledger) leave(f *inFlight) {
	if c := f.first.client; c != nil {
		l.waits[c.key]--
		f.first.client = nil
		l.fs.removeWaiterLocked(c)
	}
	for _, w := range f.joined {
		l.waits[w.client.key]--
		l.fs.removeWaiterLocked(w.client)
	}
	f.joined = nil
}

// land ends an in-flight query.
func (l *ledger) land(i int) {
	f := l.under[i]
	l.under = slices.Delete(l.under, i, i+1)
	if f.client != nil {
		l.begun[f.client.key]--
	}
	if c := f.first.client; c != nil {
		l.waits[c.key]--
	}
	for _, w := range f.joined {
		l.waits[w.client.key]--
	}
	l.fs.remove(f)
}

// check compares the counts with the model's, and with the bounds.
func (l *ledger) check() {
	l.t.Helper()
	waiting, records := 0, 0
	for who, n := range l.waits {
		waiting += n
		c := l.fs.clients[who]
		if n == 0 && l.begun[who] == 0 {
			if c != nil {
				l.t.Fatalf("%v has a record and waits for nothing", who)
			}
			continue
		}
		records++
		if c == nil || c.key != who || c.waiting != n || c.queries != l.begun[who] {
			l.t.Fatalf("%v: got %+v, want %d waiting, %d in-flight queries", who, c, n, l.begun[who])
		}
		if n > l.plan.PerClient {
			l.t.Fatalf("%d wait of %v", n, who)
		}
	}
	if l.fs.waiting != waiting || l.fs.count != len(l.under) || len(l.fs.clients) != records {
		l.t.Fatalf("%d waiting, %d in-flight queries, %d clients, want %d, %d, %d",
			l.fs.waiting, l.fs.count, len(l.fs.clients), waiting, len(l.under), records)
	}
	if waiting > l.plan.Waiting || l.fs.count-l.fs.refreshes > l.plan.Inflight {
		l.t.Fatalf("%d waiting, %d in-flight queries: more than the bounds", waiting, l.fs.count)
	}
}

// TestAccount lets clients come, be shed and leave in any order, early or with
// their query. The counts are right all the time, within the bounds, and zero at the
// end; and all records are there to be used again.
func TestAccount(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(7, 8))
	var shed [shedCount]int
	for round := range 200 {
		l := ledger{t: t, random: random, begun: map[clientKey]int{}, waits: map[clientKey]int{}}
		l.fs.init()
		l.plan = Plan{Inflight: 1 + random.IntN(40), PerClient: 1 + random.IntN(30)}
		l.plan.Waiting = l.plan.Inflight + random.IntN(60)
		names, clients := 1+random.IntN(100), 1+random.IntN(60)
		for range 500 {
			switch op := random.IntN(10); {
			case op < 6:
				l.ask(address(random.IntN(clients)), random.IntN(names), time.Unix(int64(round), 0))
			case len(l.under) == 0:
			case op < 7:
				l.leave(l.under[random.IntN(len(l.under))])
			default:
				l.land(random.IntN(len(l.under)))
			}
			l.check()
		}
		for len(l.under) > 0 {
			l.land(0)
		}
		l.check()
		free := 0
		for c := l.fs.freeClients; c != nil; c = c.next {
			free++
		}
		if l.fs.waiting != 0 || l.fs.count != 0 || len(l.fs.clients) != 0 || free > min(clients, l.plan.Waiting+l.plan.Inflight) {
			t.Fatalf("at the end %d waiting, %d in-flight queries, %d clients, %d records", l.fs.waiting, l.fs.count, len(l.fs.clients), free)
		}
		for i, n := range l.shed {
			shed[i] += n
		}
	}
	for _, why := range []Shed{ShedClient, ShedWaiting, ShedInflight} {
		if shed[why] == 0 {
			t.Errorf("no query was shed for %q: this test shows less than it should", shedName(why))
		}
	}
}

// TestGreedy lets clients ask for as many names as they can get. They end with equal shares, and a client
// that comes then is admitted.
func TestGreedy(t *testing.T) {
	t.Parallel()
	const places = 4096
	for _, tt := range []struct{ clients, want int }{
		{1, places * 5 / 6},
		{2, places * 3 / 7},
		{3, places * 15 / 52},
		{7, places / 8},
		{9, places / 10},
		{31, places / 32},
		{100, places / 101},
		{1000, places / 1001},
	} {
		l := ledger{t: t, begun: map[clientKey]int{}, waits: map[clientKey]int{}}
		l.fs.init()
		l.plan = Plan{Inflight: places, Waiting: 4 * places}
		name := 0
		for range 2*places/tt.clients + 2 {
			for i := range tt.clients {
				name++
				l.ask(address(i), name, time.Unix(1, 0))
			}
		}
		for i := range tt.clients {
			if got := l.begun[address(i)]; got < tt.want-(tt.want+63)/64 || got > tt.want+1 { // a 64th is for proven addresses
				t.Errorf("%d greedy clients: one of them has %d places, want %d", tt.clients, got, tt.want)
			}
		}
		if c, why := l.fs.admitLocked(address(tt.clients), true, &l.plan); c == nil {
			t.Errorf("%d greedy clients: a newcomer is shed: %s", tt.clients, shedName(why))
		}
	}
}

// TestFloods counts sheds of many clients over seconds.
func TestFloods(t *testing.T) {
	t.Parallel()
	var fs queryTable
	fs.init()
	const first = 1_800_000_000
	for _, second := range []int64{first, first + 1, first + floodPause - 1, first + floodPause, first + floodPause + 1} {
		for range 10 {
			for n := range floodSheds / 10 {
				if silent, _ := fs.floodLocked(address(1), time.Unix(second, int64(n))); silent {
					t.Fatalf("second %d: it floods within the first %d", second, floodSheds)
				}
			}
		}
		silent, news := fs.floodLocked(address(1), time.Unix(second, 1e9-1))
		if !silent || news != (second == first || second == first+floodPause) {
			t.Errorf("second %d: after %d it floods: %t, and is logged: %t", second, floodSheds, silent, news)
		}
		for n := 2; n < 3000; n++ { // the slots are few, but no client is taken for another
			if silent, _ := fs.floodLocked(address(n), time.Unix(second, 1e9-1)); silent {
				t.Fatalf("second %d: client %d floods with one query", second, n)
			}
		}
	}
}

// TestHitsAreNotLimited checks that a hit is answered while the lock of the clients' accounts is
// held: no hit waits for it.
func TestHitsAreNotLimited(t *testing.T) {
	t.Parallel()
	c, err := cache.New(cache.Config{Size: 1 << 20}, time.Now())
	assert.NoError(t, err)
	r, err := New(Config{Plan: &Plan{Cache: c, UDPSize: wire.SafeUDP}, Now: time.Now, Rand: crand.Reader})
	assert.NoError(t, err)
	q := new(dns.Msg).SetQuestion("www.test.", dns.TypeA)
	pkt, err := q.Pack()
	assert.NoError(t, err)
	held := new(dns.Msg).SetReply(q)
	msg, err := held.Pack()
	assert.NoError(t, err)
	worker, from := r.NewWorker(), wire.Peer{Addr: netip.AddrPortFrom(address(1).addr, 53)}
	if _, verdict := worker.AnswerFromMemory(pkt, &from, time.Now(), nil); verdict != wire.Missed {
		t.Fatalf("verdict %v, want a miss", verdict)
	}
	c.Put(worker.query.Key(), &cache.Answer{Msg: msg, Lifetime: time.Minute}, time.Now())
	r.queries.mu.Lock()
	defer r.queries.mu.Unlock()
	done := make(chan wire.Verdict, 1)
	go func() {
		_, verdict := worker.AnswerFromMemory(pkt, &from, time.Now(), nil)
		worker.Flush(time.Now())
		done <- verdict
	}()
	select {
	case verdict := <-done:
		if verdict != wire.Answered {
			t.Errorf("verdict %v, want an answer", verdict)
		}
	case <-time.After(10 * time.Second):
		t.Error("a hit waits for the account of clients")
	}
}
