// SPDX-License-Identifier: Apache-2.0

package hits

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A questioner makes random queries. It knows what the process replies to them.
type questioner struct {
	random   *rand.Rand
	subjects []subject
	worker   *resolve.Worker
	from     wire.Peer
	known    map[string]*expected // replies to questions whose records rotate, by the query without ID and case
	key      []byte
	reply    []byte
}

// A random query, and what the process replied to it before it was sent; a nil expected: it is not in memory yet.
type randomQuery struct {
	pkt     []byte
	process *expected
}

// sizes are EDNS sizes around those of replies.
var sizes = []uint16{0, 511, 512, 513, 520, 525, 530, 535, 540, 700, 760, 780, 1232, 65535}

// next makes a query: mostly one that the kernel may answer, for a name that mostly exists.
func (a *questioner) next(now time.Time) randomQuery {
	r := a.random
	s := a.subjects[r.IntN(len(a.subjects))]
	rrtype := s.rrtype
	if r.IntN(16) == 0 {
		rrtype = []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT, dns.TypePTR, dns.TypeHTTPS, dns.TypeANY, 0, 255}[r.IntN(9)]
	}
	name := wireName(s.name)
	switch r.IntN(16) {
	case 0:
		name = append([]byte{3, 'x', byte('a' + r.IntN(26)), byte(r.IntN(256))}, name...)
	case 1:
		name[r.IntN(len(name))] ^= 1 << r.IntN(8)
	}
	if len(name) > wire.MaxName {
		name = wireName(s.name)
	}
	pkt := rawQuery(name, rrtype)
	for i := 12; i < 12+len(name) && r.IntN(2) == 0; i++ {
		if c := pkt[i] | 0x20; 'a' <= c && c <= 'z' && r.IntN(2) == 0 {
			pkt[i] ^= 0x20
		}
	}
	if r.IntN(4) == 0 {
		pkt[3] |= 0x20
	}
	if r.IntN(2) == 0 {
		pkt = withOPT(pkt, sizes[r.IntN(len(sizes))], r.IntN(2) == 0)
	}
	if r.IntN(64) == 0 {
		pkt[2+r.IntN(len(pkt)-2)] ^= 1 << r.IntN(8)
		pkt[2] &^= 0x80 // a response gets no reply
	}
	return randomQuery{pkt, a.expect(pkt, now)}
}

// expect returns what the process replies to a query; nil if that is not in memory.
func (a *questioner) expect(pkt []byte, now time.Time) *expected {
	name := len(pkt) - 4 - 11*int(pkt[11]&1) // its end, in a query without defects
	a.key = append(a.key[:0], pkt[2:]...)
	wire.Canonical(a.key[10:max(12, name)-2], pkt[12:max(12, name)])
	if e := a.known[string(a.key)]; e != nil {
		return e.at(a.ask(pkt, now))
	}
	e := new(expected)
	for i := 0; i < 4 || len(e.forms) > 1 && i < mostRotations; i++ {
		reply := a.ask(pkt, now)
		if reply == nil {
			return nil
		}
		e.add(reply)
	}
	if len(e.forms) > 1 && len(a.known) < 1<<14 {
		a.known[string(a.key)] = e
	}
	return e
}

// ask returns the reply of a worker of the process.
func (a *questioner) ask(pkt []byte, now time.Time) []byte {
	reply, verdict := a.worker.AnswerFromMemory(pkt, &a.from, now, a.reply[:0])
	a.reply = reply
	if verdict != wire.Answered {
		return nil
	}
	return reply
}

// at returns the expected replies with the TTLs of one that was made now; nil for none.
func (e *expected) at(reply []byte) *expected {
	if reply == nil {
		return nil
	}
	return &expected{forms: e.forms, most: e.read(reply)}
}

