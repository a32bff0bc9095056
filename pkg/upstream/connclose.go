// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// cancel removes the query from its connection. A malformed answer ends an attempt on a connection, so there is none
// to return.
func (p *connPool) cancel(a *attempt) error {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := a.pending.conn; c != nil {
		c.removeLocked(now, a)
		c.owesAnswer = true
		c.checkIdleLocked(now)
	}
	if a.pending.stop != nil {
		a.pending.stop()
	}
	return nil
}

// shutdown implements transport.
func (p *connPool) shutdown() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.closeIdle()
}

// closeIdle implements transport.
func (p *connPool) closeIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noIdle = true
	for _, c := range slices.Clone(p.conns) {
		if c.queries.n == 0 {
			c.failLocked(errShutdown)
		}
	}
}

// wait implements transport.
func (p *connPool) wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.running > 0 {
		p.cond.Wait()
	}
}

// openCount implements transport.
func (p *connPool) openCount() (now int, ever uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns), p.opened
}

// lastError returns why the latest connection ended before an answer came on it. It is empty once an answer has come
// on any connection.
func (p *connPool) lastError() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lastErr == nil {
		return ""
	}
	return p.lastErr.Error()
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
