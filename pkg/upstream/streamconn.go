// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
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

// openForLocked opens a connection for a query that waits. The error says why not.
func (p *connPool) openForQueryLocked(now time.Time, a *attempt) (*streamConn, error) {
	if len(p.conns) >= 2*p.connections+2 {
		return nil, errLimit
	}
	if !p.openLimiter.allow(now, 0) {
		if p.lastErr != nil { // then it is the upstream that ends them
			return nil, fmt.Errorf("opening connections too often, as they end: %w", p.lastErr)
		}
		return nil, errLimit
	}
	if a.connsOpened != nil && a.connsOpened.Add(1) > maxConnsPerQuery {
		return nil, errLimit
	}
	return p.openLocked(now), nil
}

// openAheadLocked opens what is missing of the connections, no query having to wait for them.
func (p *connPool) preopenLocked(now time.Time) {
	if p.noIdle || now.Sub(p.lastQuery) >= idleTimeout {
		return
	}
	for p.countYoungLocked() < p.connections && len(p.conns) < 2*p.connections+1 && p.openLimiter.allow(now, preopenReserve) {
		p.openLocked(now).preopened = true
	}
}

// openAheadIfEagerLocked is openAheadLocked after a sign of life, where connections are kept open.
func (p *connPool) preopenIfKeptOpenLocked(now time.Time) {
	if p.keepOpen {
		p.preopenLocked(now)
	}
}

// openLocked adds a connection and starts its goroutine, which ends when the connection has failed: by itself, when
// idle, or when retired.
func (p *connPool) openLocked(now time.Time) *streamConn {
	p.opened++
	c := &streamConn{pool: p, number: p.opened, wake: make(chan struct{}, 1), connState: connState{lastRead: now, idleSince: p.lastQuery}}
	p.conns = append(p.conns, c)
	p.running++
	go c.run() // joined by wait
	return c
}

// endedLocked takes the connection out of those that queries go on.
func (p *connPool) removeConnLocked(c *streamConn) {
	p.conns = slices.DeleteFunc(p.conns, func(other *streamConn) bool { return other == c })
}

// freshLocked tells whether there is a connection, other than those that came to their age, that is open and answers.
func (p *connPool) hasFreshLocked(now time.Time) bool {
	return slices.ContainsFunc(p.conns, func(c *streamConn) bool { return c.open && c.rankLocked(now) == rankGood })
}

// run opens the connection and reads from it until it fails.
func (c *streamConn) run() {
	p := c.pool
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.running--; p.running == 0 {
			p.cond.Broadcast()
		}
	}()
	ctx, cancel := context.WithCancel(context.Background()) // many queries ride on it: it ends with none of them
	defer cancel()
	defer c.requeueOrFail()
	defer p.recoverPanic(ctx, func() { c.fail(errPanic) })
	if !c.setCancel(cancel) {
		return
	}
	nc, err := c.connect(ctx)
	if err != nil {
		c.fail(fmt.Errorf("connecting: %w", err))
		return
	}
	defer func() { _ = nc.Close() }() // maybe for the second time
	defer context.AfterFunc(ctx, func() { c.closeConn(nc) })()
	var writer sync.WaitGroup
	writer.Go(func() { c.fail(c.write(ctx, nc)) })
	c.Flush() // what came while it opened
	c.fail(c.read(nc))
	c.requeueOrFail()
	writer.Wait()
}

// endsBy sets what is called when the connection fails. It reports false if it has failed already.
func (c *streamConn) setCancel(cancel context.CancelFunc) bool {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	c.cancel = cancel
	return c.err == nil
}

// connect opens the connection, handshakes and all.
func (c *streamConn) connect(ctx context.Context) (net.Conn, error) {
	p := c.pool
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	nc, err := p.dial(ctx, "tcp", p.addr)
	if err != nil {
		return nil, err
	}
	if tcp, ok := nc.(*net.TCPConn); ok {
		c.configureTCP(tcp)
	}
	if p.tlsClient != nil {
		secured, err := p.tlsClient.handshake(ctx, nc)
		if err != nil {
			_ = nc.Close()
			return nil, err
		}
		c.rawConn, nc = nc, secured
	}
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.err != nil {
		_ = nc.Close()
		return nil, c.err
	}
	c.markOpenLocked(now)
	return nc, nil
}

// prepare sets the limit of silence, also where it was not our own dialer that made the socket, has answers acknowledged
// soon, and plain frames written to the socket by whoever flushes.
func (c *streamConn) configureTCP(tcp *net.TCPConn) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // it is closed, which the reader will find
	}
	_ = setUserTimeout(raw) // without it there are still stallTime and silenceTime
	c.acker = newQuickAcker(raw)
	if c.pool.tlsClient == nil {
		c.directWriter = newDirectWriter(raw)
	}
}

// openedLocked notes that the handshake is over.
func (c *streamConn) markOpenLocked(now time.Time) {
	p := c.pool
	if c.queries.n == 0 {
		c.lastRead = now
	}
	c.markOpen(now, &p.ids, c.onTimer)
	c.checkIdleLocked(now)
	for _, old := range slices.Clone(p.conns) {
		if old.aged {
			old.checkIdleLocked(now)
		}
	}
}

// expire does what is due, and sets the alarm to what is due next.
func (c *streamConn) onTimer() {
	p := c.pool
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	c.timer.fired()
	if c.err != nil {
		return
	}
	next := c.agesAt
	if !now.Before(c.agesAt) {
		c.aged = true
		p.preopenLocked(now)
		next = now.Add(replaceRetry)
	}
	c.checkIdleLocked(now)
	if c.err == nil {
		c.timer.set(now, next, c.onTimer)
	}
}

// failLocked ends the connection. Its queries are seen to by its own goroutine. The first reason stays.
func (c *streamConn) failLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	if c.cancel != nil {
		c.cancel()
	}
	c.timer.stop()
	c.pool.removeConnLocked(c)
}

// fail is failLocked for those who do not hold the lock.
func (c *streamConn) fail(err error) {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	c.failLocked(err)
}

// hangUp closes the connection. Of TLS a good end is told (RFC 8446 section 6.1), which may have to wait for the peer;
// a bad one is not.
func (c *streamConn) closeConn(nc net.Conn) {
	c.pool.mu.Lock()
	good := expectedEnd(c.err)
	c.pool.mu.Unlock()
	if !good && c.rawConn != nil {
		nc = c.rawConn
	}
	_ = nc.Close()
}
