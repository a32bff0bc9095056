// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"slices"
)

// questionEnd is where the question of q ends, a query with one, or -1.
func questionEnd(q []byte) int {
	end := plainNameEnd(q, HeaderLen)
	if end < 0 || end+4 > len(q) {
		return -1
	}
	return end + 4
}

// QueryType is the type that q, a query as [Query.AppendUpstream] makes it, asks for; 0 if it is none.
func QueryType(q []byte) uint16 {
	end := questionEnd(q)
	if end < 0 {
		return 0
	}
	return binary.BigEndian.Uint16(q[end-4:])
}

// CopyQuestion gives the answer r to the query q the spelling of q's question. It is for answers that [Match] has let
// through.
func CopyQuestion(r, q []byte) {
	if end := questionEnd(q); end <= len(r) && end > 0 {
		copy(r[HeaderLen:end], q[HeaderLen:end])
	}
}

// WithUDPSize is a copy of q, a query as [Query.AppendUpstream] makes it, that says another EDNS size. Without an OPT
// record right after the question it is q.
func WithUDPSize(q []byte, octets uint16) []byte {
	end := questionEnd(q)
	if end < 0 || len(q) < end+11 || q[end] != 0 || binary.BigEndian.Uint16(q[end+1:]) != TypeOPT {
		return q
	}
	q = slices.Clone(q)
	binary.BigEndian.PutUint16(q[end+3:], octets)
	return q
}
