// SPDX-License-Identifier: Apache-2.0

package static

import (
	"encoding/binary"
	"hash/maphash"
	"sync/atomic"

	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	memoPlaces = 1024
	maxMemo    = 1024 // octets of an answer that is kept
)

// memos are the answers that templates made last, one for each place: the same question
// gets the same answer, and making it costs what fifty hits do. None is more than some
// octets longer than maxMemo.
type memos struct {
	seed   maphash.Seed
	places [memoPlaces]atomic.Pointer[memo]
}

// A memo is what came of a question. It does not change.
type memo struct {
	name    string // canonical
	rrtype  uint16
	verdict Verdict
	msg     []byte
	target  int // octets of the name outside that msg ends with, with Alias
}

func (m *memos) init() { m.seed = maphash.MakeSeed() }

// place is where what came of q is kept.
func (m *memos) place(q *wire.Query) *atomic.Pointer[memo] {
	key := q.Key()[:len(q.Name())+2] // without what tells answers apart elsewhere
	return &m.places[maphash.Bytes(m.seed, key)%memoPlaces]
}

// of tells whether the memo is of q's question.
func (m *memo) of(q *wire.Query) bool {
	key := q.Key()
	n := len(q.Name())
	return string(key[:n]) == m.name && binary.BigEndian.Uint16(key[n:]) == m.rrtype
}
