// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"testing"
)

// letterSize is the bytes of every entry in the sequences below.
const letterSize = 100

// play asks for the letters in turn and draws each hit as h, each miss as -. With a life, an answer expires so many
// questions after it was stored.
func play(p policy, letters string, life int32) string {
	drawn := make([]byte, len(letters))
	for i := range letters {
		q := query{id: uint32(letters[i] - 'a'), size: letterSize, now: int32(i), expires: never, next: never}
		if life > 0 {
			q.expires = q.now + life
		}
		for j := len(letters) - 1; j > i; j-- {
			if letters[j] == letters[i] {
				q.next = int32(j)
			}
		}
		drawn[i] = '-'
		if p.ask(q) {
			drawn[i] = 'h'
		}
	}
	return string(drawn)
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	lru := func(ids, capacity int) policy { return newLRU(ids, capacity) }
	chance := func(ids, capacity int) policy { return newRandom(ids, capacity) }
	hand := func(ids, capacity int) policy { return newSieve(ids, capacity) }
	s3 := func(ids, capacity int) policy { return newS3FIFO(ids, capacity) }
	minimum := func(ids, capacity int) policy { return newOracle(ids, capacity) }
	halves := func(ids, capacity int) policy {
		return newSharded(2, ids, capacity, func(ids, capacity int) policy { return newLRU(ids, capacity) })
	}
	tests := []struct {
		name        string
		build       func(ids, capacity int) policy
		entries     int // that fit
		letters     string
		life        int32
		want        string
		wantEvicted int
	}{
		{"LRU evicts the least recently used", lru, 3, "abcadb", 0, "---h--", 2},
		{"LRU stores an expired answer again", lru, 3, "abaa", 2, "---h", 0},
		{"LRU counts no eviction of what expired", lru, 2, "abcd", 2, "----", 0},
		{"LRU turns away what cannot fit", lru, 0, "aa", 0, "--", 2},
		{"random replacement of one entry", chance, 1, "aaba", 0, "-h--", 2},
		{"random replacement stores an expired answer again", chance, 1, "aaaa", 2, "-h-h", 0},
		{"random replacement turns away what cannot fit", chance, 0, "aa", 0, "--", 2},
		{"SIEVE spares what was used", hand, 3, "abcadeba", 0, "---h---h", 3},
		{"SIEVE's hand comes round", hand, 2, "ababcab", 0, "--hh---", 3},
		{"SIEVE spares nothing that expired", hand, 2, "aabcb", 3, "-h--h", 0},
		{"SIEVE turns away what cannot fit", hand, 0, "aa", 0, "--", 2},
		{
			"S3-FIFO keeps used entries and returned ghosts through a scan", s3, 10,
			"aaabcdefghijkabklmnopqrstb", 0, "-hh----------h-h---------h", 11,
		},
		{"S3-FIFO moves nothing on after one use", s3, 10, "aabcdefghijka", 0, "-h-----------", 2},
		{"S3-FIFO gives a turn for each use", s3, 2, "aaabcbaacba", 0, "-hh---hh--h", 4},
		{"S3-FIFO gives used entries another turn", s3, 2, "aaabcbaca", 0, "-hh---h-h", 3},
		{"S3-FIFO moves nothing on that expired", s3, 2, "aaabcb", 4, "-hh--h", 0},
		{"S3-FIFO turns away what cannot fit", s3, 0, "aa", 0, "--", 2},
		{"MIN does not store what is never used again", minimum, 2, "abcab", 0, "---hh", 1},
		{"MIN evicts what is used the furthest ahead", minimum, 2, "abcacb", 0, "---hh-", 2},
		{"MIN knows that an expired answer is no use", minimum, 1, "aaacadc", 4, "-hh---h", 3},
		{"shards fill on their own", halves, 2, "abcab", 0, "----h", 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := tt.build(26, tt.entries*letterSize)
			if got := play(p, tt.letters, tt.life); got != tt.want {
				t.Errorf("%s: hits\n-want %s\n+got  %s", tt.letters, tt.want, got)
			}
			if got := p.evicted(); got != tt.wantEvicted {
				t.Errorf("%s: %d evicted, want %d", tt.letters, got, tt.wantEvicted)
			}
		})
	}
}

// sums adds up what the book's entries take.
func (b *book) sums() (bytes, capacity, used int) {
	for _, e := range b.entries {
		bytes += int(e.size)
	}
	return bytes, b.capacity, b.used
}

func TestBytesStayWithinBudget(t *testing.T) {
	t.Parallel()
	for _, row := range append(policies(), variants()...) {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			tr := randomTrace(20_000, 1000, true)
			parts := sharded{row.build(len(tr.sizes), 40_000)}
			if s, ok := parts[0].(sharded); ok {
				parts = s
			}
			for i := range tr.ids {
				parts.ask(tr.query(i))
				if i%100 != 0 {
					continue
				}
				for _, p := range parts {
					bytes, capacity, used := p.(interface{ sums() (int, int, int) }).sums()
					if bytes != used || bytes > capacity {
						t.Fatalf("after question %d: %d bytes of entries, %d counted, %d allowed", i, bytes, used, capacity)
					}
				}
			}
		})
	}
}

func TestNothingBeatsMIN(t *testing.T) {
	t.Parallel()
	tr := randomTrace(30_000, 1000, false)
	for _, entries := range []int{10, 64, 100, 400} {
		ideal := newOracle(len(tr.sizes), entries*letterSize)
		most := hits(tr, ideal)
		if most == 0 || ideal.evicted() == 0 {
			t.Fatalf("%d entries: MIN had %d hits and %d evictions, want some", entries, most, ideal.evicted())
		}
		for _, row := range append(policies(), variants()...) {
			if row.name == unbounded {
				continue // it has no bound
			}
			if got := hits(tr, row.build(len(tr.sizes), entries*letterSize)); got > most {
				t.Errorf("%d entries: %s had %d hits, MIN %d", entries, row.name, got, most)
			}
		}
	}
}

func hits(tr *trace, p policy) (n int) {
	for i := range tr.ids {
		if p.ask(tr.query(i)) {
			n++
		}
	}
	return n
}

func TestReplayCountsByWindow(t *testing.T) {
	t.Parallel()
	tr := &trace{ids: []uint32{0, 0, 0, 1, 2, 3, 1, 1, 0}, sizes: make([]uint16, 4), ttls: []uint16{1, 1, 1, 1}}
	for id := range tr.sizes {
		tr.sizes[id] = letterSize
	}
	tr.link()
	// Three fit: 0 hits twice, 3 evicts it, 1 hits twice, and 0 comes back in place of 2.
	want := cell{early: 2, late: 2, evicted: 2}
	if got := replay(tr, newLRU(4, 3*letterSize)); got != want {
		t.Errorf("cell\n-want %+v\n+got  %+v", want, got)
	}
}

// randomTrace is by a Zipf law; with mixed, sizes and TTLs differ and entries expire, else no entry does.
func randomTrace(queries, names int, mixed bool) *trace {
	rng := rand.New(rand.NewPCG(7, 7))
	tr := &trace{}
	for range names {
		size, ttl := uint16(letterSize), uint16(3600)
		if mixed {
			size, ttl = drawSize(rng), uint16(rng.IntN(3))
		}
		tr.sizes, tr.ttls = append(tr.sizes, size), append(tr.ttls, ttl)
	}
	ranks := newZipf(0.8, names)
	for range queries {
		tr.ids = append(tr.ids, uint32(ranks.draw(rng)))
	}
	tr.link()
	return tr
}
