// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A line is one connection: a reader and a writer, joined by run. It is in lines.lines until it fails.
type streamConn struct {
	pool         *connPool
	number       uint64        // counted from 1 over all of the upstream's connections
	wake         chan struct{} // tells the writer to look at outbox; has room for one
	directWriter *directWriter // writes without waiting; nil: all is left to the writer. Set before open
	acker        *quickAcker   // nil: not a socket. Set before open
	rawConn      net.Conn      // what TLS runs over; nil without TLS. Set before open

	// Guarded by lines.mu:
	connState
	cancel       context.CancelFunc // ends run, wherever it is; nil: run has not begun
	writing      bool               // what is to be sent has been taken out, and not all is sent yet
	flushPending bool               // there was a flush meanwhile
	queries      idTable
	outbox       []byte          // frames to be written
	spareBuf     []byte          // an outbox that has been sent, for its memory; nil: none
	unsent       []byte          // what a direct write left over, for the writer
	batch        *wire.SendBatch // whose queries keep together on it, until the next flush
	batchCount   int             // so many there are
}

// addLocked puts a query on the connection.
func (c *streamConn) addLocked(now time.Time, a *attempt, batch *wire.SendBatch) error {
	p, r := c.pool, &a.pending
	if c.queries.n == 0 && !c.owesAnswer {
		c.lastRead = now
	}
	if err := c.queries.add(a, &p.ids); err != nil {
		return err
	}
	r.conn, r.reused, r.newestConn = c, c.open, p.opened
	r.sent = append(r.sent[:0], a.query...)
	wire.SetID(r.sent, r.id)
	p.uses++
	c.lastUse = p.uses
	if c.batch != batch {
		c.batch, c.batchCount = batch, 0
	}
	c.batchCount++
	if len(c.outbox) == 0 && c.open { // else they are sent when it is
		batch.Add(c)
	}
	c.outbox = append(c.outbox, 0, 0)
	start := len(c.outbox)
	if p.tlsClient != nil {
		c.outbox = appendPadded(c.outbox, r.sent)
	} else {
		c.outbox = append(c.outbox, r.sent...)
	}
	binary.BigEndian.PutUint16(c.outbox[start-2:], uint16(len(c.outbox)-start))
	return nil
}

// removeLocked takes off a query that is on the connection.
func (c *streamConn) removeLocked(now time.Time, a *attempt) {
	c.queries.remove(a)
	a.pending.conn = nil
	if c.queries.n == 0 {
		c.idleSince = now
	}
}

// restLocked decides what becomes of a connection without queries.
func (c *streamConn) checkIdleLocked(now time.Time) {
	if c.err != nil || c.queries.n > 0 {
		return
	}
	p, quiet := c.pool, c.idleSince
	if p.keepOpen && p.lastQuery.After(quiet) {
		quiet = p.lastQuery
	}
	look, end := c.idlePolicy(now, quiet, p.noIdle, c.aged && p.hasFreshLocked(now))
	switch {
	case end != nil:
		c.failLocked(end)
	case !look.IsZero():
		c.timer.set(now, look, c.onTimer)
	}
}

// stalledLocked tells whether the connection owes an answer and has been silent for long, as one does whose path is cut.
func (c *streamConn) stalledLocked(now time.Time) bool { return c.silentLocked(now, stallAfter) }

// silentLocked tells whether the connection owes an answer and has brought no whole frame for that long.
func (c *streamConn) silentLocked(now time.Time, long time.Duration) bool {
	return c.queries.n > 0 && now.Sub(c.lastRead) >= long
}

