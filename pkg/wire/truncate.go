// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// truncate cuts msg, a walked answer without OPT record, to at most limit
// octets at the end of a whole RRset and mends its counts. TC is set when an
// answer or authority record had to go; additional records go without it
// (RFC 2181 section 9). It returns the new length.
//
// Of a set of addresses in the answer section what fits stays, which RFC 2181
// allows with TC: clients that never ask again over TCP (musl before 1.2.4) have
// some addresses of a large service then, and not none.
func truncate(msg []byte, limit int) int {
	off := plainNameEnd(msg, HeaderLen) + 4
	var counts, kept [3]uint16
	end, cut := off, off
	lost := Additional + 1 // first section with a record lost
walk:
	for section := range Additional + 1 {
		previous := -1
		for range binary.BigEndian.Uint16(msg[6+2*section:]) {
			if previous < 0 || !sameSet(msg, previous, end) {
				cut, kept = end, counts
			}
			previous = end
			fixed := anyNameEnd(msg, end)
			if section == Answer && isAddress(msg, fixed) {
				cut, kept = end, counts
			}
			end = fixed + 10 + int(binary.BigEndian.Uint16(msg[fixed+8:]))
			counts[section]++
			if end > limit {
				lost = section
				break walk
			}
		}
	}
	if lost > Additional {
		return end
	}
	for section, n := range kept {
		binary.BigEndian.PutUint16(msg[6+2*section:], n)
	}
	if lost < Additional {
		msg[2] |= bitTC
	}
	return cut
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
