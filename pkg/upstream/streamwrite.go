// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
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
