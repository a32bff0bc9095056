// SPDX-License-Identifier: Apache-2.0

package skydns

import (
	"bytes"
	"sync/atomic"
)

// recentSlots bounds the memory of recent answers: 4 MiB, as a message has up to 64 KiB.
const recentSlots = 64

// A recent is the whole answer to one question. It is immutable but for its turn.
type recent struct {
	key     string // name and type
	changes uint64 // value of Records.changes before the records were read
	verdict Verdict
	msg     []byte
	target  int // length in bytes of the alias target that msg ends with; 0: none

	set  run           // the records that rotate
	turn atomic.Uint32 // modulo set.count: index of the record that comes first; 0: the order of msg
}

// A run is count records of size bytes each, from the offset at in a message on. count is 0 for records that do not rotate.
type run struct{ at, count, size int }

// newRecent returns the answer that was built in msg.
func newRecent(key []byte, changes uint64, verdict Verdict, a *answer, msg []byte) *recent {
	return &recent{key: string(key), changes: changes, verdict: verdict, msg: bytes.Clone(msg), target: a.target, set: a.set}
}

// rotate reorders the records in msg, a copy of the message: each call puts the next record first.
func (m *recent) rotate(msg []byte) {
	if m.set.count < 2 {
		return
	}
	to, from := msg[m.set.at:][:m.set.count*m.set.size], m.msg[m.set.at:][:m.set.count*m.set.size]
	first := int(m.turn.Add(1)%uint32(m.set.count)) * m.set.size
	copy(to[copy(to, from[first:]):], from[:first])
}
