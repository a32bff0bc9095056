// SPDX-License-Identifier: Apache-2.0

package skydns

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	recentSlots = 128
	maxRecent   = 32 << 10 // bytes
)

// A recent is the result for one question. It is immutable but for its turn.
type recent struct {
	key     string // name and type
	changes uint64 // of the records, before they were read
	verdict Verdict
	msg     []byte
	target  int // bytes of the name that msg ends with

	run  []uint16      // offsets in msg of addresses that rotate
	size int           // bytes of each
	turn atomic.Uint32 // modulo their number: the one that comes first
}

// findRun finds the addresses that rotate, and lets any of them come first.
func (m *recent) findRun() {
	var parsed wire.Message
	if parsed.Parse(m.msg) != nil {
		return // there is no answer
	}
	first, n := parsed.AddressRun()
	for _, r := range parsed.Records[first : first+n] {
		m.run, m.size = append(m.run, r.TTL+6), int(r.Size) // TTL and length of RDATA are before it
	}
	m.turn.Store(rand.Uint32())
}

// rotate writes the addresses to msg, a copy of the message, from the next one on.
func (m *recent) rotate(msg []byte) {
	if len(m.run) == 0 {
		return
	}
	from := int(m.turn.Add(1) % uint32(len(m.run)))
	for _, to := range m.run {
		copy(msg[to:], m.msg[m.run[from]:][:m.size])
		if from++; from == len(m.run) {
			from = 0
		}
	}
}
