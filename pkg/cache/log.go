// SPDX-License-Identifier: Apache-2.0

package cache

// A ring is a log of entries in the arena's bytes base to base+size: written at
// the head, freed at the tail. An entry is never split; what does not fit before
// the end leaves a gap there and the log goes on at its base.
type ring struct {
	base, size int
	head, tail int // offsets in the arena
	gap        int // where the gap before the end begins; only while wrapped
	wrapped    bool
	filled     bool // it has wrapped once: no byte of it is unwritten
}

func newRing(base, size int) ring {
	return ring{base: base, size: size, head: base, tail: base}
}

func (r *ring) empty() bool { return r.head == r.tail && !r.wrapped }

// reserve gives the offset of n free bytes at the head, or false if the tail
// must move on first.
func (r *ring) reserve(n int) (off int, ok bool) {
	if !r.wrapped && r.head+n > r.base+r.size {
		r.gap, r.head, r.wrapped, r.filled = r.head, r.base, true, true
	}
	if r.wrapped && r.head+n > r.tail {
		return 0, false
	}
	off = r.head
	r.head += n
	return off, true
}

// free gives up the n bytes of the entry at the tail.
func (r *ring) free(n int) {
	r.tail += n
	if r.wrapped && r.tail == r.gap {
		r.tail, r.wrapped = r.base, false
	}
	if r.empty() {
		r.head, r.tail = r.base, r.base
	}
}
