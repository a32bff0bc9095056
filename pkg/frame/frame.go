// SPDX-License-Identifier: Apache-2.0

// Package frame reads and writes DNS messages in a TCP stream: each has its length before it (RFC 1035 section 4.2.2).
package frame

import (
	"encoding/binary"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Header is the number of bytes of the length before each message.
const Header = 2

// A Reader splits a stream into messages.
//
// Reads go to one buffer, and messages are slices of it. The buffer grows only when bytes of a larger message have
// arrived, not because of a length alone, so a peer pays for memory with traffic. It shrinks as soon as the large
// message is consumed.
type Reader struct {
	buf        []byte // small, or a larger buffer
	small      []byte // kept so that shrinking does not allocate
	start, end int    // buf[start:end] holds bytes not yet returned
}

// NewReader returns a Reader with a buffer of size bytes.
func NewReader(size int) Reader {
	small := make([]byte, size)
	return Reader{buf: small, small: small}
}

// Size returns the current size of the buffer.
func (r *Reader) Size() int { return len(r.buf) }

// Buffer returns where the next read goes; it is never empty. It moves bytes and invalidates earlier messages.
func (r *Reader) Buffer() []byte {
	rest := r.buf[r.start:r.end]
	switch {
	case len(r.buf) > len(r.small) && r.need() <= len(r.small):
		r.move(r.small, rest)
	case len(rest) == len(r.buf):
		r.move(make([]byte, min(2*len(r.buf), Header+wire.MaxMessage)), rest)
	case r.start > 0:
		r.move(r.buf, rest)
	}
	return r.buf[r.end:]
}

// Advance adds n bytes that were read into Buffer.
func (r *Reader) Advance(n int) { r.end += n }

// Next returns the next whole message, or nil if more bytes are needed. The message is valid until Buffer is called.
// The result ok is false if the message has fewer than least bytes.
func (r *Reader) Next(least int) (msg []byte, ok bool) {
	rest := r.buf[r.start:r.end]
	if len(rest) < Header {
		return nil, true
	}
	end := Header + int(binary.BigEndian.Uint16(rest))
	switch {
	case end < Header+least:
		return nil, false
	case len(rest) < end:
		return nil, true
	}
	r.start += end
	return rest[Header:end:end], true
}

// Partial reports whether an incomplete frame has begun. It is valid after Next returned nil.
func (r *Reader) Partial() bool { return r.start < r.end }

// need returns the number of bytes that the buffer must hold for the current frame, as far as known.
func (r *Reader) need() int {
	rest := r.buf[r.start:r.end]
	if len(rest) < Header {
		return len(rest)
	}
	return max(len(rest), Header+int(binary.BigEndian.Uint16(rest)))
}

func (r *Reader) move(to, rest []byte) {
	r.end = copy(to, rest)
	r.start = 0
	r.buf = to
}

// Open appends room for the length of a message to dst. The caller appends the message and calls Seal.
func Open(dst []byte) []byte { return append(dst, 0, 0) }

// Seal writes the length of the message appended after Open(dst[:at]). It removes a message that is empty or too long
// for a frame, and returns false.
func Seal(dst []byte, at int) ([]byte, bool) {
	size := len(dst) - at - Header
	if size <= 0 || size > wire.MaxMessage {
		return dst[:at], false
	}
	binary.BigEndian.PutUint16(dst[at:], uint16(size))
	return dst, true
}
