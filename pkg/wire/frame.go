// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// FrameHeader is the number of bytes of the length before each message in a stream (RFC 1035 section 4.2.2).
const FrameHeader = 2

// A FrameReader splits a stream into messages.
//
// Reads go to one buffer, and messages are slices of it. The buffer grows only when bytes of a larger message have
// arrived, not because of a length alone, so a peer pays for memory with traffic. It shrinks as soon as the large
// message is consumed.
type FrameReader struct {
	buf        []byte // small, or a larger buffer
	small      []byte // kept so that shrinking does not allocate
	start, end int    // buf[start:end] holds bytes not yet returned
}

// NewFrameReader returns a FrameReader with a buffer of size bytes.
func NewFrameReader(size int) FrameReader {
	small := make([]byte, size)
	return FrameReader{buf: small, small: small}
}

// Size returns the current size of the buffer.
func (r *FrameReader) Size() int { return len(r.buf) }

// Buffer returns the memory for the next read, at least one byte. It moves bytes, which invalidates earlier messages.
func (r *FrameReader) Buffer() []byte {
	rest := r.buf[r.start:r.end]
	switch {
	case len(r.buf) > len(r.small) && r.need() <= len(r.small):
		r.move(r.small, rest)
	case len(rest) == len(r.buf):
		r.move(make([]byte, min(2*len(r.buf), FrameHeader+MaxMessage)), rest)
	case r.start > 0:
		r.move(r.buf, rest)
	}
	return r.buf[r.end:]
}

// Advance adds n bytes that were read into Buffer.
func (r *FrameReader) Advance(n int) { r.end += n }

// Next returns the next whole message, or nil if more bytes are needed. The message is valid until Buffer is called.
// ok is false if the length of the next message is below least.
func (r *FrameReader) Next(least int) (msg []byte, ok bool) {
	rest := r.buf[r.start:r.end]
	if len(rest) < FrameHeader {
		return nil, true
	}
	end := FrameHeader + int(binary.BigEndian.Uint16(rest))
	switch {
	case end < FrameHeader+least:
		return nil, false
	case len(rest) < end:
		return nil, true
	}
	r.start += end
	return rest[FrameHeader:end:end], true
}

// Partial reports whether an incomplete frame has begun. It is valid after Next returned nil.
func (r *FrameReader) Partial() bool { return r.start < r.end }

// need returns the number of bytes that the buffer must hold for the current frame, as far as known.
func (r *FrameReader) need() int {
	rest := r.buf[r.start:r.end]
	if len(rest) < FrameHeader {
		return len(rest)
	}
	return max(len(rest), FrameHeader+int(binary.BigEndian.Uint16(rest)))
}

func (r *FrameReader) move(to, rest []byte) {
	r.end = copy(to, rest)
	r.start = 0
	r.buf = to
}

// OpenFrame appends room for the length of a message to dst. The caller appends the message and calls SealFrame.
func OpenFrame(dst []byte) []byte { return append(dst, 0, 0) }

// SealFrame writes the length of the message appended after OpenFrame(dst[:at]). It removes a message that is empty or too long
// for a frame, and returns false.
func SealFrame(dst []byte, at int) ([]byte, bool) {
	size := len(dst) - at - FrameHeader
	if size <= 0 || size > MaxMessage {
		return dst[:at], false
	}
	binary.BigEndian.PutUint16(dst[at:], uint16(size))
	return dst, true
}
