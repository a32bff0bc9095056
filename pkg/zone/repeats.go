// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"bytes"
	"hash/maphash"
	"math"
	"sync"
)

// A repeatTable finds records that a message has already. It holds where they
// begin, by the hash of their bytes.
type repeatTable struct {
	seed  maphash.Seed
	slots []uint32 // offset in the message; 0: free
	room  [maxRepeatSlots]uint32
}

const (
	// leastRecord is the fewest octets of a record.
	leastRecord       = 2 + fixedLen + 4
	maxMessageRecords = maxReply / leastRecord
	// maxRepeatSlots is at least twice the records of the largest message.
	maxRepeatSlots = 1 << 13
	// stepsRepeat is what a record costs the budget that is there already.
	stepsRepeat = 16
)

// repeatTables has those that are not in use: an answer takes one for as long as
// it is made, so there are about as many as CPUs.
//
//nolint:gochecknoglobals // a pool is shared by design and holds no state
var repeatTables = sync.Pool{New: func() any { return &repeatTable{seed: maphash.MakeSeed()} }}

// watchRepeats has repeats find the records that follow, of the selection and at most
// so many, if there may be some more than once.
func (r *reply) watchRepeats(sel *selection, most int) {
	if !sel.node.repeats() {
		return
	}
	records := min(most, r.room/leastRecord)
	if r.room == math.MaxInt { // of a transfer
		records = 0
		for _, s := range sel.node.slices {
			records += s.slice.count() * max(1, sel.ports.countIn(s.slice.ports()))
		}
	}
	slots := 64
	for slots < 2*records {
		slots *= 2
	}
	t := repeatTables.Get().(*repeatTable)
	if slots <= maxRepeatSlots {
		t.slots = t.room[:slots]
		clear(t.slots)
	} else {
		t.slots = make([]uint32, slots)
	}
	r.seen = t
}

// forgetRepeats ends what watchRepeats began.
func (r *reply) forgetRepeats() {
	if r.seen != nil {
		r.seen.slots = nil
		repeatTables.Put(r.seen)
		r.seen = nil
	}
}

// repeats reports whether the record that begins at the offset in dst, and ends it,
// stands before already, and then takes it off.
func (r *reply) repeats(sel *selection, at int) bool {
	if r.seen == nil {
		return false
	}
	record, slots := r.dst[at:], r.seen.slots
	mask := len(slots) - 1
	i := int(maphash.Bytes(r.seen.seed, record)) & mask
	for ; slots[i] != 0; i = (i + 1) & mask {
		if bytes.HasPrefix(r.dst[r.start+int(slots[i]):at], record) {
			r.dst = r.dst[:at]
			sel.spend(stepsRepeat)
			return true
		}
	}
	slots[i] = uint32(at - r.start)
	return false
}
