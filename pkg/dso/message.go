// SPDX-License-Identifier: Apache-2.0

package dso

import (
	"encoding/binary"
	"errors"

	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	// Opcode is that of DNS Stateful Operations.
	Opcode = 6
	// RcodeTypeNI says that the server does not implement the type of the primary TLV (DSOTYPENI).
	RcodeTypeNI = 11
)

// A Type is a DSO-TYPE.
type Type uint16

// The DSO types of RFC 8490 section 10.3 and RFC 8765 section 8.2, and the one of this project.
const (
	TypeKeepalive   Type = 0x0001
	TypeRetryDelay  Type = 0x0002
	TypePadding     Type = 0x0003
	TypeSubscribe   Type = 0x0040
	TypePush        Type = 0x0041
	TypeUnsubscribe Type = 0x0042
	TypeReconfirm   Type = 0x0043
	TypeView        Type = 0xf800
)

// A Kind is what a message is, by its QR bit and its ID (RFC 8490 section 8.1).
type Kind uint8

// The kinds of messages.
const (
	Request        Kind = iota // needs a response
	Unidirectional             // gets none
	Response
)

var (
	// ErrMalformed is the error of a message for which the receiver must abort the session.
	ErrMalformed = errors.New("malformed DSO message")
	// ErrCounts is the error of a message that has sections. A request gets FORMERR (RFC 8490 section 5.4).
	ErrCounts = errors.New("DSO message with a count that is not zero")
)

// A Message is a parsed message. Its slices are parts of the argument of [Parse].
type Message struct {
	Kind  Kind
	ID    uint16 // 0 only if it is unidirectional
	Rcode uint8
	raw   []byte
}

// A TLV is one TLV of a message.
type TLV struct {
	Type Type
	Data []byte
	at   int // offset of Data in the message
}

// IsDSO reports whether a message, without the length of a stream, has the opcode of DNS Stateful Operations.
func IsDSO(msg []byte) bool { return len(msg) >= wire.HeaderLen && msg[2]>>3&0xf == Opcode }

// Parse reads a message with the opcode of DNS Stateful Operations. The error is [ErrCounts], with which ID and Kind are set and there are no TLVs, or
// [ErrMalformed]: it is too short, its last TLV is not complete, it is a response without an ID, or it is none and has no TLV.
func Parse(msg []byte) (Message, error) {
	if !IsDSO(msg) {
		return Message{}, ErrMalformed
	}
	m := Message{ID: binary.BigEndian.Uint16(msg), Rcode: msg[3] & 0xf, raw: msg}
	switch response := msg[2]&0x80 != 0; {
	case response && m.ID == 0:
		return Message{}, ErrMalformed
	case response:
		m.Kind = Response
	case m.ID == 0:
		m.Kind = Unidirectional
	}
	if binary.BigEndian.Uint64(msg[4:]) != 0 {
		m.raw = nil
		return m, ErrCounts
	}
	at := wire.HeaderLen
	for at < len(msg) {
		if at+tlvHeader > len(msg) {
			return Message{}, ErrMalformed
		}
		at += tlvHeader + int(binary.BigEndian.Uint16(msg[at+2:]))
	}
	if at != len(msg) || at == wire.HeaderLen && m.Kind != Response {
		return Message{}, ErrMalformed
	}
	return m, nil
}

// tlvHeader is the size in bytes of DSO-TYPE and DSO-LENGTH.
const tlvHeader = 4

// Primary returns the first TLV. Only a response may have none: it has type 0 then.
func (m *Message) Primary() TLV { return m.tlv(wire.HeaderLen) }

func (m *Message) tlv(at int) TLV {
	if at >= len(m.raw) {
		return TLV{}
	}
	size := int(binary.BigEndian.Uint16(m.raw[at+2:]))
	at += tlvHeader
	return TLV{Type(binary.BigEndian.Uint16(m.raw[at-tlvHeader:])), m.raw[at : at+size : at+size], at}
}

// Additional calls do with each TLV after the first until do returns false.
func (m *Message) Additional(do func(TLV) bool) {
	for t := m.Primary(); t.at > 0; {
		if t = m.tlv(t.at + len(t.Data)); t.at == 0 || !do(t) {
			return
		}
	}
}

// Find returns the first TLV of a type, of a response among all of its TLVs, else among the additional ones.
func (m *Message) Find(of Type) (found TLV, ok bool) {
	if t := m.Primary(); m.Kind == Response && t.Type == of {
		return t, true
	}
	m.Additional(func(t TLV) bool {
		if ok = t.Type == of; ok {
			found = t
		}
		return !ok
	})
	return found, ok
}

// AppendHeader appends the header of a message: with ID 0 of a unidirectional one.
func AppendHeader(dst []byte, kind Kind, id uint16, rcode uint8) []byte {
	dst = binary.BigEndian.AppendUint16(dst, id)
	flags := byte(Opcode << 3)
	if kind == Response {
		flags |= 0x80
	}
	return append(dst, flags, rcode, 0, 0, 0, 0, 0, 0, 0, 0)
}

func appendTLV(dst []byte, of Type, size int) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(of))
	return binary.BigEndian.AppendUint16(dst, uint16(size))
}
