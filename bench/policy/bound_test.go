// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"testing"
)

func TestMostHits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		letters string
		life    int // seconds; 0: longer than the trace
		entries int // that fit
		want    int
	}{
		{name: "everything fits", letters: "abcabc", entries: 3, want: 3},
		{name: "of three equal ones two fit", letters: "abcabc", entries: 2, want: 3}, // there are twelve seconds of room, and each hit takes three
		{name: "one fits", letters: "abcabc", entries: 1, want: 2},
		{name: "nothing fits", letters: "aabb", entries: 0, want: 0},
		{name: "the cheap ones first", letters: "abbbbbba", entries: 1, want: 5},
		{name: "as long as the life", letters: "abca", life: 3, entries: 3, want: 0},
		{name: "within the life", letters: "abca", life: 4, entries: 3, want: 1},
		{name: "an id is refreshed now and then", letters: "aaaaaa", life: 3, entries: 1, want: 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tr := spelled(tt.letters, tt.life)
			if got := mostIn(tr, 0, len(tr.ids), []int{tt.entries * letterSize})[0]; got != tt.want {
				t.Errorf("%s: %d hits, want %d", tt.letters, got, tt.want)
			}
		})
	}
}

// spelled is the trace of letters of one size, a second apart: in between something is asked that is never held. With a
// life, an answer lasts so many seconds.
func spelled(letters string, life int) *trace {
	const filler = 26
	tr := &trace{sizes: make([]uint16, filler+1), ttls: make([]uint16, filler+1)}
	for id := range filler {
		tr.sizes[id], tr.ttls[id] = letterSize, uint16(life)
		if life == 0 {
			tr.ttls[id] = 3600
		}
	}
	for _, letter := range letters {
		tr.ids = append(tr.ids, uint32(letter-'a'))
		for range rate - 1 {
			tr.ids = append(tr.ids, filler)
		}
	}
	tr.link()
	return tr
}

// TestNothingBeatsTheBound has sizes and TTLs that differ, in both windows.
func TestNothingBeatsTheBound(t *testing.T) {
	t.Parallel()
	tr := randomTrace(60_000, 1000, true)
	sizes := []int{1000, 10_000, 40_000, 100_000, 1 << 30}
	most := mostHits(tr, sizes)
	rows := policies()
	g := measure(tr, rows, sizes)
	for r, row := range rows {
		for i, size := range sizes {
			if got := g[r][i]; (got.early > most[i].early || got.late > most[i].late) && row.name != unbounded {
				t.Errorf("%d bytes: %s had %d and %d hits, at most %d and %d are there", size, row.name, got.early, got.late, most[i].early, most[i].late)
			}
			if got := g[r][i]; size == 1<<30 && got.early != most[i].early {
				t.Errorf("%s had %d hits where everything fits, want %d", row.name, got.early, most[i].early)
			}
		}
	}
}

// TestTheIdealIsBetweenMINAndTheBound tries everything that a cache could do with traces of nine questions.
func TestTheIdealIsBetweenMINAndTheBound(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 5))
	below, above := 0, 0
	for range 200 {
		letters := make([]byte, 9)
		for i := range letters {
			letters[i] = 'a' + byte(rng.IntN(4))
		}
		tr := spelled(string(letters), 0)
		for id := range 4 {
			tr.sizes[id], tr.ttls[id] = uint16(100*(1+rng.IntN(3))), uint16(2+rng.IntN(6))
		}
		const capacity = 300
		best := idealHits(tr, capacity, 0, [4]int32{}, map[state]int{})
		least := hits(tr, newOracle(len(tr.sizes), capacity))
		most := mostIn(tr, 0, len(tr.ids), []int{capacity})[0]
		if least > best || best > most {
			t.Errorf("%s of %d bytes for %d s: MIN has %d hits, the ideal %d, the bound says %d", letters, tr.sizes[:4], tr.ttls[:4], least, best, most)
		}
		if least < best {
			below++
		}
		if best < most {
			above++
		}
	}
	t.Logf("of 200 traces MIN misses the ideal in %d, the bound in %d", below, above)
}

// A state is the next question and until when what is held is fresh; 0: it is not held.
type state struct {
	at   int
	held [4]int32
}

// idealHits is the most hits from a question on.
func idealHits(tr *trace, capacity, at int, held [4]int32, known map[state]int) int {
	if at >= len(tr.ids) {
		return 0
	}
	key := state{at, held}
	if best, ok := known[key]; ok {
		return best
	}
	q, hit := tr.query(at), 0
	if q.now < held[q.id] {
		hit = 1
	} else {
		held[q.id] = q.expires
	}
	best := 0
	for keep := range 1 << len(held) {
		kept, used := held, 0
		for id := range kept {
			switch {
			case keep>>id&1 == 0:
				kept[id] = 0
			case kept[id] > 0:
				used += int(tr.sizes[id])
			}
		}
		if used <= capacity {
			best = max(best, hit+idealHits(tr, capacity, at+rate, kept, known))
		}
	}
	known[key] = best
	return best
}
