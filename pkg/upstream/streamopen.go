// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// When connections are opened.
const (
	openInterval   = 50 * time.Millisecond // between two connections, in the long run,
	openBurst      = 3 * maxConnections    // and so many at once
	preopenReserve = openBurst / 2         // of which so many are kept for queries that wait
)

// A pace bounds how often something is done: so many times at once, and once an interval in the long run. Nothing that
// clients ask and nothing that upstreams do opens connections faster.
type openLimiter struct {
	fullAt time.Time // when all of the burst is there again
}

// take tells whether it may be done now, and leave keep for others, and then counts it.
func (l *openLimiter) allow(now time.Time, keep int) bool {
	full := l.fullAt
	if full.Before(now) {
		full = now
	}
	full = full.Add(openInterval)
	if full.Sub(now) > time.Duration(openBurst-keep)*openInterval {
		return false
	}
	l.fullAt = full
	return true
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
