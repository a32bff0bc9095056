// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Lifetime of a connection.
const (
	connAge      = 60 * time.Second       // then it gets no more queries; up to half as much again is added at random
	replaceRetry = 5 * time.Second        // between attempts to open the replacement of an aged connection
	idleTimeout  = 10 * time.Second       // without a pending query
	stallAfter   = 800 * time.Millisecond // a connection that owes an answer and is silent for so long gets no new queries
)

// lessUsedLocked reports whether c, of two connections of one rank, takes the query.
func (c *conn) lessUsedLocked(other *conn) bool {
	if c.queries.n != other.queries.n {
		return c.queries.n < other.queries.n
	}
	return c.lastUse < other.lastUse
}

// A conn is one connection and the queries on it. It is in connPool.conns until it fails.
type conn struct {
	pool    *connPool
	number  uint64 // counted from 1 per upstream
	link    link
	rawConn net.Conn // under TLS; the connection itself without TLS. Set before open

	// Guarded by connPool.mu:
	queries    idTable
	open       bool      // the handshake is complete
	preopened  bool      // opened before a query had to wait for it
	aged       bool      // to be replaced: takes a query only if there is no better one
	answered   bool      // an answer has come on it
	owesAnswer bool      // a query was canceled on it since the last answer
	lastUse    uint64    // sequence number of the latest query
	lastRead   time.Time // when something last came, or when the first unanswered query was sent
	idleSince  time.Time // when its last query ended
	agesAt     time.Time // when it ages; zero: not open yet
	timer      lazyTimer
	err        error              // why it ended; nil: it has not
	cancel     context.CancelFunc // ends run; nil: run has not begun
	batch      *wire.SendBatch    // whose queries stay together on it until the next flush
	batchCount int                // number of these queries
}

// A link is the protocol of a connection: streamConn or httpsConn.
type link interface {
	wire.Flusher // sends the queued queries, once the connection is open
	// fullLocked reports whether there is no room for one more query of size bytes.
	fullLocked(size int) bool
	// blocked reports whether a query would wait until the peer accepts it. The connection is open.
	blocked() bool
	// queueLocked queues the query that was added. It reports whether it is the first one since the last flush.
	queueLocked(a *attempt, batch *wire.SendBatch) (first bool)
	// start prepares the protocol on a new connection.
	start(ctx context.Context, nc net.Conn) error
	// serve handles the connection until it fails or ctx ends.
	serve(ctx context.Context, nc net.Conn) error
}

// The ranks of connections for a query, best first.
const (
	rankGood      = iota
	rankAged      // use only until another one is open
	rankPreopened // opening, and no query has waited for it yet
	rankStalled   // use only if there is no other
	rankNone
)

// rankLocked compares the connection with others.
func (c *conn) rankLocked(now time.Time) int {
	switch {
	case c.stalledLocked(now):
		return rankStalled
	case c.preopened && !c.open:
		return rankPreopened
	case c.aged:
		return rankAged
	}
	return rankGood
}

// stalledLocked reports whether a query on the connection would wait: the peer accepts no more, or the connection owes
// an answer and has been silent for stallAfter. Its path may be broken.
func (c *conn) stalledLocked(now time.Time) bool {
	return c.silentLocked(now, stallAfter) || c.open && c.link.blocked()
}

// silentLocked reports whether the connection owes an answer and has received none for so long.
func (c *conn) silentLocked(now time.Time, long time.Duration) bool {
	return c.queries.n > 0 && now.Sub(c.lastRead) >= long
}

// addLocked adds a query to the connection.
func (c *conn) addLocked(now time.Time, a *attempt, batch *wire.SendBatch) error {
	p, r := c.pool, &a.pending
	if c.queries.n == 0 && !c.owesAnswer {
		c.lastRead = now
	}
	if err := c.queries.add(a, p.random); err != nil {
		return err
	}
	p.pending++
	r.conn, r.reused, r.newestConn = c, c.open, p.opened
	r.sent = append(r.inline[:0], a.query...)
	p.uses++
	c.lastUse = p.uses
	if c.link.queueLocked(a, batch) && c.open { // otherwise it is sent once the connection opens
		batch.Add(c.link)
	}
	return nil
}

// removeLocked removes a query of this connection.
func (c *conn) removeLocked(now time.Time, a *attempt) {
	c.queries.remove(a)
	c.pool.pending--
	a.pending.conn = nil
	if c.queries.n == 0 {
		c.idleSince = now
	}
}

// run opens the connection and serves it until it fails.
func (c *conn) run() {
	p := c.pool
	defer p.goroutineEnded()
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
	c.fail(c.link.serve(ctx, nc))
}

// setCancel sets the function to call when the connection fails. It returns false if it has failed already.
func (c *conn) setCancel(cancel context.CancelFunc) bool {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	c.cancel = cancel
	return c.err == nil
}

