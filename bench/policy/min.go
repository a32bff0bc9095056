// SPDX-License-Identifier: Apache-2.0

package main

// An oracle is Belady's MIN: it evicts, or does not even store, what is used next the furthest in the future. A use
// after the expiry is none. It looks at the moment alone and not at the bytes or at what a later refresh would change,
// so it is the ideal only where all entries have one size and none expires, and close to it elsewhere.
type oracle struct {
	book
	uses []int32 // moment of the next use by id, of those held
	heap []use   // furthest first; what uses contradicts is out of date
}

type use struct {
	at int32
	id uint32
}

func newOracle(ids, capacity int) *oracle {
	return &oracle{book: newBook(ids, capacity), uses: make([]int32, ids)}
}

func (c *oracle) ask(q query) bool {
	e := &c.entries[q.id]
	hit := false
	switch {
	case e.where == nowhere:
		c.add(q, inMain)
	case q.now < e.expires:
		hit = true
	default:
		e.expires = q.expires
	}
	c.expect(q.id, q.next)
	for c.used > c.capacity {
		c.evict(q.now)
	}
	return hit
}

// expect notes when a held id is used next.
func (c *oracle) expect(id uint32, next int32) {
	if next >= c.entries[id].expires {
		next = never
	}
	c.uses[id] = next
	c.heap = append(c.heap, use{at: next, id: id})
	for i := len(c.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if c.heap[parent].at >= c.heap[i].at {
			return
		}
		c.heap[parent], c.heap[i] = c.heap[i], c.heap[parent]
		i = parent
	}
}

func (c *oracle) evict(now int32) {
	for {
		u := c.furthest()
		if c.entries[u.id].where != nowhere && c.uses[u.id] == u.at {
			c.remove(u.id, now)
			return
		}
	}
}

// furthest takes the top of the heap.
func (c *oracle) furthest() use {
	top, last := c.heap[0], len(c.heap)-1
	c.heap[0] = c.heap[last]
	c.heap = c.heap[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			return top
		}
		if child+1 < last && c.heap[child+1].at > c.heap[child].at {
			child++
		}
		if c.heap[i].at >= c.heap[child].at {
			return top
		}
		c.heap[i], c.heap[child] = c.heap[child], c.heap[i]
		i = child
	}
}
