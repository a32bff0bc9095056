// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"bytes"
	"hash/maphash"
	"math"
	"sync"
)

// A dedupTable finds duplicate records in a message. It holds their offsets by the hash of their bytes.
type dedupTable struct {
	seed  maphash.Seed
	slots []uint32 // offset in the message; 0: free
	buf   [maxDedupSlots]uint32
}

const (
	// minRecordLen is the size of the smallest record, in bytes.
	minRecordLen      = 2 + fixedLen + 4
	maxMessageRecords = maxReply / minRecordLen
	// maxDedupSlots is at least twice the records of the largest message.
	maxDedupSlots = 1 << 13
	// stepsDuplicate is the cost of a duplicate record.
	stepsDuplicate = 16
)

// repeatTables holds the unused tables: an answer uses one while it is built, so there are about as many as CPUs.
//
//nolint:gochecknoglobals // a pool is shared by design and holds no state
var dedupTables = sync.Pool{New: func() any { return &dedupTable{seed: maphash.MakeSeed()} }}

// beginDedup starts the detection of duplicates for up to most records of the selection, if there may be any.
func (r *reply) beginDedup(sel *selection, most int) {
	if !sel.node.mayHaveDuplicates() {
		return
	}
	records := min(most, r.maxSize/minRecordLen)
	if r.maxSize == math.MaxInt { // for a transfer
		records = 0
		for _, s := range sel.node.slices {
			records += s.slice.count() * max(1, sel.ports.count(s.slice.ports()))
		}
	}
	slots := 64
	for slots < 2*records {
		slots *= 2
	}
	t := dedupTables.Get().(*dedupTable)
	if slots <= maxDedupSlots {
		t.slots = t.buf[:slots]
		clear(t.slots)
	} else {
		t.slots = make([]uint32, slots)
	}
	r.dedup = t
}

// endDedup ends the detection.
func (r *reply) endDedup() {
	if r.dedup != nil {
		r.dedup.slots = nil
		dedupTables.Put(r.dedup)
		r.dedup = nil
	}
}

// dropDuplicate reports whether the record from the offset to the end of dst is a duplicate, and then removes it.
func (r *reply) dropDuplicate(sel *selection, at int) bool {
	if r.dedup == nil {
		return false
	}
	record, slots := r.dst[at:], r.dedup.slots
	mask := len(slots) - 1
	i := int(maphash.Bytes(r.dedup.seed, record)) & mask
	for ; slots[i] != 0; i = (i + 1) & mask {
		if bytes.HasPrefix(r.dst[r.start+int(slots[i]):at], record) {
			r.dst = r.dst[:at]
			sel.spend(stepsDuplicate)
			return true
		}
	}
	slots[i] = uint32(at - r.start)
	return false
}