// settle sees to the queries of a connection that has failed. One that came when the connection was open already may
// only have met its end by age, or that of a server that restarts: it gets a second chance, on a newer connection. For
// the others the end is what came, and for those whose peer was silent: they have been asked again long since.
func (c *streamConn) requeueOrFail() {
	p := c.pool
	now := p.now()
	var batch wire.SendBatch
	p.mu.Lock()
	err := fmt.Errorf("%w: %w", errDied, c.err)
	if !c.answered && !expectedEnd(c.err) {
		p.lastErr = c.err
	}
	type loss struct {
		t   *attempt
		err error
	}
	var lost []loss
	silent := errors.Is(c.err, errSilent)
	for _, a := range c.queries.slots {
		if a == nil {
			continue
		}
		c.removeLocked(now, a)
		reason := err
		if a.pending.reused && !a.pending.retried && !silent {
			a.pending.retried = true
			if reason = p.assignLocked(now, a, a.pending.newestConn, &batch); reason == nil {
				continue
			}
		}
		lost = append(lost, loss{a, reason})
	}
	if c.answered {
		p.preopenIfKeptOpenLocked(now)
	}
	p.mu.Unlock()
	for _, gone := range lost {
		gone.t.deliver(reply{err: gone.err}, &batch)
	}
	batch.Flush()
}

// wanted tells whether an end of a connection was our own will, and says nothing about the upstream.
func expectedEnd(end error) bool {
	return errors.Is(end, errIdle) || errors.Is(end, errShutdown) || errors.Is(end, errAged) || errors.Is(end, errAbandoned)
}

// An arrival is a frame for the query that it answers.
type answerFrame struct {
	attempt *attempt
	frame   []byte
}

// read takes frames until the connection ends.
func (c *streamConn) read(nc net.Conn) (err error) {
	p := c.pool
	defer p.recoverPanic(context.Background(), func() { err = errPanic })
	in := newFrameBuffer()
	var (
		msg   wire.Message
		batch wire.SendBatch
		came  []answerFrame
	)
	for {
		n, err := nc.Read(in.space())
		in.filled(n)
		if n > 0 {
			var more bool
			if came, more = c.matchFrames(in, came[:0]); more {
				c.acker.ackNow() // the peer may wait for it with the others
			}
			for _, f := range came {
				p.deliver(f, &msg, &batch)
			}
			batch.Flush()
			clear(came)
		}
		if err != nil {
			return fmt.Errorf("receiving: %w", err)
		}
	}
}

// match takes the whole frames that are there and the queries that they answer off the connection. A frame that answers
// none is counted and ignored. It tells whether more answers are to come.
func (c *streamConn) matchFrames(in *frameBuffer, came []answerFrame) (_ []answerFrame, more bool) {
	frame := in.next()
	if frame == nil {
		return came, true
	}
	p := c.pool
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	c.lastRead, c.owesAnswer = now, false
	for ; frame != nil; frame = in.next() {
		var a *attempt
		if len(frame) >= wire.HeaderLen {
			a = c.queries.lookup(wire.ID(frame))
		}
		if a == nil || wire.Match(a.pending.sent, frame) == wire.NoMatch {
			p.count.failures[CauseMismatch].Add(1)
			continue
		}
		c.removeLocked(now, a)
		came = append(came, answerFrame{attempt: a, frame: frame})
	}
	if len(came) > 0 {
		c.answered = true
		p.lastErr = nil
		p.preopenIfKeptOpenLocked(now)
	}
	c.checkIdleLocked(now)
	return came, c.queries.n > 0
}

// deliver reads a frame and hands it to its query.
func (p *connPool) deliver(f answerFrame, msg *wire.Message, batch *wire.SendBatch) {
	var r reply
	switch err := msg.Parse(f.frame); {
	case len(f.frame) == wire.HeaderLen: // no answer is as short but this one
		r.headerOnlyRcode = uint16(f.frame[3] & 0x0f)
	case err != nil:
		r.err = fmt.Errorf("%w: %w", errMalformed, err)
	case msg.Truncated():
		r.err = fmt.Errorf("%w: truncated over TCP", errMalformed)
	default:
		r.m = msg
	}
	if r.err != nil {
		p.count.failures[CauseMalformed].Add(1)
	}
	f.attempt.deliver(r, batch)
}
