// SPDX-License-Identifier: Apache-2.0

package upstreamtest

import "encoding/binary"

// A Shape is a kind of bad answer.
type Shape struct {
	Name  string
	Make  Raw  // for a query with one question and at most an OPT record
	Reads bool // ID and question match; only the rest cannot be parsed
}

const headerLen = 12

// BadShapes returns answers that a resolver must not accept, and that must not end its wait for the good answer.
func BadShapes() []Shape {
	pointer := func(to byte) Raw { // an A record whose owner is a pointer
		return func(q []byte) []byte {
			return append(reply(q, 1), 0xc0, to, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 66)
		}
	}
	return []Shape{
		{Name: "wrong ID", Make: changed(func(r []byte) { r[1] ^= 1 })},
		{Name: "QR=0", Make: changed(func(r []byte) { r[2] &^= 0x80 })},
		{Name: "other opcode", Make: changed(func(r []byte) { r[2] |= 4 << 3 })},
		{Name: "other name", Make: changed(func(r []byte) { r[headerLen+1] ^= 1 })},
		{Name: "other type", Make: changed(func(r []byte) { r[questionEnd(r)-3] ^= 0x10 })},
		{Name: "other class", Make: changed(func(r []byte) { r[questionEnd(r)-1] ^= 2 })},
		{Name: "two questions", Make: func(q []byte) []byte {
			r := reply(q, 0)
			r[5] = 2
			return append(r, r[headerLen:]...)
		}},
		{Name: "no question", Make: func(q []byte) []byte {
			r := reply(q, 0)[:headerLen]
			r[5] = 0
			return r
		}},
		{Name: "truncated header", Make: func(q []byte) []byte { return reply(q, 0)[:7] }},
		{Name: "truncated question", Make: func(q []byte) []byte { return reply(q, 0)[:headerLen+3] }},
		{Name: "empty", Make: func([]byte) []byte { return []byte{} }},
		{Name: "garbage", Make: func([]byte) []byte { return []byte("\xff\xfenot a message, but long enough for one") }},
		{Name: "truncated rdata", Reads: true, Make: func(q []byte) []byte { r := Forged(q); return r[:len(r)-2] }},
		{Name: "forward pointer", Reads: true, Make: func(q []byte) []byte {
			return pointer(byte(questionEnd(q)) + 4)(q)
		}},
		{Name: "pointer loop", Reads: true, Make: func(q []byte) []byte {
			return pointer(byte(questionEnd(q)))(q)
		}},
		{Name: "label of 64 bytes", Reads: true, Make: func(q []byte) []byte {
			r := append(reply(q, 1), 64)
			r = append(r, make([]byte, 64)...)
			return append(r, 0, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 66)
		}},
		{Name: "count above the number of records", Reads: true, Make: changed(func(r []byte) { r[7] = 9 })},
		{Name: "truncated OPT", Reads: true, Make: func(q []byte) []byte {
			r := reply(q, 0)
			r[11] = 1
			return append(r, 0, 0, 41, 4, 208, 0, 0)
		}},
	}
}

// changed builds a whole answer with a fault.
func changed(fault func(r []byte)) Raw {
	return func(q []byte) []byte {
		r := Forged(q)
		fault(r)
		return r
	}
}

// Forged builds a well-formed answer with the address 192.0.2.66.
func Forged(q []byte) []byte {
	return append(reply(q, 1), 0xc0, headerLen, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 66)
}

// reply builds the header and question of an answer that claims so many records.
func reply(q []byte, answers byte) []byte {
	r := append([]byte(nil), q[:questionEnd(q)]...)
	r[2] |= 0x80
	copy(r[6:headerLen], []byte{0, answers, 0, 0, 0, 0})
	return r
}

// questionEnd returns the offset after the question of q.
func questionEnd(q []byte) int {
	off := headerLen
	for q[off] != 0 {
		off += int(q[off]) + 1
	}
	return off + 5
}

// WithID changes the ID of the message that raw builds.
func WithID(raw Raw, id uint16) Raw {
	return func(q []byte) []byte {
		r := raw(q)
		binary.BigEndian.PutUint16(r, id)
		return r
	}
}
