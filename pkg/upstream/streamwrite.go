// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"net"
	"time"
)

const (
	maxRounds = 4        // writes that one flush does before it leaves the rest to the writer
	maxSpare  = 32 << 10 // octets of memory kept for an outbox
)

// Flush sends the queries of a batch. Where the kernel takes them, they are written here and now and wake nobody.
//
// Who sets writing owns the connection's sending side until he clears it. Who finds it set leaves a note; whoever owns
// it looks for one before he gives it up.
func (l *line) Flush() {
	s := l.lines
	s.mu.Lock()
	l.gatherer = nil
	if !l.open || l.err != nil || len(l.outbox) == 0 || l.writing {
		l.again = true
		s.mu.Unlock()
		return
	}
	l.writing = true
	for range maxRounds {
		if l.direct == nil {
			break
		}
		out := l.takeLocked()
		s.mu.Unlock()
		n, err := l.direct.write(out)
		s.mu.Lock()
		if err != nil {
			l.failLocked(fmt.Errorf("sending: %w", err))
			s.mu.Unlock()
			return
		}
		if n < len(out) {
			l.rest = out[n:]
			break
		}
		l.sentLocked(out)
		if !l.again || len(l.outbox) == 0 {
			l.writing = false
			s.mu.Unlock()
			return
		}
	}
	s.mu.Unlock()
	l.wake <- struct{}{} // there is room: only the owner sends, and the writer takes it before it gives up the side
}

// takeLocked takes all that is to be sent.
func (l *line) takeLocked() []byte {
	out := l.outbox
	l.outbox, l.spare, l.again = l.spare[:0], nil, false
	return out
}

// sentLocked keeps the memory of what has been sent.
func (l *line) sentLocked(out []byte) {
	if cap(out) <= maxSpare {
		l.spare = out
	}
}

// write sends what flushes leave to it, until ctx ends, because the connection has failed.
func (l *line) write(ctx context.Context, nc net.Conn) (err error) {
	defer l.lines.recovered(ctx, func() { err = errPanic })
	stuck := time.AfterFunc(writeTimeout, func() { l.fail(errStuck) })
	defer stuck.Stop()
	for {
		stuck.Stop()
		select {
		case <-l.wake:
		case <-ctx.Done():
			return nil // it has failed already
		}
		for out := l.owed(nil); len(out) > 0; out = l.owed(out) {
			stuck.Reset(writeTimeout)
			if _, err := nc.Write(out); err != nil {
				return fmt.Errorf("sending: %w", err)
			}
		}
	}
}

// owed is what is to be written next, after sent has been. When there is nothing, the sending side is free again.
func (l *line) owed(sent []byte) []byte {
	l.lines.mu.Lock()
	defer l.lines.mu.Unlock()
	if sent != nil {
		l.sentLocked(sent)
	}
	if rest := l.rest; rest != nil {
		l.rest = nil
		return rest
	}
	if len(l.outbox) > 0 {
		return l.takeLocked()
	}
	l.writing = false
	return nil
}
