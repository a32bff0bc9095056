// SPDX-License-Identifier: Apache-2.0

package main

// A ring is a log over a fixed run of bytes: written at the head, freed at the tail. A record is never split; what
// does not fit before the end leaves a gap there, and the log goes on at its start.
type ring struct {
	size       int
	head, tail int // offsets of the next record and of the oldest one
	end        int // where the last record before the gap ends, while the head is behind the tail
	wrapped    bool
	filled     bool // it was wrapped once
	records    queue[record]
}

// A record is an entry in the log. It is dead when the entry was stored anew elsewhere since.
type record struct{ id, stamp, size uint32 }

// push writes a record at the head, or returns false if the tail must move on first.
func (r *ring) push(rec record) bool {
	n := int(rec.size)
	if !r.wrapped && r.head+n > r.size {
		r.end, r.head, r.wrapped, r.filled = r.head, 0, true, true
	}
	if r.wrapped && r.head+n > r.tail {
		return false
	}
	r.head += n
	r.records.push(rec)
	return true
}

// pop frees the record at the tail.
func (r *ring) pop() record {
	rec := r.records.pop()
	r.tail += int(rec.size)
	if r.wrapped && r.tail == r.end {
		r.tail, r.wrapped = 0, false
	}
	if r.records.count == 0 {
		r.head, r.tail, r.wrapped = 0, 0, false
	}
	return rec
}
