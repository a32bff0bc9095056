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
	changes uint64 // of the records, before they were read
	verdict Verdict
	msg     []byte
	target  int // bytes of the name that msg ends with

	set  run           // records that rotate
	turn atomic.Uint32 // modulo their number: the one that comes first. The answer itself was the first
}

// A run is the records of one set, at an offset in the message. Records that rotate have so many bytes each.
type run struct{ at, count, size int }

// newRecent returns the answer that was built in msg.
func newRecent(key []byte, changes uint64, verdict Verdict, a *answer, msg []byte) *recent {
	return &recent{key: string(key), changes: changes, verdict: verdict, msg: bytes.Clone(msg), target: a.target, set: a.set}
}

// rotate writes the records to msg, a copy of the message, from the next one on.
func (m *recent) rotate(msg []byte) {
	if m.set.count < 2 {
		return
	}
	to, from := msg[m.set.at:][:m.set.count*m.set.size], m.msg[m.set.at:][:m.set.count*m.set.size]
	first := int(m.turn.Add(1)%uint32(m.set.count)) * m.set.size
	copy(to[copy(to, from[first:]):], from[:first])
}
