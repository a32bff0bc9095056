// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
)

// A stored is the model's state of one answer.
type stored struct {
	answer   *cache.Answer
	at       time.Time
	asked    time.Time // to a tenth of a second
	life     time.Duration
	failure  bool
	hits     int
	due      bool // was said
	turn     int
	rest     time.Time
	failures int
	kept     bool
}

// A model is a simple reference cache: a map without eviction, next to the cache under test. The cache
// may evict entries if it counts them.
type model struct {
	tb       testing.TB
	c        *cache.Cache
	now      time.Time
	prefetch cache.Prefetch
	stale    cache.ServeStale
	entries  map[string]*stored
	events   map[uint16]time.Time // last change of each owner, by its place
	vouched  [2]time.Time         // last call of Vouch for answers with records, and for denials
	want     cache.Stats          // the counts that do not depend on what is evicted
	added    uint64               // answers that came in under a key that was free
	replaced uint64               // answers that another one took out
	keys     [][]byte             // to ask for
	all      [][]byte             // keys, and those of the denials
}

func newModel(tb testing.TB, size, shards int) *model {
	tb.Helper()
	c, err := cache.NewTiny(size, shards, epoch)
	assert.NoError(tb, err)
	m := &model{tb: tb, c: c, now: epoch, entries: map[string]*stored{}, events: map[uint16]time.Time{}, keys: modelKeys()}
	known := map[string]bool{}
	for _, key := range m.keys {
		for _, key := range [][]byte{key, denialKeyOf(key)} {
			if !known[string(key)] {
				known[string(key)] = true
				m.all = append(m.all, key)
			}
		}
	}
	return m
}

// modelKeys are similar keys: prefixes of each other, one name with several types, tails that look like
// names, names below each other.
func modelKeys() [][]byte {
	var keys [][]byte
	for _, name := range []string{".", "a.", "a.a.", "aa.", "svc.cluster.local.", "0123456789012345678901234567890.org."} {
		for _, rrtype := range []uint16{1, 28, 256} {
			keys = append(keys, keyOf(name, rrtype, 0), keyOf(name, rrtype, 3), keyOf(name, rrtype),
				keyOf(name, rrtype, 0, 0, 1, 8, 0, 10), keyOf(name, rrtype, 0, 1, 'a', 0, 0, 1, 0))
		}
	}
	for _, name := range []string{"b.a.a.", "local.", "cluster.local.", "a.svc.cluster.local.", "b.svc.cluster.local."} {
		keys = append(keys, keyOf(name, 1, 0), keyOf(name, 28, 0), keyOf(name, 0, 0))
	}
	for i := range 40 {
		keys = append(keys, nth("n", i))
	}
	return keys
}

// nameOf and denialKeyOf return the name of a key, and the key of its denial.
func nameOf(key []byte) []byte { return key[:questionLen(key)-2] }

func denialKeyOf(key []byte) []byte {
	denial := bytes.Clone(key)
	binary.BigEndian.PutUint16(denial[len(nameOf(key)):], 0)
	return denial
}

// typeOf returns the type of a key.
func typeOf(key []byte) uint16 { return binary.BigEndian.Uint16(key[len(nameOf(key)):]) }

// labels returns the labels of a name, with the root.
func labels(name []byte) (all []string) {
	for name[0] != 0 {
		all = append(all, string(name[1:1+name[0]]))
		name = name[1+name[0]:]
	}
	return append(all, "")
}

// below reports whether name is at or below zone.
func below(name, zone []byte) bool {
	n, z := labels(name), labels(zone)
	return len(n) >= len(z) && slices.Equal(n[len(n)-len(z):], z)
}

// ownerOf returns the owner of a name: the name itself in the cluster zone, a shared owner for some
// others.
func ownerOf(name []byte) []byte {
	switch all := labels(name); {
	case slices.Contains(all, "cluster"):
		return []byte(strings.Join(all[len(all)-2:], "."))
	case strings.HasSuffix(all[0], "7"):
		return []byte("seven")
	default:
		return nil
	}
}

// choices is the input of a run.
type choices []byte

