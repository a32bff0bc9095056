// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

var (
	errIdle      = errors.New("idle")
	errRetired   = errors.New("retired")
	errAbandoned = errors.New("nobody waits for it")
	errStuck     = errors.New("peer does not read")
	errSilent    = errors.New("peer does not answer")
)

// A conn is one TCP connection: a reader and a writer, joined by run. It is in
// streams.conns until it fails.
type conn struct {
	streams *streams
	number  uint64             // counted from 1 over all of the upstream's connections
	cancel  context.CancelFunc // ends run, wherever it is
	wake    chan struct{}      // tells the writer to look at outbox; has room for one
	ended   chan struct{}      // closed when the goroutines are gone

	// Guarded by streams.mu:
	open   bool // the handshake is over
	calls  map[uint16]*call
	outbox []byte      // frames to be written
	heard  time.Time   // last frame, or since when one is owed
	owes   bool        // somebody gave up on it since the last frame
	idle   *time.Timer // runs while it is open without calls; nil until first needed
	err    error       // why it failed; nil: it has not
}

// run opens the connection and reads from it until it fails.
func (c *conn) run(ctx context.Context) {
	defer close(c.ended)
	defer c.streams.recovered(ctx, func() { c.fail(errPanic) })
	nc, err := c.connect(ctx)
	if err != nil {
		c.fail(fmt.Errorf("connecting: %w", err))
		return
	}
	defer func() { _ = nc.Close() }() // maybe for the second time
	defer context.AfterFunc(ctx, func() { _ = nc.Close() })()
	var writer sync.WaitGroup
	writer.Go(func() { c.fail(c.write(ctx, nc)) })
	c.fail(c.read(ctx, nc))
	writer.Wait()
}

func (c *conn) connect(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	nc, err := c.streams.dial(ctx, "tcp", c.streams.addr)
	if err != nil {
		return nil, err
	}
	c.streams.mu.Lock()
	defer c.streams.mu.Unlock()
	c.open = true
	c.restLocked()
	return nc, nil
}

