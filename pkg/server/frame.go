// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/binary"
	"errors"

	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	frameHeader = 2       // the length in front of each message, RFC 1035 section 4.2.2
	frameBuffer = 4 << 10 // about a hundred queries; every session holds this much
)

// errFrameShort reports a frame that cannot hold a DNS header. The stream cannot be trusted after it.
var errFrameShort = errors.New("frame shorter than a DNS header")

// frames splits a TCP stream into DNS messages.
//
// One buffer takes what a read brings, and messages are slices of it. The buffer grows only when bytes of a larger
// message have really come, never on the word of a length prefix, so a client pays for memory with traffic.
// It shrinks as soon as the large message is gone.
type frames struct {
	buf        []byte // small, or something larger
	small      []byte // kept, so that shrinking allocates nothing
	start, end int    // buf[start:end] holds bytes not yet handed out
}

func newFrames() frames {
	small := make([]byte, frameBuffer)
	return frames{buf: small, small: small}
}

// readBuffer returns where the next read goes; it is never empty. It moves bytes: messages handed out before are void.
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

// advance says that n bytes were read into room.
func (f *frames) advance(n int) { f.end += n }

// next returns the next whole message, or nil when more bytes are needed. The message is valid until room is called.
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

// partial reports whether a frame has begun that is not whole. It means something once next returned nil.
func (f *frames) partial() bool { return f.start < f.end }

// need returns how many bytes the buffer must hold for the frame that has begun, as far as that is known.
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

// frameOpen appends room for the length of a message to dst. The message is appended next, then frameSeal called.
func frameOpen(dst []byte) []byte { return append(dst, 0, 0) }

// frameSeal writes the length of the message that was appended after frameOpen(dst[:at]). A message that is empty, or
// longer than a frame can be, is cut off again and reported as false.
func frameSeal(dst []byte, at int) ([]byte, bool) {
	size := len(dst) - at - frameHeader
	if size <= 0 || size > wire.MaxMessage {
		return dst[:at], false
	}
	binary.BigEndian.PutUint16(dst[at:], uint16(size))
	return dst, true
}
