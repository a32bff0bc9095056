// SPDX-License-Identifier: Apache-2.0

package upstreamtest

import (
	"io"
	"net"
	"sync"
	"time"
)

// A bufferedConn accepts all writes, as a socket buffer does, and passes them on as the other side reads. Over a
// plain net.Pipe, two sides that write at the same time block each other, as TLS may.
type bufferedConn struct {
	net.Conn
	wake chan struct{} // has room for one

	mu     sync.Mutex // guards the fields below
	buf    []byte
	closed bool
}

func newBufferedConn(conn net.Conn) *bufferedConn {
	c := &bufferedConn{Conn: conn, wake: make(chan struct{}, 1)}
	go c.pass() // ends when either side is closed
	return c
}

// Write buffers the bytes.
func (c *bufferedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, io.ErrClosedPipe
	}
	c.buf = append(c.buf, p...)
	c.notify()
	return len(p), nil
}

// Close ends reading now, and the connection once the other side has read everything or closed its end.
func (c *bufferedConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.notify()
	return c.SetReadDeadline(time.Unix(1, 0))
}

func (c *bufferedConn) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// pass writes the buffered bytes until the connection ends.
func (c *bufferedConn) pass() {
	defer func() { _ = c.Conn.Close() }()
	for {
		c.mu.Lock()
		held, closed := c.buf, c.closed
		c.buf = nil
		c.mu.Unlock()
		if len(held) == 0 {
			if closed {
				return
			}
			<-c.wake
			continue
		}
		if _, err := c.Conn.Write(held); err != nil {
			_ = c.Close()
			return
		}
	}
}
