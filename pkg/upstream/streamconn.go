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

// A streamConn is one TCP or TLS connection, with a reading and a writing goroutine that run joins. It is in
// connPool.conns until it fails.
type streamConn struct {
	pool         *connPool
	number       uint64        // counted from 1 per upstream
	wake         chan struct{} // wakes the writer; has room for one
	directWriter *directWriter // writes without blocking; nil: the writer writes everything. Set before open
	acker        *quickAcker   // nil: not a TCP socket. Set before open
	rawConn      net.Conn      // under TLS; nil without TLS. Set before open

	// Guarded by connPool.mu:
	connState
	cancel       context.CancelFunc // ends run; nil: run has not begun
	writing      bool               // a flush or the writer owns the sending side
	flushPending bool               // a flush came while writing was set
	queries      idTable
	outbox       []byte          // frames to be written
	spareBuf     []byte          // a written outbox, kept for its memory; nil: none
	unsent       []byte          // rest of a direct write, for the writer
	batch        *wire.SendBatch // whose queries stay together on it until the next flush
	batchCount   int             // number of these queries
}

// addLocked adds a query to the connection.
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
	if len(c.outbox) == 0 && c.open { // otherwise they are sent once it opens
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

// removeLocked removes a query of this connection.
func (c *streamConn) removeLocked(now time.Time, a *attempt) {
	c.queries.remove(a)
	a.pending.conn = nil
	if c.queries.n == 0 {
		c.idleSince = now
	}
}

// checkIdleLocked applies the idle policy to a connection without queries.
func (c *streamConn) checkIdleLocked(now time.Time) {
	if c.err != nil || c.queries.n > 0 {
		return
	}
	p, quiet := c.pool, c.idleSince
	if p.keepOpen && p.lastQuery.After(quiet) {
		quiet = p.lastQuery
	}
	checkAt, end := c.idlePolicy(now, quiet, p.noIdle, c.aged && p.hasFreshLocked(now))
	switch {
	case end != nil:
		c.failLocked(end)
	case !checkAt.IsZero():
		c.timer.set(now, checkAt, c.onTimer)
	}
}

// stalledLocked reports whether the connection owes an answer and has been silent for stallAfter. Its path may be
// broken.
func (c *streamConn) stalledLocked(now time.Time) bool { return c.silentLocked(now, stallAfter) }

// silentLocked reports whether the connection owes an answer and has received no whole frame for so long.
func (c *streamConn) silentLocked(now time.Time, long time.Duration) bool {
	return c.queries.n > 0 && now.Sub(c.lastRead) >= long
}

// requeueOrFail handles the queries of a connection that has failed. A query that was assigned after the connection
// opened moves to a newer connection once: the server may only have closed the connection for its age or for a
// restart. The other queries fail, and so do all if the peer was silent: those have been retried already.
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

// expectedEnd reports whether this process ended the connection, so that the error does not concern the upstream.
func expectedEnd(end error) bool {
	return errors.Is(end, errIdle) || errors.Is(end, errShutdown) || errors.Is(end, errAged) || errors.Is(end, errAbandoned)
}

// An answerFrame is a frame with the attempt that it answers.
type answerFrame struct {
	attempt *attempt
	frame   []byte
}

// read reads frames until the connection ends.
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
				c.acker.ackNow() // the peer may hold the other answers back until then
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

// matchFrames appends the received whole frames, and removes their queries from the connection. A frame that answers
// no query is counted and ignored. more reports whether answers are still pending.
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

// deliver parses a frame and delivers it to its attempt.
func (p *connPool) deliver(f answerFrame, msg *wire.Message, batch *wire.SendBatch) {
	var r reply
	switch err := msg.Parse(f.frame); {
	case len(f.frame) == wire.HeaderLen: // a bare header
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

// openForQueryLocked opens a connection for a waiting query. The error says why it may not.
func (p *connPool) openForQueryLocked(now time.Time, a *attempt) (*streamConn, error) {
	if len(p.conns) >= 2*p.connections+2 {
		return nil, errLimit
	}
	if !p.openLimiter.allow(now, 0) {
		if p.lastErr != nil { // the upstream ends connections too often
			return nil, fmt.Errorf("opening a connection: rate limited after failures: %w", p.lastErr)
		}
		return nil, errLimit
	}
	if a.connsOpened != nil && a.connsOpened.Add(1) > maxConnsPerQuery {
		return nil, errLimit
	}
	return p.openLocked(now), nil
}

// preopenLocked opens the missing connections, so that no query has to wait for them.
func (p *connPool) preopenLocked(now time.Time) {
	if p.noIdle || now.Sub(p.lastQuery) >= idleTimeout {
		return
	}
	for p.countYoungLocked() < p.connections && len(p.conns) < 2*p.connections+1 && p.openLimiter.allow(now, preopenReserve) {
		p.openLocked(now).preopened = true
	}
}

// preopenIfKeptOpenLocked calls preopenLocked if the pool keeps connections open.
func (p *connPool) preopenIfKeptOpenLocked(now time.Time) {
	if p.keepOpen {
		p.preopenLocked(now)
	}
}

// openLocked adds a connection and starts its goroutine, which ends when the connection ends.
func (p *connPool) openLocked(now time.Time) *streamConn {
	p.opened++
	c := &streamConn{pool: p, number: p.opened, wake: make(chan struct{}, 1), connState: connState{lastRead: now, idleSince: p.lastQuery}}
	p.conns = append(p.conns, c)
	p.running++
	go c.run() // joined by wait
	return c
}

// removeConnLocked removes the connection from the pool.
func (p *connPool) removeConnLocked(c *streamConn) {
	p.conns = slices.DeleteFunc(p.conns, func(other *streamConn) bool { return other == c })
}

// hasFreshLocked reports whether a connection that has not aged is open and answers.
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
	ctx, cancel := context.WithCancel(context.Background()) // not a query's context: many queries share the connection
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
	defer func() { _ = nc.Close() }() // possibly a second time
	defer context.AfterFunc(ctx, func() { c.closeConn(nc) })()
	var writer sync.WaitGroup
	writer.Go(func() { c.fail(c.write(ctx, nc)) })
	c.Flush() // queries that came while it opened
	c.fail(c.read(nc))
	c.requeueOrFail()
	writer.Wait()
}

// setCancel sets the function to call when the connection fails. It returns false if it has failed already.
func (c *streamConn) setCancel(cancel context.CancelFunc) bool {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	c.cancel = cancel
	return c.err == nil
}

// connect opens the connection, including handshakes.
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

// configureTCP sets the user timeout, even if Config.Dial made the socket, and enables quick acknowledgments. Without
// TLS it enables direct writes.
func (c *streamConn) configureTCP(tcp *net.TCPConn) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // the socket is closed, which the reader will notice
	}
	_ = setUserTimeout(raw) // if it fails, stallAfter and dropSilentAfter remain
	c.acker = newQuickAcker(raw)
	if c.pool.tlsClient == nil {
		c.directWriter = newDirectWriter(raw)
	}
}

// markOpenLocked records that the connection is open.
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

// onTimer ages the connection, applies the idle policy and sets the timer again.
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

// failLocked ends the connection. run then handles its queries. The first error stays.
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

// fail is failLocked for callers without the lock.
func (c *streamConn) fail(err error) {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	c.failLocked(err)
}

// closeConn closes the connection. An expected end of TLS sends close_notify (RFC 8446 section 6.1), which may block;
// any other end does not.
func (c *streamConn) closeConn(nc net.Conn) {
	c.pool.mu.Lock()
	expected := expectedEnd(c.err)
	c.pool.mu.Unlock()
	if !expected && c.rawConn != nil {
		nc = c.rawConn
	}
	_ = nc.Close()
}