// write sends what is in the outbox, all frames that are there in one write.
func (c *conn) write(ctx context.Context, nc net.Conn) (err error) {
	defer c.streams.recovered(ctx, func() { err = errPanic })
	stuck := time.AfterFunc(writeTimeout, func() { c.fail(errStuck) })
	defer stuck.Stop()
	var frames []byte
	for {
		stuck.Stop()
		select {
		case <-c.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
		c.streams.mu.Lock()
		frames, c.outbox = c.outbox, frames[:0]
		c.streams.mu.Unlock()
		stuck.Reset(writeTimeout)
		if _, err := nc.Write(frames); err != nil {
			return fmt.Errorf("sending: %w", err)
		}
	}
}

// read takes frames (RFC 1035 section 4.2.2) until the connection ends.
func (c *conn) read(ctx context.Context, nc net.Conn) (err error) {
	defer c.streams.recovered(ctx, func() { err = errPanic })
	var (
		in     = bufio.NewReader(nc)
		length [2]byte
		frame  []byte
		msg    wire.Message
	)
	for {
		if _, err := io.ReadFull(in, length[:]); err != nil {
			return fmt.Errorf("receiving: %w", err)
		}
		n := int(binary.BigEndian.Uint16(length[:]))
		frame = slices.Grow(frame[:0], n)[:n]
		if _, err := io.ReadFull(in, frame); err != nil {
			return fmt.Errorf("receiving: %w", err)
		}
		c.deliver(frame, &msg)
	}
}

// deliver hands a frame to the call it answers. It is counted and ignored when
// there is none.
func (c *conn) deliver(frame []byte, msg *wire.Message) {
	s := c.streams
	s.mu.Lock()
	c.heard = s.now()
	if c.owes {
		c.owes = false
		c.restLocked() // for the full time
	}
	var to *call
	if len(frame) >= wire.HeaderLen {
		to = c.calls[wire.ID(frame)]
	}
	s.mu.Unlock()
	if to == nil || !wire.Answers(to.query, frame) {
		s.count.failures[CauseMismatch].Add(1)
		return
	}
	r := reply{}
	switch err := msg.Parse(frame); {
	case err != nil:
		r.err = fmt.Errorf("%w: %w", errMalformed, err)
	case msg.Truncated():
		r.err = fmt.Errorf("%w: truncated over TCP", errMalformed)
	default:
		r.answer = answer{msg: append([]byte(nil), msg.Raw...), rcode: msg.Rcode(), edns: msg.HasOPT()}
	}
	if r.err != nil {
		s.count.failures[CauseMalformed].Add(1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.removeLocked(to) {
		to.done <- r
	}
}

// addLocked puts a query on the connection, with the first of ids that is free.
func (c *conn) addLocked(now time.Time, q, ids []byte) (*call, error) {
	for ; len(ids) >= 2; ids = ids[2:] {
		id := binary.BigEndian.Uint16(ids)
		if c.calls[id] != nil {
			continue
		}
		if len(c.calls) == 0 && !c.owes {
			c.heard = now
		}
		added := &call{
			conn: c, id: id, query: append([]byte(nil), q...),
			reused: c.open, newest: c.streams.opened, done: make(chan reply, 1),
		}
		wire.SetID(added.query, id)
		c.calls[id] = added
		c.outbox = binary.BigEndian.AppendUint16(c.outbox, uint16(len(q)))
		c.outbox = append(c.outbox, added.query...)
		select {
		case c.wake <- struct{}{}:
		default: // it has been told
		}
		return added, nil
	}
	return nil, fmt.Errorf("finding a free ID: %w", errLimit)
}

// removeLocked takes a call off the connection. It reports whether it was there.
func (c *conn) removeLocked(gone *call) bool {
	if c.calls[gone.id] != gone {
		return false
	}
	delete(c.calls, gone.id)
	c.restLocked()
	return true
}

// abandonLocked takes a call off the connection if it has no reply yet.
func (c *conn) abandonLocked(gone *call) {
	if c.calls[gone.id] == gone {
		c.owes = true
		c.removeLocked(gone)
	}
}

// restLocked decides what becomes of a connection without calls. One that is
// silent although its callers gave up is soon not kept: its path may be cut, or
// the rest of a frame, or an answer that takes for ever, stand before all that
// would come after.
func (c *conn) restLocked() {
	switch {
	case len(c.calls) > 0 || c.err != nil:
	case c.streams.retired:
		c.failLocked(errRetired)
	case !c.open:
		c.failLocked(errAbandoned)
	case c.streams.now().Sub(c.heard) >= stallTime:
		c.failLocked(errSilent)
	default:
		rest := idleTimeout
		if c.owes {
			rest = stallTime - c.streams.now().Sub(c.heard)
		}
		if c.idle == nil {
			c.idle = time.AfterFunc(rest, c.expire)
		}
		c.idle.Reset(rest)
	}
}

// expire closes the connection if it is still idle.
func (c *conn) expire() {
	c.streams.mu.Lock()
	defer c.streams.mu.Unlock()
	switch {
	case len(c.calls) > 0:
	case c.owes:
		c.failLocked(errSilent)
	default:
		c.failLocked(errIdle)
	}
}

// stalledLocked tells whether the connection owes an answer and has been silent
// for long, as one does whose path is cut.
func (c *conn) stalledLocked(now time.Time) bool { return c.silentLocked(now, stallTime) }

// silentLocked tells whether the connection owes an answer and has brought no
// whole frame for that long.
func (c *conn) silentLocked(now time.Time, long time.Duration) bool {
	return len(c.calls) > 0 && now.Sub(c.heard) >= long
}

// fail ends the connection and all calls on it. The first reason stays.
func (c *conn) fail(err error) {
	c.streams.mu.Lock()
	defer c.streams.mu.Unlock()
	c.failLocked(err)
}

func (c *conn) failLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.cancel()
	if c.idle != nil {
		c.idle.Stop()
	}
	s := c.streams
	s.conns = slices.DeleteFunc(s.conns, func(other *conn) bool { return other == c })
	for id, failed := range c.calls {
		delete(c.calls, id)
		failed.done <- reply{err: fmt.Errorf("%w: %w", errDied, err)}
	}
}