func (c *choices) next() int {
	if len(*c) == 0 {
		return 0
	}
	b := (*c)[0]
	*c = (*c)[1:]
	return int(b)
}

// run plays the choices in p, and checks the cache after each.
func (m *model) run(p choices) {
	m.tb.Helper()
	for len(p) > 0 {
		op := p.next()
		m.step(op, m.keys[p.next()%len(m.keys)], &p)
		m.check()
	}
	for _, key := range m.keys {
		m.lookup(key, 0)
	}
	m.check()
}

func (m *model) step(op int, key []byte, p *choices) {
	m.tb.Helper()
	switch op % 36 {
	case 0, 1, 2, 3, 4, 5, 6, 7:
		m.put(key, p.next(), p.next(), p.next())
	case 8, 9:
		m.putFailure(key, p.next())
	case 10, 11, 12, 13, 14, 15, 16, 17:
		m.lookup(key, time.Duration(op/32%4)*time.Second)
	case 18:
		m.lookupStale(key)
	case 19:
		m.delayRefresh(key, p.next())
	case 20, 21:
		m.lookupNXDomainCut(nameOf(key), p.next(), byte(op/32%4))
	case 22, 23, 24, 25:
		m.now = m.now.Add(time.Duration(p.next()) * 100 * time.Millisecond)
	case 26:
		m.changed(key, p.next())
	case 27:
		m.setPrefetch(p.next())
	case 28:
		m.setStale(p.next())
	case 29:
		m.remove(key)
	case 32, 33:
		m.vouch(op%36 == 32)
	case 34:
		m.c.Unkeep(key)
		for _, key := range [][]byte{key, denialKeyOf(key)} {
			m.unkeep(m.entries[string(key)])
		}
	case 35:
		m.c.UnkeepAll()
		for _, e := range m.entries {
			m.unkeep(e)
		}
	case 30:
		switch choice := p.next(); {
		case choice < 96:
			m.flush(nameOf(key), choice%3 == 0)
		case choice < 128:
			m.expire(nameOf(key))
		}
	case 31:
		if choice := p.next(); choice < 48 { // seldom, so that logs wrap in between
			m.resize(choice)
		}
	}
}

// check compares the counters and verifies the invariants.
func (m *model) check() {
	m.tb.Helper()
	check(m.tb, m.c)
	got := m.c.Stats()
	if lost := m.added - got.Evictions - got.Expirations - got.Removed - m.replaced; uint64(got.Entries) != lost {
		m.tb.Fatalf("%d entries, want %d of %d without %d: %+v", got.Entries, lost, m.added, m.replaced, got)
	}
	held := 0
	for _, key := range m.all {
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
				p := make(choices, tt.steps)
				for i := range p {
					p[i] = byte(r.Uint32())
				}
				newModel(t, tt.size, tt.shards).run(p)
			}
		})
	}
}

// FuzzCache plays arbitrary operations against the model.
func FuzzCache(f *testing.F) {
	f.Add([]byte{0, 28, 0, 3, 0, 3, 7, 4, 1, 22, 0, 55, 10, 3, 8, 3, 0, 10, 3, 18, 3})               // late, failed, rests
	f.Add([]byte{5, 0, 1, 4, 2, 3, 10, 1, 20, 1, 0, 22, 0, 30, 8, 1, 4, 10, 1, 22, 0, 20, 8, 1, 4})  // denied, failed twice
	f.Add([]byte{14, 27, 0, 6, 28, 0, 7, 0, 9, 18, 4, 1, 10, 9, 22, 0, 200, 10, 9, 31, 0, 0, 10, 9}) // due, resized
	f.Add([]byte{3, 0, 60, 1, 4, 1, 26, 60, 0, 10, 60, 0, 60, 1, 4, 1, 22, 0, 20, 0, 60, 1, 4, 1, 30, 60, 0})
	f.Add([]byte{3, 0, 60, 128, 2, 1, 22, 0, 60, 10, 60, 32, 0, 22, 0, 49, 10, 60, 22, 0, 2, 10, 60, 35, 0, 10, 60}) // kept, then not
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 || len(data) > 1024 {
			return
		}
		m := newModel(t, 1024<<(data[0]%5), 1)
		m.run(data[1:])
	})
}
