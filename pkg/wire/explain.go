// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// MaxExplanation is the most octets of text that an explanation may have. The
// smallest reply there is has room for it beside everything else of its own.
const MaxExplanation = ExplanationRoom - 4

// ExplanationRoom is the octets that an explanation takes of a reply at the most.
// Who is going to give one takes it off the limit that the reply is made with.
const ExplanationRoom = 160

// AppendExplanation appends text as an OptionExplain to the OPT record that buf
// ends with: that of a reply to q which was made with s and just now. Text beyond
// MaxExplanation is cut.
func (q *Question) AppendExplanation(buf []byte, s *ReplyOptions, text []byte) []byte {
	if !q.EDNS {
		return buf
	}
	text = text[:min(len(text), MaxExplanation)]
	options := q.optLen(s) - optFixed
	length := buf[len(buf)-options-2 : len(buf)-options]
	binary.BigEndian.PutUint16(length, uint16(options+4+len(text)))
	buf = append(buf, byte(OptionExplain>>8), byte(OptionExplain&0xff), 0, byte(len(text)))
	return append(buf, text...)
}

// AppendKey appends the key, as of [Query.Key], that q's question would have if it
// were for name, which is canonical and in wire form. It has no subnet.
func (q *Question) AppendKey(dst, name []byte) []byte {
	dst = append(dst, name...)
	dst = binary.BigEndian.AppendUint16(dst, q.Type)
	var flags byte
	if q.DO {
		flags |= keyDO
	}
	if q.CD {
		flags |= keyCD
	}
	return append(dst, flags)
}

// KeyFlags takes the octet of a key behind name and type apart: the question's DO and
// CD bits.
func KeyFlags(flags byte) (do, cd bool) { return flags&keyDO != 0, flags&keyCD != 0 }
