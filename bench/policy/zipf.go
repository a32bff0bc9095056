// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"math/rand/v2"
	"sort"
)

// A zipf draws ranks from 0; rank r is drawn in proportion to 1/(r+1)^s. The standard library's needs s > 1.
type zipf struct {
	sums []float64 // running sums of the weights
}

func newZipf(s float64, n int) zipf {
	z := zipf{sums: make([]float64, n)}
	sum := 0.0
	for r := range n {
		sum += math.Pow(float64(r+1), -s)
		z.sums[r] = sum
	}
	return z
}

func (z zipf) draw(rng *rand.Rand) int {
	at := rng.Float64() * z.sums[len(z.sums)-1]
	return sort.Search(len(z.sums)-1, func(r int) bool { return z.sums[r] > at })
}

// zipfTrace asks for names by a Zipf law and nothing else.
func zipfTrace(queries, names int) *trace {
	rng := rand.New(rand.NewPCG(1, 1))
	t := &trace{
		name:  "Zipf",
		ids:   make([]uint32, queries),
		sizes: make([]uint16, names),
		ttls:  make([]uint16, names),
	}
	for id := range names {
		t.sizes[id], t.ttls[id] = drawSize(rng), drawTTL(rng)
	}
	ranks := newZipf(1.0, names)
	for i := range t.ids {
		t.ids[i] = uint32(ranks.draw(rng))
	}
	t.shuffle(rng)
	t.link()
	return t
}
