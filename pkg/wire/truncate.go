// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// Truncate cuts msg, a parsed answer without OPT record, to at most limit bytes in place, as
// [Question.Reply] does. It removes whole RRsets, but single addresses of the answer section. It
// sets TC unless only additional records are removed. limit must leave room for the question.
func Truncate(msg []byte, limit int) []byte {
	if len(msg) <= limit {
		return msg
	}
	return msg[:truncate(msg, limit)]
}

// truncate cuts msg, a parsed answer without OPT record, to at most limit bytes at the end of an
// RRset and corrects the counts. It sets TC if it removes an answer or authority record, but not
// for additional records (RFC 2181 section 9). It returns the new length.
//
// Of an address RRset in the answer section it keeps what fits, which RFC 2181 allows with TC.
// Clients that never retry over TCP (musl before 1.2.4) then get some addresses of a large service
// instead of none.
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

// A truncator walks the records of a message and finds where it may be cut.
type truncator struct {
	end      int       // end of the records read
	counts   [3]uint16 // records read, by section
	boundary int       // last valid cut at or before end
	kept     [3]uint16 // records before boundary, by section
}

// section reads a section. It returns false at the first record that ends beyond limit.
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

// isAddress reports whether the record whose owner ends at off is an A or AAAA record.
func isAddress(msg []byte, off int) bool {
	rrtype := binary.BigEndian.Uint16(msg[off:])
	return rrtype == TypeA || rrtype == TypeAAAA
}

// sameSet reports whether the records at a and b belong to the same RRset.
func sameSet(msg []byte, a, b int) bool {
	x, y := anyNameEnd(msg, a), anyNameEnd(msg, b)
	return string(msg[x:x+4]) == string(msg[y:y+4]) && sameName(msg, a, b)
}
