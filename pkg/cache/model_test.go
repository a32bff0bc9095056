// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/cache"
)

// A stored is what the model knows of one answer.
type stored struct {
	answer  *cache.Answer
	at      time.Time
	life    time.Duration
	failure bool
	hits    int
	due     bool // was said
	turn    int
}

// A model is the slow and obvious cache: a map that forgets nothing, beside the
// cache that is tested. The cache may forget what it was told, if it counts that.
type model struct {
	tb       testing.TB
	c        *cache.Cache
	now      time.Time
	prefetch cache.Prefetch
	entries  map[string]*stored
	want     cache.Stats // the counts that do not depend on what is evicted
	added    uint64      // answers that came in under a key that was free
	keys     [][]byte
}

func newModel(tb testing.TB, size, shards int) *model {
	tb.Helper()
	c, err := cache.NewTiny(size, shards, epoch)
	if err != nil {
		tb.Fatal(err)
	}
	return &model{tb: tb, c: c, now: epoch, entries: map[string]*stored{}, keys: modelKeys()}
}

// modelKeys are keys that are alike: prefixes of each other, the same name with
// other types, tails that look like names.
func modelKeys() [][]byte {
	var keys [][]byte
	for _, name := range []string{".", "a.", "a.a.", "aa.", "svc.cluster.local.", "0123456789012345678901234567890.org."} {
		for _, rrtype := range []uint16{1, 28, 256} {
			keys = append(keys, keyOf(name, rrtype, 0), keyOf(name, rrtype, 3), keyOf(name, rrtype),
				keyOf(name, rrtype, 0, 0, 1, 8, 0, 10), keyOf(name, rrtype, 0, 1, 'a', 0, 0, 1, 0))
		}
	}
	for i := range 40 {
		keys = append(keys, nth("n", i))
	}
	return keys
}

// A tape is the source of a run's choices.
type tape []byte

func (p *tape) next() int {
	if len(*p) == 0 {
		return 0
	}
	b := (*p)[0]
	*p = (*p)[1:]
	return int(b)
}

// run plays the choices on p, and checks the cache after each.
func (m *model) run(p tape) {
	m.tb.Helper()
	for len(p) > 0 {
		op := p.next()
		switch key := m.keys[p.next()%len(m.keys)]; op % 16 {
		case 0, 1, 2, 3, 4:
			m.put(key, p.next(), p.next())
		case 5:
			m.putFailure(key, p.next())
		case 6, 7, 8, 9, 10, 11:
			m.lookup(key, time.Duration(op/16%4)*time.Second)
		case 12, 13:
			m.now = m.now.Add(time.Duration(p.next()) * 100 * time.Millisecond)
		case 14:
			m.setPrefetch(p.next())
		case 15:
			if choice := p.next(); choice < 48 { // seldom, so that logs wrap in between
				m.resize(choice)
			}
		}
		m.check()
	}
	for _, key := range m.keys {
		m.lookup(key, 0)
	}
	m.check()
}

// know forgets of key what the cache forgot, and tells whether it is stored.
func (m *model) know(key []byte) (*stored, bool) {
	m.tb.Helper()
	held, e := m.c.Holds(key), m.entries[string(key)]
	if held && e == nil {
		m.tb.Fatalf("%x is held and was never stored", key)
	}
	if !held {
		delete(m.entries, string(key))
	}
	return m.entries[string(key)], held
}

func (m *model) put(key []byte, shape, life int) {
	m.tb.Helper()
	lives := []int{1, 2, 5, 7, 30, 100, 300, 0}
	a := m.answer(key, shape, time.Duration(lives[life%len(lives)])*time.Second)
	_, held := m.know(key)
	m.c.Put(key, a, m.now)
	m.stored(key, a, held, false)
}

