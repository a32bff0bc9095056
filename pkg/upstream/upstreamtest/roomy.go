// SPDX-License-Identifier: Apache-2.0

package upstreamtest

import (
	"io"
	"net"
	"sync"
	"time"
)

// A roomy connection takes all that is written to it, as a kernel does with some, and passes it on as the other side
// reads. Over a net.Pipe alone, two sides that write at a time wait for each other, as those of TLS may.
type roomy struct {
	net.Conn
	more chan struct{} // has room for one

	mu     sync.Mutex // guards the fields below
	held   []byte
	closed bool
}

func newRoomy(conn net.Conn) *roomy {
	r := &roomy{Conn: conn, more: make(chan struct{}, 1)}
	go r.pass() // ends when either side is closed
	return r
}

// Write holds the octets.
func (r *roomy) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, io.ErrClosedPipe
	}
	r.held = append(r.held, p...)
	r.tell()
	return len(p), nil
}

// Close ends reading now, and the connection once the other side has read all or closed its end.
func (r *roomy) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.tell()
	return r.SetReadDeadline(time.Unix(1, 0))
}

func (r *roomy) tell() {
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// pass writes what is held until the connection ends.
func (r *roomy) pass() {
	defer func() { _ = r.Conn.Close() }()
	for {
		r.mu.Lock()
		held, closed := r.held, r.closed
		r.held = nil
		r.mu.Unlock()
		if len(held) == 0 {
			if closed {
				return
			}
			<-r.more
			continue
		}
		if _, err := r.Conn.Write(held); err != nil {
			_ = r.Close()
			return
		}
	}
}
