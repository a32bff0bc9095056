// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"encoding/binary"

	"github.com/nodecache/node-cache/pkg/wire"
	"github.com/nodecache/node-cache/pkg/zone"
)

const (
	// axfrMessageSize is the octets of a message of a transfer. A compression pointer
	// reaches no farther, so longer messages would save nothing.
	axfrMessageSize = 16 << 10
	// axfrOPTRoom is what the OPT record may take of it.
	axfrOPTRoom = 128
	// recordFixedLen is the octets of a record between owner and RDATA.
	recordFixedLen = 10
)

// An axfrMessage is one message of a transfer as it is filled with records: header,
// question, answer section. An owner name is compressed against the one before it
// and the question, which is the end of every name.
type axfrMessage struct {
	buf   []byte
	count int // records

	owner labels // of the record before, or of the question
	spare labels // reused
}

// labels are the labels of a canonical name, and where they stand in a message.
type labels struct {
	name []byte
	list []label // but the root
}

type label struct {
	start int // in the name
	at    int // in the message
}

// set takes a name apart. It keeps no reference to it.
func (l *labels) set(name []byte) {
	l.name = append(l.name[:0], name...)
	l.list = l.list[:0]
	for off := 0; name[off] != 0; off += int(name[off]) + 1 {
		l.list = append(l.list, label{start: off})
	}
}

// text is label i with its length.
func (l *labels) text(i int) []byte {
	start := l.list[i].start
	return l.name[start : start+1+int(l.name[start])]
}

// begin starts a message with the question.
func (p *axfrMessage) begin(question []byte) {
	const bitsAnswer = 0x84 // third octet of the header: QR, AA
	p.count = 0
	p.buf = append(p.buf[:0], 0, 0, bitsAnswer, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	p.buf = append(p.buf, question...)
	name := make([]byte, len(question)-4) // without type and class
	wire.Canonical(name, question[:len(name)])
	p.owner.set(name)
	for i := range p.owner.list {
		p.owner.list[i].at = wire.HeaderLen + p.owner.list[i].start
	}
}

// fits tells whether there is room for the record. The first one always fits.
func (p *axfrMessage) fits(r *zone.Record) bool {
	return p.count == 0 || len(p.buf)+len(r.Owner)+recordFixedLen+len(r.Data)+axfrOPTRoom <= axfrMessageSize
}

// add appends the record.
func (p *axfrMessage) add(r *zone.Record) {
	p.appendOwner(r.Owner)
	p.buf = binary.BigEndian.AppendUint16(p.buf, r.Type)
	p.buf = binary.BigEndian.AppendUint16(p.buf, wire.ClassIN)
	p.buf = binary.BigEndian.AppendUint32(p.buf, r.TTL)
	p.buf = binary.BigEndian.AppendUint16(p.buf, uint16(len(r.Data)))
	p.buf = append(p.buf, r.Data...)
	p.count++
}

// appendOwner appends the name: the labels that the owner before does not end
// with, and a pointer to those that it does.
func (p *axfrMessage) appendOwner(name []byte) {
	last, own := &p.owner, &p.spare
	own.set(name)
	i, j := len(own.list), len(last.list)
	for i > 0 && j > 0 && string(own.text(i-1)) == string(last.text(j-1)) {
		i, j = i-1, j-1
		own.list[i].at = last.list[j].at
	}
	for k := range i {
		own.list[k].at = len(p.buf)
		p.buf = append(p.buf, own.text(k)...)
	}
	if i < len(own.list) {
		p.buf = binary.BigEndian.AppendUint16(p.buf, 0xc000|uint16(own.list[i].at))
	} else {
		p.buf = append(p.buf, 0)
	}
	p.owner, p.spare = p.spare, p.owner
}

// message is the message with its records counted. It is the AXFR message's until begin.
func (p *axfrMessage) message() []byte {
	binary.BigEndian.PutUint16(p.buf[6:], uint16(p.count))
	return p.buf
}
