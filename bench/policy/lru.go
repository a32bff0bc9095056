// SPDX-License-Identifier: Apache-2.0

package main

// An lru evicts what was not asked for the longest.
type lru struct {
	book
	order list // by last use
}

func newLRU(ids, capacity int) *lru {
	return &lru{book: newBook(ids, capacity), order: newList(ids)}
}

func (c *lru) ask(q query) bool {
	e := &c.entries[q.id]
	if e.where != nowhere {
		c.order.remove(q.id)
		c.order.push(q.id)
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
		victim := c.order.oldest
		c.order.remove(victim)
		c.remove(victim, q.now)
	}
	c.add(q, inMain)
	c.order.push(q.id)
	return false
}
