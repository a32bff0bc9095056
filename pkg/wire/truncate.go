// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// Truncate cuts msg, a walked answer without OPT record, to at most limit octets as
// [Question.Reply] does: whole sets of records go, of addresses in the answer section no more
// than must, and TC tells of it unless only additional ones went. The limit has room
// for the question. It is cut in place.
func Truncate(msg []byte, limit int) []byte {
	if len(msg) <= limit {
		return msg
	}
	return msg[:truncate(msg, limit)]
}

// truncate cuts msg, a walked answer without OPT record, to at most limit
// octets at the end of a whole RRset and mends its counts. TC is set when an
// answer or authority record had to go; additional records go without it
// (RFC 2181 section 9). It returns the new length.
//
// Of a set of addresses in the answer section what fits stays, which RFC 2181
// allows with TC: clients that never ask again over TCP (musl before 1.2.4) have
// some addresses of a large service then, and not none.
func truncate(msg []byte, limit int) int {
	question := plainNameEnd(msg, HeaderLen) + 4
	c := truncator{end: question, boundary: question}
	for section := range Additional + 1 {
		if c.section(msg, section, limit) {
			continue
		}
		for i, n := range c.kept {
			binary.BigEndian.PutUint16(msg[6+2*i:], n)
		}
		if section < Additional {
			msg[2] |= bitTC
		}
		return c.boundary
	}
	return c.end
}

// A truncator walks the records of a message and knows where it may be cut.
type truncator struct {
	end      int       // of the records walked
	counts   [3]uint16 // of those, by section
	boundary int       // the last place to cut at or before end
	kept     [3]uint16 // counts up to there
}

// section walks a section. It is false as soon as a record ends beyond limit.
func (c *truncator) section(msg []byte, section uint8, limit int) bool {
	previous := -1
	for range binary.BigEndian.Uint16(msg[6+2*section:]) {
		fixed := anyNameEnd(msg, c.end)
		if previous < 0 || section == Answer && isAddress(msg, fixed) || !sameSet(msg, previous, c.end) {
			c.boundary, c.kept = c.end, c.counts
		}
		previous = c.end
		c.end = fixed + 10 + int(binary.BigEndian.Uint16(msg[fixed+8:]))
		c.counts[section]++
		if c.end > limit {
			return false
		}
	}
	return true
}

// isAddress tells whether the record whose owner ends at off is an address.
func isAddress(msg []byte, off int) bool {
	rrtype := binary.BigEndian.Uint16(msg[off:])
	return rrtype == TypeA || rrtype == TypeAAAA
}

// sameSet tells whether the records at a and b are of one RRset.
func sameSet(msg []byte, a, b int) bool {
	x, y := anyNameEnd(msg, a), anyNameEnd(msg, b)
	return string(msg[x:x+4]) == string(msg[y:y+4]) && sameName(msg, a, b)
}
