// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// AppendDenial appends m, the denial of a name, as the answer to the question for
// name and rrtype: no name is below one that does not exist (RFC 8020). Name is a
// canonical wire-form name that ends in the name that m denies; m's question is
// canonical too, and m has no OPT record and stays as it is. AD goes: nobody said
// that this name's denial is proven. It returns dst as it was and false if the
// message or a compression pointer gets too long.
func (m *Message) AppendDenial(dst, name []byte, rrtype uint16) ([]byte, bool) {
	by := len(name) - (m.qend - 4 - HeaderLen)
	if len(m.Raw)+by > MaxMessage {
		return dst, false
	}
	start := len(dst)
	dst = append(dst, m.Raw[:HeaderLen]...)
	dst = append(dst, name...)
	dst = binary.BigEndian.AppendUint16(dst, rrtype)
	dst = append(dst, m.Raw[m.qend-2:]...) // the class, and all records
	msg := dst[start:]
	msg[3] &^= bitAD
	// The name that m denies stands behind the new labels now, and so does the rest.
	moved := func(label int) int { return label + by }
	for _, r := range m.Records {
		r.Owner, r.TTL = uint16(int(r.Owner)+by), uint16(int(r.TTL)+by)
		if !mendRecord(msg, r, moved) {
			return dst[:start], false
		}
	}
	return dst, true
}