// stored notes that a was given to the cache.
func (m *model) stored(key []byte, a *cache.Answer, held, failure bool) {
	m.tb.Helper()
	if !m.c.Takes(key, a) || a.Life < time.Second {
		m.want.Rejected++
		return
	}
	m.want.Insertions++
	if !held {
		m.added++
	}
	m.entries[string(key)] = &stored{answer: a, at: m.now, life: a.Life, failure: failure}
	if !m.c.Holds(key) {
		m.tb.Fatalf("%x was stored and is not held", key)
	}
}

// answer makes one of many shapes, no two alike.
func (m *model) answer(key []byte, shape int, life time.Duration) *cache.Answer {
	mark := binary.BigEndian.AppendUint64(nil, m.want.Insertions)
	var records []rr
	if shape%3 == 0 {
		records = append(records, rr{rrtype: 5, ttl: uint32(shape), rdata: mark})
	}
	first, count := len(records), shape%7
	size := 4
	if shape%2 == 0 {
		size = 16
	}
	for i := range count {
		records = append(records, rr{rrtype: 1, ttl: 60, rdata: fmt.Appendf(nil, "%-*d", size, i)[:size]})
	}
	records = append(records, rr{rrtype: 16, ttl: uint32(life / time.Second), rdata: append(mark, make([]byte, shape/16*70)...)})
	a := answerTo(key, life, records...)
	if count > 0 {
		a.RotateFirst, a.RotateCount = first, count
	}
	return a
}

func (m *model) putFailure(key []byte, choice int) {
	m.tb.Helper()
	first, limit := time.Second, time.Duration(1+choice%6)*time.Second
	e, held := m.know(key)
	life := first
	if e != nil {
		since := m.now.Sub(e.at)
		if !e.failure && since < e.life {
			life = -1
		}
		if e.failure && since < 2*e.life {
			life = min(2*e.life, limit)
		}
	}
	a := answerTo(key, life)
	m.c.PutFailure(key, a.Msg, first, limit, m.now)
	if life > 0 {
		m.stored(key, a, held, true)
	}
}

// lookup asks for key as one whose clock is late would.
func (m *model) lookup(key []byte, late time.Duration) {
	m.tb.Helper()
	now := m.now.Add(-late)
	e, _ := m.know(key)
	prefix := []byte("before")
	got, found := m.c.Lookup(key, now, prefix)
	if diff := cmp.Diff("before", string(got[:len(prefix)])); diff != "" {
		m.tb.Fatalf("bytes in front changed (-want +got)\n%s", diff)
	}
	got = got[len(prefix):]
	if e == nil || now.Sub(e.at) >= e.life {
		m.want.Misses++
		if e != nil {
			m.want.Expired++
		}
		if found != cache.Absent || len(got) > 0 {
			m.tb.Fatalf("%x: found %d %x, want nothing", key, found, got)
		}
		return
	}
	m.want.Hits++
	if want := m.freshness(e, now); found != want {
		m.tb.Fatalf("%x: freshness %d, want %d of %+v", key, found, want, e)
	}
	if diff := cmp.Diff(e.asOf(now), got); diff != "" {
		m.tb.Fatalf("%x (-want +got)\n%s", key, diff)
	}
	e.turn++
}

// freshness counts a lookup of e and says what it should find.
func (m *model) freshness(e *stored, now time.Time) cache.Freshness {
	e.hits++
	if e.failure {
		return cache.Failed
	}
	left := e.life - now.Sub(e.at)
	if m.prefetch.Hits == 0 || e.hits < m.prefetch.Hits || e.due || float64(left) >= float64(e.life)*m.prefetch.Remaining {
		return cache.Fresh
	}
	e.due = true
	return cache.Due
}

