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
	maxDirectWrites = 4        // direct writes of one flush, before the writer takes over
	maxSpareBuf     = 32 << 10 // bytes of memory kept for an outbox
)

// Flush sends the queries of a batch. If the kernel accepts them, they are written here and no goroutine wakes.
//
// The goroutine that sets writing owns the sending side until it clears writing. Any other one sets flushPending,
// which the owner checks before it clears writing.
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
	c.wake <- struct{}{} // does not block: only the owner sends, and the writer receives before it gives up the side
}

// takeOutboxLocked takes all queued frames.
func (c *streamConn) takeOutboxLocked() []byte {
	out := c.outbox
	c.outbox, c.spareBuf, c.flushPending = c.spareBuf[:0], nil, false
	return out
}

// recycleLocked keeps the memory of written frames.
func (c *streamConn) recycleLocked(out []byte) {
	if cap(out) <= maxSpareBuf {
		c.spareBuf = out
	}
}

// write writes what flushes leave, until ctx ends because the connection has failed.
func (c *streamConn) write(ctx context.Context, nc net.Conn) (err error) {
	defer c.pool.recoverPanic(ctx, func() { err = errPanic })
	watchdog := time.AfterFunc(writeTimeout, func() { c.fail(errStuck) })
	defer watchdog.Stop()
	for {
		watchdog.Stop()
		select {
		case <-c.wake:
		case <-ctx.Done():
			return nil // it has failed already
		}
		for out := c.nextWrite(nil); len(out) > 0; out = c.nextWrite(out) {
			watchdog.Reset(writeTimeout)
			if _, err := nc.Write(out); err != nil {
				return fmt.Errorf("sending: %w", err)
			}
		}
	}
}

// nextWrite returns what to write next, after sent was written. If there is nothing, it releases the sending side.
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

// readBufferSize is how many bytes one read takes: a hundred answers or more. Each open connection holds such a
// buffer.
const readBufferSize = 16 << 10

// A frameBuffer splits a stream into messages with a length prefix (RFC 1035 section 4.2.2).
type frameBuffer struct {
	fixed []byte
	buf   []byte // fixed, or larger for a long frame
	start int    // of unread bytes
	end   int    // of received bytes
}

func newFrameBuffer() *frameBuffer {
	small := make([]byte, readBufferSize)
	return &frameBuffer{fixed: small, buf: small}
}

// next returns a whole frame, which is valid until the next call of space; nil: there is none.
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

// space returns the buffer for the next read. It is never empty: less than a frame is left, and the rest of it fits.
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
	f.end = copy(to, have) // the memory may overlap
	f.buf, f.start = to, 0
	return to[f.end:]
}

// filled records that n bytes were read into space.
func (f *frameBuffer) filled(n int) { f.end += n }
