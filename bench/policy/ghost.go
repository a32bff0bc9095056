// SPDX-License-Identifier: Apache-2.0

package main

// A ghostQueue remembers ids that left, oldest out first, as many as had the given bytes when they were entries.
type ghostQueue struct {
	order    queue[ghost]
	stamps   []uint32 // by id: the stamp of its newest ghost; 0: none
	stamp    uint32
	used     int // bytes of the entries that the ghosts stand for
	capacity int
}

type ghost struct{ id, stamp, size uint32 }

func newGhostQueue(ids, capacity int) ghostQueue {
	return ghostQueue{stamps: make([]uint32, ids), capacity: capacity}
}

func (g *ghostQueue) put(id uint32, size int) {
	g.stamp++
	g.stamps[id] = g.stamp
	g.order.push(ghost{id: id, stamp: g.stamp, size: uint32(size)})
	for g.used += size; g.used > g.capacity; {
		old := g.order.pop()
		g.used -= int(old.size)
		if g.stamps[old.id] == old.stamp {
			g.stamps[old.id] = 0
		}
	}
}

// take tells whether id is remembered, and forgets it.
func (g *ghostQueue) take(id uint32) bool {
	known := g.stamps[id] != 0
	g.stamps[id] = 0
	return known
}

// A ghostTable remembers ids by fingerprint, one for each slot; a newer one overwrites an older one.
type ghostTable []uint32

// newGhostTable makes a table of slots; with 0 it remembers nothing.
func newGhostTable(slots int) ghostTable { return make(ghostTable, slots) }

func (g ghostTable) put(id uint32) {
	if len(g) > 0 {
		slot, mark := g.find(id)
		g[slot] = mark
	}
}

// take tells whether id is remembered, and forgets it.
func (g ghostTable) take(id uint32) bool {
	if len(g) == 0 {
		return false
	}
	slot, mark := g.find(id)
	known := g[slot] == mark
	if known {
		g[slot] = 0
	}
	return known
}

// find gives the slot of id and its fingerprint, which is never 0.
func (g ghostTable) find(id uint32) (slot, mark uint32) {
	h := hash(id)
	return uint32(h >> 32 * uint64(len(g)) >> 32), uint32(h) | 1
}

// hash is the finalizer of SplitMix64: every bit of id changes every bit of the hash with probability one half.
func hash(id uint32) uint64 {
	h := (uint64(id) + 1) * 0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