// asOf is the answer that is given now.
func (e *stored) asOf(now time.Time) []byte {
	msg := append([]byte(nil), e.answer.Msg...)
	age := uint32(max(0, now.Sub(e.at)) / time.Second)
	for _, off := range e.answer.TTLs {
		ttl := binary.BigEndian.Uint32(msg[off:])
		binary.BigEndian.PutUint32(msg[off:], ttl-min(ttl, age))
	}
	rdata := rdataOf(e.answer, e.answer.Msg)
	first, count := e.answer.RotateFirst, e.answer.RotateCount
	for i := range count {
		copy(msg[e.answer.TTLs[first+i]+6:], rdata[first+(i+e.turn)%count])
	}
	return msg
}

func (m *model) setPrefetch(choice int) {
	m.prefetch = cache.Prefetch{Hits: choice % 4, Remaining: []float64{0.1, 0.5, 1, 0}[choice/4%4]}
	m.c.SetPrefetch(m.prefetch)
}

func (m *model) resize(choice int) {
	m.tb.Helper()
	var d *cache.Cache
	var err error
	switch choice % 8 {
	case 0:
		d, err = m.c.Resized(cache.Config{Size: cache.MinSize, Prefetch: m.prefetch}, m.now)
	default:
		d, err = m.c.ResizedTiny(1<<(10+choice%8), 1<<(choice/8%3), m.now)
	}
	if err != nil {
		m.tb.Fatal(err)
	}
	d.SetPrefetch(m.prefetch)
	if choice%8 == 0 {
		for _, key := range m.keys {
			if e, held := m.know(key); held && m.now.Sub(e.at) < e.life && !d.Holds(key) {
				m.tb.Fatalf("%x was usable and is not in the larger cache", key)
			}
		}
	}
	m.c = d
	s := d.Stats()
	m.want = cache.Stats{}
	m.added = uint64(s.Entries) + s.Evictions + s.Expirations
}

// check compares the counts and looks inside.
func (m *model) check() {
	m.tb.Helper()
	check(m.tb, m.c)
	got := m.c.Stats()
	if lost := m.added - got.Evictions - got.Expirations; uint64(got.Entries) != lost {
		m.tb.Fatalf("%d entries, want %d of %d: %+v", got.Entries, lost, m.added, got)
	}
	held := 0
	for _, key := range m.keys {
		if m.c.Holds(key) {
			held++
		}
	}
	if int64(held) != got.Entries || got.Bytes+got.Fixed > got.Capacity {
		m.tb.Fatalf("%d keys are held: %+v", held, got)
	}
	got.Evictions, got.Expirations, got.Entries, got.Bytes, got.Fixed, got.Capacity = 0, 0, 0, 0, 0, 0
	if diff := cmp.Diff(m.want, got); diff != "" {
		m.tb.Fatalf("stats (-want +got)\n%s", diff)
	}
}

func TestAgainstModel(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name         string
		size, shards int
		steps        int
	}{
		{name: "a few entries", size: 2048, shards: 1, steps: 6000},
		{name: "tens of entries", size: 8192, shards: 1, steps: 6000},
		{name: "four shards", size: 4096, shards: 4, steps: 6000},
		{name: "room for all", size: 1 << 17, shards: 1, steps: 3000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(4) {
				r := rand.New(rand.NewPCG(seed, uint64(tt.size)))
				p := make(tape, tt.steps)
				for i := range p {
					p[i] = byte(r.Uint32())
				}
				newModel(t, tt.size, tt.shards).run(p)
			}
		})
	}
}

// FuzzCache plays any sequence of operations against the model.
func FuzzCache(f *testing.F) {
	f.Add([]byte{0, 3, 7, 4, 6, 3, 12, 0, 55, 6, 3})
	f.Add([]byte{5, 1, 4, 5, 1, 4, 12, 0, 30, 5, 1, 4, 6, 1, 1, 1, 6, 2, 5, 1, 4})
	f.Add([]byte{14, 0, 6, 0, 9, 18, 4, 6, 9, 12, 0, 200, 6, 9, 22, 9, 15, 0, 0, 6, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 || len(data) > 1024 {
			return
		}
		m := newModel(t, 1024<<(data[0]%5), 1)
		m.run(data[1:])
	})
}
