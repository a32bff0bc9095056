// SPDX-License-Identifier: Apache-2.0

package main

// A sieve is SIEVE (Zhang et al., NSDI 2024): one queue in order of arrival and a hand that walks it from the oldest
// entry to the newest, spares what was asked for since it last came by, and evicts the first that was not. An expired
// entry is not spared, and an answer that is stored again keeps its place.
type sieve struct {
	book
	order list // by arrival
	hand  uint32
}

func newSieve(ids, capacity int) *sieve {
	return &sieve{book: newBook(ids, capacity), order: newList(ids), hand: none}
}

func (c *sieve) ask(q query) bool {
	e := &c.entries[q.id]
	if e.where != nowhere {
		if q.now < e.expires {
			e.freq = 1
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
		c.evict(q.now)
	}
	c.add(q, inMain)
	c.order.push(q.id)
	return false
}

func (c *sieve) evict(now int32) {
	victim := c.hand
	if victim == none {
		victim = c.order.oldest
	}
	for e := &c.entries[victim]; e.freq > 0 && now < e.expires; e = &c.entries[victim] {
		e.freq = 0
		if victim = c.order.newer[victim]; victim == none {
			victim = c.order.oldest
		}
	}
	c.hand = c.order.newer[victim]
	c.order.remove(victim)
	c.remove(victim, now)
}
