// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"math/rand/v2"
)

// rate is the queries per second of both traces, a busy node's.
const rate = 5000

// A trace is a list of questions. What an id's answer is like never changes.
type trace struct {
	name   string
	ids    []uint32
	sizes  []uint16 // bytes of the entry, by id
	ttls   []uint16 // seconds, by id
	names  []uint32 // by id: the one that NXDOMAIN is kept under for all types of its name; nil: each under its own
	nexts  []int32  // moment the same id is asked again, by position
	denied int      // questions whose answer is NXDOMAIN
}

func (t *trace) query(i int) query {
	id := t.ids[i]
	return query{
		id:      id,
		size:    int(t.sizes[id]),
		now:     int32(i),
		expires: int32(i) + rate*int32(t.ttls[id]),
		next:    t.nexts[i],
	}
}

// window is the questions in one window.
func (t *trace) window() int { return len(t.ids) / windows }

// link fills in when each question is asked next.
func (t *trace) link() {
	t.nexts = make([]int32, len(t.ids))
	last := make([]int32, len(t.sizes))
	for id := range last {
		last[id] = never
	}
	for i := len(t.ids) - 1; i >= 0; i-- {
		t.nexts[i] = last[t.ids[i]]
		last[t.ids[i]] = int32(i)
	}
}

// shuffle renames the ids at random, so that an id tells nothing about how often or when it is asked.
func (t *trace) shuffle(rng *rand.Rand) {
	sizes, ttls := make([]uint16, len(t.sizes)), make([]uint16, len(t.ttls))
	renamed := rng.Perm(len(t.sizes))
	for id, to := range renamed {
		sizes[to], ttls[to] = t.sizes[id], t.ttls[id]
	}
	for i, id := range t.ids {
		t.ids[i] = uint32(renamed[id])
	}
	if t.names != nil {
		names := make([]uint32, len(t.names))
		for id, name := range t.names {
			names[renamed[id]] = uint32(renamed[name])
		}
		t.names = names
	}
	t.sizes, t.ttls = sizes, ttls
}

// Entry sizes in bytes: header, key and message. Most answers are one or two addresses; a few have long CNAME chains.
const (
	leastSize    = 128
	mostSize     = 408
	sizeOverMean = 72 // mean of the exponential part; with the cut at mostSize the mean entry has 198 bytes
)

func drawSize(rng *rand.Rand) uint16 {
	return uint16(min(mostSize, leastSize+math.Round(rng.ExpFloat64()*sizeOverMean)))
}

// drawTTL draws from the TTLs that zones mostly use, each as often as it stands in the list.
func drawTTL(rng *rand.Rand) uint16 {
	usual := [...]uint16{30, 60, 60, 60, 120, 300, 300, 300, 300, 600, 900, 1800, 3600, 3600}
	return usual[rng.IntN(len(usual))]
}

// facts are what a reader must know of a trace to judge the cache sizes.
type facts struct {
	asked, different int
	bytes            int // of one entry for each id that was asked
	peak             int // most bytes of entries that were fresh at the same second
}

func (t *trace) facts() facts {
	f := facts{asked: len(t.ids)}
	seen := make([]bool, len(t.sizes))
	fresh := make([]int32, len(t.sizes)) // until when
	ends := make([]int, len(t.ids)/rate+1)
	alive := 0
	for i := range t.ids {
		q := t.query(i)
		if i%rate == 0 {
			f.peak = max(f.peak, alive)
			alive -= ends[i/rate]
		}
		if !seen[q.id] {
			seen[q.id] = true
			f.different++
			f.bytes += q.size
		}
		if q.now < fresh[q.id] {
			continue
		}
		fresh[q.id] = q.expires
		alive += q.size
		if second := int(q.expires) / rate; second < len(ends) {
			ends[second] += q.size
		}
	}
	f.peak = max(f.peak, alive)
	return f
}
