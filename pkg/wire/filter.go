// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
)

// A RecordFilter rewrites messages with some of their records only. The zero value is ready for use
// and can be reused.
type RecordFilter struct {
	msg       []byte   // the message before
	out       []byte   // the message after
	newOffset []uint16 // new offset of the label at an old offset; 0: not written yet
}

// Keep rewrites m with its question and the records that order lists by their indices in m.Records,
// in that order. The order must keep the sections apart. Keep drops the OPT record. Names keep
// their values even if the records they were compressed against are gone. Keep overwrites m.Raw, or
// replaces it in the rare case that it is too small. If the uncompressed names need more than
// [MaxMessage] bytes, Keep returns [ErrMalformed] and m is no longer valid.
func (s *RecordFilter) Keep(m *Message, order []uint16) error {
	s.copyQuestion(m)
	var counts [Additional + 1]uint16
	for _, i := range order {
		r := m.Records[i]
		s.copyRecord(r)
		if len(s.out) > MaxMessage {
			return ErrMalformed
		}
		counts[r.Section]++
	}
	for section, n := range counts {
		binary.BigEndian.PutUint16(s.out[6+2*section:], n)
	}
	m.Raw = append(m.Raw[:0:len(m.Raw)], s.out...)
	return m.Parse(m.Raw)
}

// copyQuestion copies the header and the question, which do not change.
func (s *RecordFilter) copyQuestion(m *Message) {
	s.msg = m.Raw
	s.out = append(s.out[:0], m.Raw[:m.qend]...)
	if s.newOffset == nil {
		s.newOffset = make([]uint16, pointerReach)
	}
	clear(s.newOffset[:min(len(m.Raw), pointerReach)])
	for off := HeaderLen; off < m.qend-5; off += int(m.Raw[off]) + 1 {
		s.newOffset[off] = uint16(off)
	}
}

// copyRecord appends the record r.
func (s *RecordFilter) copyRecord(r Record) {
	s.copyName(int(r.Owner))
	s.out = append(s.out, s.msg[r.TTL-4:r.Data()]...)
	data := len(s.out)
	off, end := r.Data(), r.Data()+int(r.Size)
	if l, ok := nameLayout(r.Type); ok {
		s.out = append(s.out, s.msg[off:off+l.before]...)
		off += l.before
		for range l.names {
			off = s.copyName(off)
		}
	}
	s.out = append(s.out, s.msg[off:end]...)
	binary.BigEndian.PutUint16(s.out[data-2:], uint16(len(s.out)-data))
}

// copyName appends the name at off. It returns the offset after the name in the old message.
func (s *RecordFilter) copyName(off int) (end int) {
	s.out = appendRelocated(s.out, 0, s.newOffset, s.msg, off)
	return anyNameEnd(s.msg, off)
}

// appendRelocated appends the name at off in msg to the message that begins at start in out. It
// writes the labels up to the first one that was written before, then a pointer to that one.
// newOffset holds the new offset of each label by its offset in msg; 0 means not written yet.
func appendRelocated(out []byte, start int, moved []uint16, msg []byte, off int) []byte {
	for {
		off = follow(msg, off)
		if msg[off] == 0 {
			return append(out, 0)
		}
		if off < pointerReach {
			if to := moved[off]; to != 0 {
				return binary.BigEndian.AppendUint16(out, 0xc000|to)
			}
			if at := len(out) - start; at < pointerReach {
				moved[off] = uint16(at)
			}
		}
		next := off + int(msg[off]) + 1
		out = append(out, msg[off:next]...)
		off = next
	}
}
