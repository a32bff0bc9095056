// SPDX-License-Identifier: Apache-2.0

package dso

import (
	"bytes"
	"encoding/binary"

	"github.com/nodecache/node-cache/pkg/wire"
)

// MaxPush is the size in bytes of the largest PUSH, without the length of a stream (RFC 8765 section 6.3.1).
const MaxPush = 16382

// TTLs of changes that add no record (RFC 8765 section 6.3.1). Receivers ignore other TTLs above MaxTTL.
const (
	MaxTTL              = 1<<31 - 1
	TTLRemoveCollective = 0xfffffffe // removes the records of the type, of each type if that is ANY, of each class if that is ANY
	TTLRemove           = 0xffffffff // removes one record
)

// A Change is one change notification of a PUSH.
type Change struct {
	Name        []byte // in wire form, uncompressed
	Type, Class uint16
	TTL         uint32
	Data        []byte // RDATA as it is in the message: names in it may be compressed
}

// Changes calls do with each change of a PUSH until do returns false. Name and Data are valid until do returns. The error is
// [ErrMalformed]; changes before the malformed one have been passed to do.
func (m *Message) Changes(do func(Change) bool) error {
	t := m.Primary()
	if t.Type != TypePush || m.Kind != Unidirectional || len(m.raw) > MaxPush || len(t.Data) == 0 {
		return ErrMalformed
	}
	var name []byte
	for at, end := t.at, t.at+len(t.Data); at < end; {
		if name, at = m.name(name[:0], at, end); at < 0 || at+changeHeader > end {
			return ErrMalformed
		}
		c := Change{name, binary.BigEndian.Uint16(m.raw[at:]), binary.BigEndian.Uint16(m.raw[at+2:]), binary.BigEndian.Uint32(m.raw[at+4:]), nil}
		size := int(binary.BigEndian.Uint16(m.raw[at+8:]))
		if at += changeHeader; at+size > end {
			return ErrMalformed
		}
		c.Data = m.raw[at : at+size : at+size]
		if at += size; !c.valid() {
			return ErrMalformed
		}
		if !do(c) {
			return nil
		}
	}
	return nil
}

// changeHeader is the size in bytes of type, class, TTL and length.
const changeHeader = 10

func (c *Change) valid() bool {
	if c.TTL == TTLRemoveCollective {
		return len(c.Data) == 0
	}
	return c.TTL > MaxTTL && c.TTL != TTLRemove || c.Type != wire.TypeANY && c.Class != wire.TypeANY
}

// name appends the name at an offset of the PUSH, which ends at end. It returns the offset after it, or -1. A pointer leads to an
// earlier byte of the changes, so names cannot loop.
func (m *Message) name(dst []byte, at, end int) (_ []byte, after int) {
	start, least := len(dst), at
	for {
		switch n := m.raw[at]; {
		case n == 0:
			if after == 0 {
				after = at + 1
			}
			return append(dst, 0), after
		case n >= 0xc0 && at+1 < end:
			to := int(binary.BigEndian.Uint16(m.raw[at:]) & 0x3fff)
			if after == 0 {
				after = at + 2
			}
			if to >= least || to < wire.HeaderLen+tlvHeader {
				return dst, -1
			}
			at, least = to, to
		case n > wire.MaxLabel || at+1+int(n) >= end || len(dst)-start+1+int(n) >= wire.MaxName:
			return dst, -1
		default:
			dst = append(dst, m.raw[at:at+1+int(n)]...)
			at += 1 + int(n)
		}
	}
}

// A Push builds a PUSH. Its zero value is not valid: call Begin.
type Push struct {
	buf    []byte
	start  int // offset of the header
	nameAt int // offset of the last whole name in buf; 0: none
}

// Begin begins a message, which is appended to buf.
func (p *Push) Begin(buf []byte) {
	*p = Push{start: len(buf)}
	p.buf = appendTLV(AppendHeader(buf, Unidirectional, 0, 0), TypePush, 0)
}

// Add adds a change, unless the message would be larger than [MaxPush]. Names in c.Data must not be compressed.
func (p *Push) Add(c Change) (fits bool) {
	// The owner is often that of the change before. Its name is within the 16,383 bytes of a pointer, as all of the message is.
	name := c.Name
	if p.nameAt > 0 && bytes.HasPrefix(p.buf[p.nameAt:], name) {
		name = binary.BigEndian.AppendUint16(nil, 0xc000|uint16(p.nameAt-p.start))
	}
	if len(p.buf)-p.start+len(name)+changeHeader+len(c.Data) > MaxPush {
		return false
	}
	if len(name) == len(c.Name) && len(name) > 2 {
		p.nameAt = len(p.buf)
	}
	p.buf = append(p.buf, name...)
	p.buf = binary.BigEndian.AppendUint16(p.buf, c.Type)
	p.buf = binary.BigEndian.AppendUint16(p.buf, c.Class)
	p.buf = binary.BigEndian.AppendUint32(p.buf, c.TTL)
	p.buf = binary.BigEndian.AppendUint16(p.buf, uint16(len(c.Data)))
	p.buf = append(p.buf, c.Data...)
	return true
}

// RemoveName adds the removal of all records of a name, in class IN.
func (p *Push) RemoveName(name []byte) (fits bool) {
	return p.Add(Change{Name: name, Type: wire.TypeANY, Class: wire.ClassIN, TTL: TTLRemoveCollective})
}

// Len returns the size of the message so far, for Cut.
func (p *Push) Len() int { return len(p.buf) - p.start }

// Cut removes the changes after the message had a size.
func (p *Push) Cut(size int) {
	p.buf = p.buf[:p.start+size]
	if p.nameAt >= len(p.buf) {
		p.nameAt = 0
	}
}

// End returns buf with the message. Without changes it is as it was passed to Begin.
func (p *Push) End() []byte {
	size := p.Len() - wire.HeaderLen - tlvHeader
	if size == 0 {
		return p.buf[:p.start]
	}
	binary.BigEndian.PutUint16(p.buf[p.start+wire.HeaderLen+2:], uint16(size))
	return p.buf
}