// TestRandomQueries compares replies to random queries with those of the process.
func TestRandomQueries(t *testing.T) {
	n := startNode(t)
	if n == nil {
		return
	}
	const clients = 2
	count := 200_000 / clients
	if soak() {
		count = 10_000_000 / clients
	}
	var compared, failures atomic.Int64
	var running sync.WaitGroup
	start, before := time.Now(), n.received()
	for i := range clients {
		var batches []*batch
		for _, p := range n.pods[:2] {
			for family := range families {
				batches = append(batches, p.newBatch(t, family))
			}
		}
		seed := uint64(time.Now().UnixNano())
		t.Logf("client %d: seed %d", i, seed)
		a := &questioner{
			random: rand.New(rand.NewPCG(seed, 0)), subjects: subjects(), worker: n.resolver.NewWorker(), known: map[string]*expected{},
			from: wire.Peer{Addr: netip.AddrPortFrom(n.pods[0].addrs[0], 1)},
		}
		running.Go(func() {
			for sent := 0; sent < count && failures.Load() < 20; sent += batchSize {
				compared.Add(int64(a.round(batches[sent/batchSize%len(batches)], func(err error) {
					failures.Add(1)
					t.Error(err)
				})))
			}
		})
	}
	running.Wait()
	all := uint64(clients * (count + batchSize - 1) / batchSize * batchSize)
	passed := n.received() - before
	took := time.Since(start).Round(time.Second)
	proctest.Figure(t, "random queries: %d in %s, %d replies compared, %d of the kernel", all, took, compared.Load(), all-passed)
	if failures.Load() == 0 && (all-passed < all/4 || compared.Load() < int64(all)*9/10) {
		t.Errorf("of %d queries the kernel answered %d, and %d were compared", all, all-passed, compared.Load())
	}
}

// round exchanges a batch of queries, and returns how many replies it has compared.
func (a *questioner) round(b *batch, failed func(error)) (compared int) {
	queries, pkts := make([]randomQuery, batchSize), make([][]byte, batchSize)
	now := time.Now()
	for i := range queries {
		queries[i] = a.next(now)
		pkts[i] = queries[i].pkt
	}
	if err := b.exchange(pkts, func(i int, reply []byte) {
		if want := queries[i].process; want != nil {
			compared++
			diff := want.differ(reply)
			if diff != "" { // the answer may have expired and been fetched again
				if later := a.expect(queries[i].pkt, time.Now()); later != nil {
					diff = later.differ(reply)
				}
			}
			if diff != "" {
				failed(fmt.Errorf("%s: query %x, reply %x", diff, queries[i].pkt, reply))
			}
		}
	}); err != nil {
		failed(err)
	}
	return compared
}

// TestRotation counts how often each address comes first.
func TestRotation(t *testing.T) {
	n := startNode(t)
	if n == nil {
		return
	}
	const count = 100 * batchSize
	for name, addresses := range map[string]int{"db.shop.svc.cluster.local.": 5, "zoned.shop.svc.cluster.local.": 3, "www.test.": 3} {
		for family, rrtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			if name == "www.test." && rrtype == dns.TypeAAAA {
				addresses = 2
			}
			p := n.pods[family]
			if !n.prime(t, p.dial(t, family), query(name, rrtype)) {
				t.Fatalf("%s: the kernel does not answer", name)
			}
			b, pkts := p.newBatch(t, family), make([][]byte, batchSize)
			for i := range pkts {
				pkts[i] = query(name, rrtype)
			}
			first := map[string]int{}
			var m wire.Message
			before := n.received()
			for range count / batchSize {
				assert.NoError(t, b.exchange(pkts, func(_ int, reply []byte) {
					assert.NoError(t, m.Parse(reply))
					r := m.Records[0]
					first[string(m.Raw[r.Data():][:r.Size])]++
				}))
			}
			what := name + " " + dns.Type(rrtype).String()
			assert.Equal(t, what+": addresses that come first", addresses, len(first))
			for addr, times := range first {
				if mean := count / addresses; times < mean*9/10 || times > mean*11/10 {
					t.Errorf("%s: %x comes first %d of %d times, want about %d", what, addr, times, count, mean)
				}
			}
			if passed := n.received() - before; passed > count/10 {
				t.Errorf("%s: the kernel passed %d of %d queries", what, passed, count)
			}
		}
	}
}
