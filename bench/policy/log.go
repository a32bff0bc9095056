// SPDX-License-Identifier: Apache-2.0

package main

// slotBytes is what the logs have for each slot of the index, for which there is a ghost: of every 112 bytes of cache.size
// index and ghosts take 12.
const slotBytes = 100

// maxChances bounds how many entries one eviction from the main log may spare, and so its time under a lock.
const maxChances = 64

// logConfig is what may vary in a twoLogs.
type logConfig struct {
	small   int   // the small log's part of the bytes, in percent
	promote uint8 // uses that move an entry from the small log to the main one
	ghosts  int   // ghosts in quarters of the slots
	anew    bool  // an answer that is stored again goes to a head, else it keeps its place
	room    room  // what may go to the main log unused
}

// A room is free space of the main log that may be given to what leaves the small log unused.
type room uint8

const (
	noRoom    room = iota
	unwritten      // until the main log was written round once
	expired        // also later: what nothing fresh has to go for
)

// twoLogs is S3-FIFO with its queues as two byte logs of fixed sizes and its ghosts as a table of fingerprints, the
// way pkg/cache builds it.
type twoLogs struct {
	book
	cfg         logConfig
	small, main ring
	ghosts      ghostTable
	stamps      []uint32 // by id: stamp of the record that holds it
	stamp       uint32
}

func newTwoLogs(cfg logConfig, ids, capacity int) *twoLogs {
	small := capacity * cfg.small / 100
	return &twoLogs{
		book:   newBook(ids, capacity),
		cfg:    cfg,
		small:  ring{size: small},
		main:   ring{size: capacity - small},
		ghosts: newGhostTable(capacity / slotBytes * cfg.ghosts / 4),
		stamps: make([]uint32, ids),
	}
}

func (c *twoLogs) ask(q query) bool {
	e := &c.entries[q.id]
	freq := uint8(0)
	if e.where != nowhere {
		if q.now < e.expires {
			e.freq = min(maxFreq, e.freq+1)
			return true
		}
		if !c.cfg.anew {
			e.expires = q.expires
			return false
		}
		freq = e.freq
		c.remove(q.id, q.now)
		c.stamps[q.id] = 0
	}
	if q.size > c.main.size {
		c.evictions++
		return false
	}
	known := c.ghosts.take(q.id)
	if known || freq >= c.cfg.promote || q.size > c.small.size/2 {
		c.toMain(q.id, q.size, q.now)
		c.add(q, inMain)
		return false
	}
	c.toSmall(q.id, q.size, q.now)
	c.add(q, inSmall)
	return false
}

// record gives id a new record.
func (c *twoLogs) record(id uint32, size int) record {
	c.stamp++
	c.stamps[id] = c.stamp
	return record{id: id, stamp: c.stamp, size: uint32(size)}
}

func (c *twoLogs) toSmall(id uint32, size int, now int32) {
	for rec := c.record(id, size); !c.small.push(rec); {
		c.evictSmall(now)
	}
}

func (c *twoLogs) toMain(id uint32, size int, now int32) {
	for rec := c.record(id, size); !c.main.push(rec); {
		c.evictMain(now)
	}
}

// dead tells whether rec no longer holds its entry.
func (c *twoLogs) dead(rec record) bool { return c.stamps[rec.id] != rec.stamp }

// drop strikes out the entry that rec held.
func (c *twoLogs) drop(rec record, now int32) {
	c.stamps[rec.id] = 0
	c.remove(rec.id, now)
}

// evictSmall frees the small log's tail: what was used enough goes on to the main log, the rest becomes a ghost.
func (c *twoLogs) evictSmall(now int32) {
	rec := c.small.pop()
	e := &c.entries[rec.id]
	switch {
	case c.dead(rec):
	case now >= e.expires:
		c.drop(rec, now)
	case e.freq >= c.cfg.promote:
		e.freq, e.where = 0, inMain
		c.toMain(rec.id, int(rec.size), now)
	case c.findRoom(rec, now):
		e.freq, e.where = 0, inMain
	default:
		c.ghosts.put(rec.id)
		c.drop(rec, now)
	}
}

// findRoom writes an unused rec into the main log if there is room for such.
func (c *twoLogs) findRoom(rec record, now int32) bool {
	if c.cfg.room == noRoom || c.cfg.room == unwritten && c.main.filled {
		return false
	}
	for !c.main.push(rec) {
		if c.cfg.room == unwritten {
			return false
		}
		tail := c.main.records.first()
		if !c.dead(tail) {
			if now < c.entries[tail.id].expires {
				return false
			}
			c.drop(tail, now)
		}
		c.main.pop()
	}
	return true
}

// evictMain frees the main log's tail, after giving what was used since its last turn another one at the head.
func (c *twoLogs) evictMain(now int32) {
	for chances := maxChances; ; chances-- {
		rec := c.main.pop()
		if c.dead(rec) {
			return
		}
		e := &c.entries[rec.id]
		if chances == 0 || e.freq == 0 || now >= e.expires {
			c.drop(rec, now)
			return
		}
		if !c.main.push(rec) {
			c.drop(rec, now) // the gap before the log's end left no room
			return
		}
		e.freq--
	}
}
