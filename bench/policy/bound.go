// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"slices"
)

// A span is from one question for an id to the next: a hit, if the answer is held for so long.
type span struct {
	cost int64 // bytes of the entry times the moments it must be held, as far as these are in the window
	id   uint32
}

// mostHits bounds what any policy can have of a trace at each of the sizes, in ascending order. The best choice with
// entries of different sizes is NP-hard; what follows is never less (PFOO-U of Berger, Beckmann and Harchol-Balter,
// SIGMETRICS 2018, with expiry added): whoever has a hit holds its entry from the question before, so all hits together
// take at most size times moments, and the cheapest hits are the most that could. Nor can an id have more hits than
// when it is always held.
func mostHits(t *trace, sizes []int) []cell {
	list := make([]cell, len(sizes))
	early := mostIn(t, 0, t.window(), sizes)
	late := mostIn(t, (windows-1)*t.window(), len(t.ids), sizes)
	for i := range list {
		list[i] = cell{early: early[i], late: late[i]}
	}
	return list
}

// mostIn counts for the window from one moment to another.
func mostIn(t *trace, from, to int, sizes []int) []int {
	most := alwaysHeld(t, from, to)
	taken := make([]int32, len(t.sizes))
	hits := make([]int, len(sizes))
	sum, cost, i := 0, int64(0), 0
	for _, s := range spans(t, from, to) {
		if taken[s.id] == most[s.id] {
			continue
		}
		taken[s.id]++
		for cost += s.cost; i < len(sizes) && cost > int64(sizes[i])*int64(to-from); i++ {
			hits[i] = sum
		}
		sum++
	}
	for ; i < len(sizes); i++ {
		hits[i] = sum
	}
	return hits
}

// spans are those that end in the window, the cheapest first. One that is longer than the answer's life can be no hit.
func spans(t *trace, from, to int) []span {
	list := make([]span, 0, to-from)
	for i := range t.ids[:to] {
		q := t.query(i)
		if int(q.next) >= from && int(q.next) < to && q.next < q.expires {
			list = append(list, span{cost: int64(q.size) * int64(int(q.next)-max(i, from)), id: q.id})
		}
	}
	slices.SortFunc(list, func(a, b span) int { return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.id, b.id)) })
	return list
}

// alwaysHeld is how often each id can be hit in the window: it is never evicted, and came there as fresh as it can.
func alwaysHeld(t *trace, from, to int) []int32 {
	hits := make([]int32, len(t.sizes))
	until := make([]int32, len(t.sizes)) // the answer's life
	for i := range t.ids[:to] {
		q := t.query(i)
		switch {
		case i < from, q.now >= until[q.id]:
			until[q.id] = q.expires
		default:
			hits[q.id]++
		}
	}
	return hits
}
