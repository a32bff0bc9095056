// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"time"
)

const (
	maxDirectWrites = 4        // writes that one flush does before it leaves the rest to the writer
	maxSpareBuf     = 32 << 10 // octets of memory kept for an outbox
)

// Flush sends the queries of a batch. Where the kernel takes them, they are written here and now and wake nobody.
//
// Who sets writing owns the connection's sending side until he clears it. Who finds it set leaves a note; whoever owns
// it looks for one before he gives it up.
func (c *streamConn) Flush() {
	p := c.pool
	p.mu.Lock()
	c.batch = nil
	if !c.open || c.err != nil || len(c.outbox) == 0 || c.writing {
		c.flushPending = true
		p.mu.Unlock()
		return
	}
	c.writing = true
	for range maxDirectWrites {
		if c.directWriter == nil {
			break
		}
		out := c.takeOutboxLocked()
		p.mu.Unlock()
		n, err := c.directWriter.write(out)
		p.mu.Lock()
		if err != nil {
			c.failLocked(fmt.Errorf("sending: %w", err))
			p.mu.Unlock()
			return
		}
		if n < len(out) {
			c.unsent = out[n:]
			break
		}
		c.recycleLocked(out)
		if !c.flushPending || len(c.outbox) == 0 {
			c.writing = false
			p.mu.Unlock()
			return
		}
	}
	p.mu.Unlock()
	c.wake <- struct{}{} // there is room: only the owner sends, and the writer takes it before it gives up the side
}

// takeLocked takes all that is to be sent.
func (c *streamConn) takeOutboxLocked() []byte {
	out := c.outbox
	c.outbox, c.spareBuf, c.flushPending = c.spareBuf[:0], nil, false
	return out
}

// sentLocked keeps the memory of what has been sent.
func (c *streamConn) recycleLocked(out []byte) {
	if cap(out) <= maxSpareBuf {
		c.spareBuf = out
	}
}

// write sends what flushes leave to it, until ctx ends, because the connection has failed.
func (c *streamConn) write(ctx context.Context, nc net.Conn) (err error) {
	defer c.pool.recoverPanic(ctx, func() { err = errPanic })
	stuck := time.AfterFunc(writeTimeout, func() { c.fail(errStuck) })
	defer stuck.Stop()
	for {
		stuck.Stop()
		select {
		case <-c.wake:
		case <-ctx.Done():
			return nil // it has failed already
		}
		for out := c.nextWrite(nil); len(out) > 0; out = c.nextWrite(out) {
			stuck.Reset(writeTimeout)
			if _, err := nc.Write(out); err != nil {
				return fmt.Errorf("sending: %w", err)
			}
		}
	}
}

// owed is what is to be written next, after sent has been. When there is nothing, the sending side is free again.
func (c *streamConn) nextWrite(sent []byte) []byte {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	if sent != nil {
		c.recycleLocked(sent)
	}
	if rest := c.unsent; rest != nil {
		c.unsent = nil
		return rest
	}
	if len(c.outbox) > 0 {
		return c.takeOutboxLocked()
	}
	c.writing = false
	return nil
}

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
