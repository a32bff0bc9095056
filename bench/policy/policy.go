// SPDX-License-Identifier: Apache-2.0

package main

import "math"

// A query is one question of a trace. Moments are counted in queries since the trace's start.
type query struct {
	id      uint32 // of the name and type, below the number of ids the policy was made for
	size    int    // bytes of the entry that its answer makes; the same whenever the id is asked
	now     int32
	expires int32 // moment from which an answer stored now may not be used
	next    int32 // moment the id is asked next, or never
}

// never is later than every moment.
const never = math.MaxInt32

// A policy is a cache bounded in bytes.
type policy interface {
	// ask tells whether the answer to q is held and fresh. If it is not, ask stores the answer, or chooses not to.
	ask(q query) bool
	// evicted is the number of entries that had to go, or were turned away, while they could still be used.
	evicted() int
}

// An entry is what a policy knows of one id. The zero value is an id that is not held.
type entry struct {
	expires int32
	size    uint16
	freq    uint8
	where   place
}

// A place is where a policy keeps an entry.
type place uint8

const (
	nowhere place = iota
	inSmall
	inMain // the only one for policies with a single queue
)

// A book is the entries by id and the bytes they take; every policy keeps one.
type book struct {
	entries   []entry
	capacity  int // bytes
	used      int // bytes
	evictions int
}

func newBook(ids, capacity int) book {
	return book{entries: make([]entry, ids), capacity: capacity}
}

func (b *book) evicted() int { return b.evictions }

// add enters the answer to q. The id must not be held.
func (b *book) add(q query, where place) {
	b.entries[q.id] = entry{expires: q.expires, size: uint16(q.size), where: where}
	b.used += q.size
}

// remove strikes an entry out, and counts an eviction if it was fresh.
func (b *book) remove(id uint32, now int32) {
	e := &b.entries[id]
	if now < e.expires {
		b.evictions++
	}
	b.used -= int(e.size)
	*e = entry{}
}

// fits tells whether size more bytes are free.
func (b *book) fits(size int) bool { return b.used+size <= b.capacity }

// windows is how many parts of equal length a trace has. Hits are counted in the first, from an empty cache, and in the
// last, when the cache has long been full.
const windows = 3

// A cell is what one policy did with one trace.
type cell struct {
	early, late int // hits in the first and in the last window
	evicted     int // in all windows
}

// replay asks a whole trace.
func replay(t *trace, p policy) cell {
	var hits [windows]int
	length := t.window()
	for i := range t.ids {
		if p.ask(t.query(i)) {
			hits[min(i/length, windows-1)]++
		}
	}
	return cell{early: hits[0], late: hits[windows-1], evicted: p.evicted()}
}
