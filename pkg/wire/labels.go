// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"sort"
)

// pointerReach is one more than the highest offset a compression pointer holds.
const pointerReach = 1 << 14

// A labelSet remembers where the labels of a message's names begin, as far as
// a compression pointer reaches.
//
// A pointer may lead to such a place only, so that a name is made of names and
// of nothing else. What is patched, cut off or moved later (the question's
// letter case, TTLs, the OPT record, the records behind a truncation, the
// addresses of an RRset) can then never turn a checked name into another one,
// or into a loop.
type labelSet [pointerReach / 64]uint64

// reset empties the set for a message of size octets.
func (s *labelSet) reset(size int) { clear(s[:min(size/64+1, len(s))]) }

func (s *labelSet) add(off int) {
	if off < pointerReach {
		s[off/64] |= 1 << (off % 64)
	}
}

func (s *labelSet) has(off int) bool { return s[off/64]&(1<<(off%64)) != 0 }

// addRun adds the labels from off to the root label or the pointer at stop.
func (s *labelSet) addRun(msg []byte, off, stop int) {
	for ; off < stop; off += int(msg[off]) + 1 {
		s.add(off)
	}
	s.add(stop)
}

// labelRun steps over the labels at off. It returns where the octet stands that
// ends them, a root label's or a pointer's, or -1 if the message ends first.
func labelRun(msg []byte, off int) int {
	for off < len(msg) && msg[off] != 0 && msg[off] <= MaxLabel {
		off += int(msg[off]) + 1
	}
	if off >= len(msg) {
		return -1
	}
	return off
}

// nameEnd is the offset after the name at off with every pointer of it followed
// and checked: to a label of a name before this one, at most [MaxName] octets
// in all. It is -1 if the name is malformed.
func (m *Message) nameEnd(msg []byte, off int) int {
	stop := labelRun(msg, off)
	if stop < 0 || stop-off+1 > MaxName {
		return -1
	}
	m.labels.addRun(msg, off, stop)
	if msg[stop] == 0 {
		return stop + 1
	}
	end, size := stop+2, stop-off+1
	to := m.target(msg, stop, off)
	if to < 0 {
		return -1
	}
	for range maxPointers { // what to leads to was checked with its own name
		stop = to
		for ; msg[stop] != 0 && msg[stop] <= MaxLabel; stop += int(msg[stop]) + 1 {
			m.steps++
		}
		m.steps++
		if size += stop - to; size > MaxName || m.steps > maxSteps {
			return -1
		}
		if msg[stop] == 0 {
			return end
		}
		to = pointer(msg, stop)
	}
	return -1
}

// target is where the pointer at off leads to, if it may: to a label before
// start, where the name began. It is -1 if not.
func (m *Message) target(msg []byte, off, start int) int {
	if msg[off] < 0xc0 || off+2 > len(msg) {
		return -1
	}
	to := pointer(msg, off)
	if to >= start || !m.isLabel(msg, to) {
		return -1
	}
	return to
}

// pointer is where the compression pointer at off leads to.
func pointer(msg []byte, off int) int {
	return int(binary.BigEndian.Uint16(msg[off:]) & (pointerReach - 1))
}

// isLabel tells whether a label that may be pointed at begins at off: one of a
// name that was walked, or of a name without pointers that stands whole in the
// RDATA of a type that is not looked into. Some servers compress against the
// signer of an RRSIG. Addresses do not count: they may change places.
func (m *Message) isLabel(msg []byte, off int) bool {
	if m.labels.has(off) {
		return true
	}
	i := sort.Search(len(m.Records), func(i int) bool { return m.Records[i].Data() > off }) - 1
	if i < 0 || m.Records[i].Type == TypeA || m.Records[i].Type == TypeAAAA {
		return false
	}
	r := m.Records[i]
	if _, walked := nameLayout(r.Type); walked || plainNameEnd(msg[:r.Data()+int(r.Size)], off) < 0 {
		return false
	}
	m.labels.addRun(msg, off, labelRun(msg, off))
	return true
}
