// SPDX-License-Identifier: Apache-2.0

package main

// sharded is many small caches of one policy, each for its part of the ids. The traces' ids are shuffled, so the
// remainder of a division spreads them.
type sharded []policy

func newSharded(n, ids, capacity int, build func(ids, capacity int) policy) sharded {
	s := make(sharded, n)
	for i := range s {
		s[i] = build(ids/n+1, capacity/n)
	}
	return s
}

func (s sharded) ask(q query) bool {
	n := uint32(len(s))
	part := s[q.id%n]
	q.id /= n
	return part.ask(q)
}

func (s sharded) evicted() int {
	sum := 0
	for _, part := range s {
		sum += part.evicted()
	}
	return sum
}
