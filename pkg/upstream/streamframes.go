// SPDX-License-Identifier: Apache-2.0

package upstream

import "encoding/binary"

// readRoom is how many octets one read of a connection takes: a hundred answers or more. Each connection that is open
// holds as many.
const readBufferSize = 16 << 10

// frames are messages with their length in front (RFC 1035 section 4.2.2), as reads bring them.
type frameBuffer struct {
	fixed []byte
	buf   []byte // small, or what a longer frame needs
	start int    // of what is not taken yet
	end   int    // of what was read
}

func newFrameBuffer() *frameBuffer {
	small := make([]byte, readBufferSize)
	return &frameBuffer{fixed: small, buf: small}
}

// next takes a whole frame, which is valid until space is called; nil: there is none.
func (f *frameBuffer) next() []byte {
	have := f.buf[f.start:f.end]
	if len(have) < 2 {
		return nil
	}
	n := 2 + int(binary.BigEndian.Uint16(have))
	if len(have) < n {
		return nil
	}
	f.start += n
	return have[2:n:n]
}

// space is where the next read goes. It is never empty: what is there is less than a frame, and there is room for the
// rest of it.
func (f *frameBuffer) space() []byte {
	have := f.buf[f.start:f.end]
	need := 2
	if len(have) >= 2 {
		need += int(binary.BigEndian.Uint16(have))
	}
	to := f.fixed
	switch {
	case need <= len(f.fixed):
	case need <= len(f.buf):
		to = f.buf
	default:
		to = make([]byte, need)
	}
	f.end = copy(to, have) // the memory may be the same
	f.buf, f.start = to, 0
	return to[f.end:]
}

// filled notes that so many octets were read into space.
func (f *frameBuffer) filled(n int) { f.end += n }
