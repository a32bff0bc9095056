// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"encoding/binary"

	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	padBlock      = 128              // RFC 8467 section 4.1: what the size of a query is a multiple of
	optionPadding = 12               // RFC 7830
	maxPadding    = 4 + padBlock - 1 // octets that padding adds
)

// appendPadded appends the query with a padding option, so that its size says little about the name in it. A query that
// has no OPT record at its end, or one that is padded already, is appended as it is.
func appendPadded(dst, q []byte) []byte {
	at := optionsOffset(q)
	start := len(dst)
	dst = append(dst, q...)
	if at < 0 || len(q)+maxPadding > wire.MaxMessage {
		return dst
	}
	var zeros [padBlock]byte
	n := -(len(q) + 4) & (padBlock - 1)
	dst = append(dst, 0, optionPadding, 0, byte(n))
	dst = append(dst, zeros[:n]...)
	length := dst[start+at:]
	binary.BigEndian.PutUint16(length, binary.BigEndian.Uint16(length)+uint16(4+n))
	return dst
}

// paddable is the offset of the length of the OPT record's options, or -1 where the query takes no padding.
func optionsOffset(q []byte) int {
	at := wire.HeaderLen
	if len(q) < at {
		return -1
	}
	records := 0
	for _, section := range []int{6, 8, 10} {
		records += int(binary.BigEndian.Uint16(q[section:]))
	}
	if binary.BigEndian.Uint16(q[4:]) != 1 || records == 0 {
		return -1
	}
	if at = skipName(q, at); at < 0 {
		return -1
	}
	at += 4
	for ; records > 0; records-- {
		owner := at
		if at = skipName(q, at); at < 0 || at+10 > len(q) {
			return -1
		}
		length := at + 8
		end := at + 10 + int(binary.BigEndian.Uint16(q[length:]))
		if records == 1 && end == len(q) && q[owner] == 0 &&
			binary.BigEndian.Uint16(q[at:]) == wire.TypeOPT && !hasPadding(q[at+10:]) {
			return length
		}
		at = end
	}
	return -1
}

// skipName is the offset after the name at the offset, or -1.
func skipName(q []byte, at int) int {
	for at < len(q) {
		switch n := int(q[at]); {
		case n == 0:
			return at + 1
		case n >= 0xc0:
			return at + 2
		default:
			at += n + 1
		}
	}
	return -1
}

// padded tells whether there is a padding among the options, or what cannot be read as options.
func hasPadding(options []byte) bool {
	for len(options) > 0 {
		if len(options) < 4 || binary.BigEndian.Uint16(options) == optionPadding {
			return true
		}
		n := 4 + int(binary.BigEndian.Uint16(options[2:]))
		if n > len(options) {
			return true
		}
		options = options[n:]
	}
	return false
}
