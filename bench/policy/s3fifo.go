// SPDX-License-Identifier: Apache-2.0

package main

// maxFreq caps an entry's count of uses, as the paper does.
const maxFreq = 3

// smallPart is the small queue's share of the bytes, in percent, as in the paper.
const smallPart = 10

// An s3fifo is S3-FIFO (Yang et al., SOSP 2023) as published: entries start in a small queue; those used more than
// once there move to the main queue, the others leave and are remembered as ghosts; a ghost that comes back starts in
// the main queue, whose entries get one more turn for each use. Both queues share the bytes freely until these run
// out. An expired entry gets no other turn, and an answer that is stored again keeps its place.
type s3fifo struct {
	book
	small, main queue[uint32]
	smallUsed   int // bytes
	ghosts      ghostQueue
}

func newS3FIFO(ids, capacity int) *s3fifo {
	return &s3fifo{
		book:   newBook(ids, capacity),
		ghosts: newGhostQueue(ids, capacity-capacity*smallPart/100),
	}
}

func (c *s3fifo) ask(q query) bool {
	e := &c.entries[q.id]
	if e.where != nowhere {
		if q.now < e.expires {
			e.freq = min(maxFreq, e.freq+1)
			return true
		}
		e.expires = q.expires
		return false
	}
	if q.size > c.capacity {
		c.evictions++
		return false
	}
	known := c.ghosts.take(q.id)
	for !c.fits(q.size) {
		c.evict(q.now)
	}
	if known {
		c.add(q, inMain)
		c.main.push(q.id)
		return false
	}
	c.add(q, inSmall)
	c.small.push(q.id)
	c.smallUsed += q.size
	return false
}

// evict moves one entry on or out.
func (c *s3fifo) evict(now int32) {
	if c.main.count == 0 || c.smallUsed >= c.capacity*smallPart/100 {
		c.evictSmall(now)
	} else {
		c.evictMain(now)
	}
}

func (c *s3fifo) evictSmall(now int32) {
	id := c.small.pop()
	e := &c.entries[id]
	c.smallUsed -= int(e.size)
	if e.freq > 1 && now < e.expires {
		e.freq, e.where = 0, inMain
		c.main.push(id)
		return
	}
	if now < e.expires {
		c.ghosts.put(id, int(e.size))
	}
	c.remove(id, now)
}

func (c *s3fifo) evictMain(now int32) {
	id := c.main.pop()
	e := &c.entries[id]
	if e.freq > 0 && now < e.expires {
		e.freq--
		c.main.push(id)
		return
	}
	c.remove(id, now)
}
