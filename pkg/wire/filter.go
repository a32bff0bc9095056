// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
)

// A RecordFilter writes messages anew with some of their records only. The zero value is ready for use, again and again.
type RecordFilter struct {
	msg       []byte   // the message as it was
	out       []byte   // and as it will be
	newOffset []uint16 // where the label that stood at an offset stands now; 0: nowhere yet
}

// Keep leaves of m the question and the records that order lists by their indices in m.Records, in that order, which
// keeps the sections apart. An OPT record goes too. Names stay what they are, whatever of them stood in records that are
// gone. m.Raw is written over, or is a new slice in the rare case that this does not suffice. The error is
// [ErrMalformed], and m spoilt, if the names do not fit any more: spelled out they may take more than [MaxMessage]
// octets.
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

// copyQuestion copies what stays as it is: header and question.
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

// copyName appends the name at off. It returns the offset after the name as it was.
func (s *RecordFilter) copyName(off int) (end int) {
	s.out = appendRelocated(s.out, 0, s.newOffset, s.msg, off)
	return anyNameEnd(s.msg, off)
}

// appendRelocated appends the name at off in msg to a message that begins at start in out: its labels up to one that was written
// before, and then a pointer to that. moved tells where the label that stood at an offset in msg stands now; 0: nowhere yet.
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