// connect opens the connection, including handshakes. The user timeout is set even if Config.Dial made the socket.
func (c *conn) connect(ctx context.Context) (net.Conn, error) {
	p := c.pool
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	nc, err := p.dial(ctx, "tcp", p.target.Addr)
	if err != nil {
		return nil, err
	}
	c.rawConn = nc
	if raw := rawTCP(nc); raw != nil {
		_ = setUserTimeout(raw) // if it fails, stallAfter and dropSilentAfter remain
	}
	if p.tlsClient != nil {
		secured, err := p.tlsClient.handshake(ctx, nc)
		if err != nil {
			_ = nc.Close()
			return nil, err
		}
		nc = secured
	}
	if err := c.link.start(ctx, nc); err != nil {
		_ = c.rawConn.Close()
		return nil, err
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

// markOpenLocked records that the connection is open.
func (c *conn) markOpenLocked(now time.Time) {
	p := c.pool
	if c.queries.n == 0 {
		c.lastRead = now
	}
	age := connAge
	if drawn, err := draw(p.random, 2); err == nil {
		age += time.Duration(binary.BigEndian.Uint16(drawn)) * (connAge / 2) / (1 << 16)
	}
	c.open, c.agesAt = true, now.Add(age)
	c.timer.set(now, c.agesAt, c.onTimer)
	c.checkIdleLocked(now)
	for _, old := range slices.Clone(p.conns) {
		if old.aged {
			old.checkIdleLocked(now)
		}
	}
}

// onTimer ages the connection, applies the idle policy and sets the timer again.
func (c *conn) onTimer() {
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

// answeredLocked records that an answer came on the connection.
func (c *conn) answeredLocked(now time.Time) {
	c.answered = true
	c.pool.lastErr = nil
	c.pool.preopenLocked(now)
}

// checkIdleLocked applies the idle policy to a connection without queries.
func (c *conn) checkIdleLocked(now time.Time) {
	if c.err != nil || c.queries.n > 0 {
		return
	}
	checkAt, end := c.idlePolicyLocked(now)
	switch {
	case end != nil:
		c.failLocked(end)
	case !checkAt.IsZero():
		c.timer.set(now, checkAt, c.onTimer)
	}
}

// idlePolicyLocked decides about a connection without queries: end it with the error, check again at the time, or keep
// it if both are zero.
//
// A connection that stays silent after its queries were canceled is closed soon. Its path may be broken, or an
// unfinished frame or answer may block all that would follow.
func (c *conn) idlePolicyLocked(now time.Time) (checkAt time.Time, end error) {
	p, quiet := c.pool, c.idleSince
	if p.keepOpen && p.lastQuery.After(quiet) {
		quiet = p.lastQuery
	}
	switch {
	case p.noIdle:
		return checkAt, errShutdown
	case !c.open && !c.preopened:
		return checkAt, errAbandoned
	case !c.open:
		return checkAt, nil
	case c.owesAnswer && now.Sub(c.lastRead) >= stallAfter:
		return checkAt, errSilent
	case c.owesAnswer:
		return c.lastRead.Add(stallAfter), nil
	case c.aged && p.hasFreshLocked(now):
		return checkAt, errAged
	case now.Sub(quiet) >= idleTimeout:
		return checkAt, errIdle
	}
	return quiet.Add(idleTimeout), nil
}

// A received is what came for an attempt.
type received struct {
	attempt *attempt
	msg     []byte
	err     error
}

// failLocked ends the connection. run then handles its queries. The first error stays.
func (c *conn) failLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	if c.cancel != nil {
		c.cancel()
	}
	c.timer.stop()
	c.pool.conns = slices.DeleteFunc(c.pool.conns, func(other *conn) bool { return other == c })
}

// fail is failLocked for callers without the lock.
func (c *conn) fail(err error) {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	c.failLocked(err)
}

// expectedEnd reports whether this process ended the connection, so that the error does not concern the upstream.
func expectedEnd(end error) bool {
	return errors.Is(end, errIdle) || errors.Is(end, errShutdown) || errors.Is(end, errAged) || errors.Is(end, errAbandoned)
}

// closeConn closes the connection. An expected end of TLS sends close_notify (RFC 8446 section 6.1), which may block;
// any other end does not.
func (c *conn) closeConn(nc net.Conn) {
	c.pool.mu.Lock()
	expected := expectedEnd(c.err)
	c.pool.mu.Unlock()
	if !expected {
		nc = c.rawConn
	}
	_ = nc.Close()
}

// requeueOrFail handles the queries of a connection that has failed.
func (c *conn) requeueOrFail() {
	p := c.pool
	now := p.now()
	var batch wire.SendBatch
	p.mu.Lock()
	err := fmt.Errorf("%w: %w", errDied, c.err)
	if !c.answered && !expectedEnd(c.err) {
		p.lastErr = c.err
	}
	var lost []received
	for _, a := range c.queries.slots {
		if a == nil {
			continue
		}
		if reason := c.moveLocked(now, a, err, &batch); reason != nil {
			lost = append(lost, received{attempt: a, err: reason})
		}
	}
	if c.answered {
		p.preopenLocked(now)
	}
	p.mu.Unlock()
	for _, gone := range lost {
		gone.attempt.deliver(reply{err: gone.err}, &batch)
	}
	batch.Flush()
}

// moveLocked removes a query that got no answer because of err. A query that was assigned after the connection opened
// moves to a newer connection once: the server may only have closed the connection for its age or for a restart. The
// other queries fail, and so do all if the peer was silent: those have been retried already.
func (c *conn) moveLocked(now time.Time, a *attempt, err error, batch *wire.SendBatch) error {
	c.removeLocked(now, a)
	if !a.pending.reused || a.pending.retried || errors.Is(c.err, errSilent) {
		return err
	}
	a.pending.retried = true
	return c.pool.assignLocked(now, a, a.pending.newestConn, batch)
}
