// SPDX-License-Identifier: Apache-2.0

package main

import "math/rand/v2"

// A random evicts any entry, each as likely as the other.
type random struct {
	book
	rng  *rand.Rand
	held []uint32
}

func newRandom(ids, capacity int) *random {
	return &random{book: newBook(ids, capacity), rng: rand.New(rand.NewPCG(3, 3))}
}

func (c *random) ask(q query) bool {
	e := &c.entries[q.id]
	if e.where != nowhere {
		if q.now < e.expires {
			return true
		}
		e.expires = q.expires
		return false
	}
	if q.size > c.capacity {
		c.evictions++
		return false
	}
	for !c.fits(q.size) {
		i, last := c.rng.IntN(len(c.held)), len(c.held)-1
		c.remove(c.held[i], q.now)
		c.held[i] = c.held[last]
		c.held = c.held[:last]
	}
	c.add(q, inMain)
	c.held = append(c.held, q.id)
	return false
}
