// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/binary"
	"errors"

	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	frameHeader = 2       // the length before each message, RFC 1035 section 4.2.2
	frameBuffer = 4 << 10 // about a hundred queries; every session has this buffer
)

// errFrameShort reports a frame that cannot hold a DNS header. The stream cannot be parsed after
// it.
var errFrameShort = errors.New("frame shorter than a DNS header")

// frames splits a TCP stream into DNS messages.
//
// Reads go to one buffer, and messages are slices of it. The buffer grows only when bytes of a
// larger message have arrived, not because of a length prefix alone, so a client pays for memory
// with traffic. It shrinks as soon as the large message is consumed.
type frames struct {
	buf        []byte // small, or a larger buffer
	small      []byte // kept so that shrinking does not allocate
	start, end int    // buf[start:end] holds bytes not yet returned
}

func newFrames() frames {
	small := make([]byte, frameBuffer)
	return frames{buf: small, small: small}
}

// readBuffer returns where the next read goes; it is never empty. It moves bytes and invalidates
// earlier messages.
func (f *frames) readBuffer() []byte {
	rest := f.buf[f.start:f.end]
	switch {
	case len(f.buf) > frameBuffer && f.need() <= frameBuffer:
		f.move(f.small, rest)
	case len(rest) == len(f.buf):
		f.move(make([]byte, min(2*len(f.buf), frameHeader+wire.MaxMessage)), rest)
	case f.start > 0:
		f.move(f.buf, rest)
	}
	return f.buf[f.end:]
}

// advance adds n bytes that were read into readBuffer.
func (f *frames) advance(n int) { f.end += n }

// next returns the next whole message, or nil if more bytes are needed. The message is valid until
// readBuffer is called.
func (f *frames) next() ([]byte, error) {
	rest := f.buf[f.start:f.end]
	if len(rest) < frameHeader {
		return nil, nil
	}
	size := int(binary.BigEndian.Uint16(rest))
	if size < wire.HeaderLen {
		return nil, errFrameShort
	}
	if len(rest) < frameHeader+size {
		return nil, nil
	}
	f.start += frameHeader + size
	return rest[frameHeader : frameHeader+size : frameHeader+size], nil
}

// partial reports whether an incomplete frame has begun. It is valid after next returned nil.
func (f *frames) partial() bool { return f.start < f.end }

// need returns the number of bytes that the buffer must hold for the current frame, as far as
// known.
func (f *frames) need() int {
	rest := f.buf[f.start:f.end]
	if len(rest) < frameHeader {
		return len(rest)
	}
	return max(len(rest), frameHeader+int(binary.BigEndian.Uint16(rest)))
}

func (f *frames) move(to, rest []byte) {
	f.end = copy(to, rest)
	f.start = 0
	f.buf = to
}

// frameOpen appends room for the length of a message to dst. The caller appends the message and
// calls frameSeal.
func frameOpen(dst []byte) []byte { return append(dst, 0, 0) }

// frameSeal writes the length of the message appended after frameOpen(dst[:at]). It removes a
// message that is empty or too long for a frame, and returns false.
func frameSeal(dst []byte, at int) ([]byte, bool) {
	size := len(dst) - at - frameHeader
	if size <= 0 || size > wire.MaxMessage {
		return dst[:at], false
	}
	binary.BigEndian.PutUint16(dst[at:], uint16(size))
	return dst, true
}
