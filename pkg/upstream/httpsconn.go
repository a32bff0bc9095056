// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"
)

// An httpsConn is one HTTP/2 connection.
type httpsConn struct {
	pool    *httpsPool
	number  uint64           // counted from 1 per upstream
	ready   chan struct{}    // closed when it is open, or has failed to open
	client  *http.ClientConn // set when ready is closed; nil: it could not be opened
	rawConn net.Conn         // under TLS; set before client

	// Guarded by httpsPool.mu:
	connState
	cancel   context.CancelFunc // cancels opening; nil: not begun
	inFlight int                // requests on it
}

// A connSlot is the place of a request on a connection.
type connSlot struct {
	conn   *httpsConn
	reused bool   // it was open before
	newest uint64 // number of the newest connection at that time
}

// acquireLocked assigns a request to a connection numbered above after, and opens one if needed.
func (p *httpsPool) acquireLocked(now time.Time, a *attempt, after uint64) (connSlot, error) {
	best := p.pickLocked(now, after)
	var refused error
	if p.needsNewLocked(now, best) {
		var opened *httpsConn
		if opened, refused = p.openForQueryLocked(now, a); opened != nil {
			best = opened
		}
	}
	if best == nil {
		return connSlot{}, fmt.Errorf("choosing a connection: %w", cmp.Or(refused, errLimit))
	}
	if best.inFlight == 0 && !best.owesAnswer {
		best.lastRead = now
	}
	best.inFlight++
	p.uses++
	best.lastUse = p.uses
	return connSlot{conn: best, reused: best.open, newest: p.opened}, nil
}

// needsNewLocked reports whether a request should open a connection rather than use best, which may be nil. The
// replacement of an aged connection is being opened already.
func (p *httpsPool) needsNewLocked(now time.Time, best *httpsConn) bool {
	switch {
	case best == nil || best.rankLocked(now) == rankStalled:
		return len(p.conns) < 2*p.connections+2
	case best.inFlight == 0 || best.aged:
		return false
	}
	return p.countYoungLocked() < p.connections
}

// countYoungLocked counts the connections that have not aged.
func (p *httpsPool) countYoungLocked() int {
	n := 0
	for _, c := range p.conns {
		if !c.aged {
			n++
		}
	}
	return n
}

// pickLocked returns the best connection, nil if there is none.
func (p *httpsPool) pickLocked(now time.Time, after uint64) (best *httpsConn) {
	bestRank := rankNone
	for _, c := range slices.Clone(p.conns) {
		if c.open && c.inFlight == 0 && c.client.Available() == 0 { // the peer accepts no more requests
			c.endLocked(errAged)
			continue
		}
		if c.number <= after {
			continue
		}
		rank := c.rankLocked(now)
		before := best == nil || c.inFlight < best.inFlight || c.inFlight == best.inFlight && c.lastUse < best.lastUse
		if rank < bestRank || rank == bestRank && before {
			best, bestRank = c, rank
		}
	}
	return best
}

// rankLocked returns the connection's rank. One that is full or about to be ended by the peer ranks like a silent
// one: a request on it would wait.
func (c *httpsConn) rankLocked(now time.Time) int {
	silent := c.inFlight > 0 && now.Sub(c.lastRead) >= stallAfter
	return c.rank(silent || c.open && c.client.Available() == 0 || !c.open && c.inFlight >= maxInflight)
}

// releaseSlot removes a request from its connection. responded says that a response came.
func (c *httpsConn) releaseSlot(responded bool) {
	p := c.pool
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	c.inFlight--
	if c.inFlight == 0 {
		c.idleSince = now
	}
	if responded {
		c.lastRead, c.owesAnswer = now, false
	} else {
		c.owesAnswer = true
	}
	c.checkIdleLocked(now)
}

// recordAnswer records that an answer came on the connection.
func (c *httpsConn) recordAnswer() {
	p := c.pool
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	c.answered = true
	p.lastErr = nil
	p.preopenLocked(now)
}

// checkIdleLocked applies the idle policy to a connection without requests.
func (c *httpsConn) checkIdleLocked(now time.Time) {
	if c.err != nil || c.inFlight > 0 {
		return
	}
	p, quiet := c.pool, c.idleSince
	if p.lastQuery.After(quiet) {
		quiet = p.lastQuery
	}
	checkAt, end := c.idlePolicy(now, quiet, p.noIdle, c.aged && p.hasFreshLocked(now))
	switch {
	case end != nil:
		c.endLocked(end)
	case !checkAt.IsZero():
		c.timer.set(now, checkAt, c.onTimer)
	}
}

// hasFreshLocked reports whether a connection that has not aged is open and answers.
func (p *httpsPool) hasFreshLocked(now time.Time) bool {
	return slices.ContainsFunc(p.conns, func(c *httpsConn) bool { return c.open && c.rankLocked(now) == rankGood })
}

// onTimer ages the connection, applies the idle policy and sets the timer again.
func (c *httpsConn) onTimer() {
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

// end ends the connection; its requests fail.
func (c *httpsConn) end(err error) {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	c.endLocked(err)
}

func (c *httpsConn) endLocked(err error) {
	if c.err != nil {
		return
	}
	p := c.pool
	c.err = err
	if c.cancel != nil {
		c.cancel()
	}
	p.conns = slices.DeleteFunc(p.conns, func(other *httpsConn) bool { return other == c })
	if !expectedEnd(err) {
		if c.answered {
			p.preopenLocked(p.now())
		} else {
			p.lastErr = err
		}
	}
	if c.open { // otherwise run closes it
		c.closeLocked()
	}
}

// closeLocked closes the connection in a goroutine, which wait waits for.
func (c *httpsConn) closeLocked() {
	c.timer.stop()
	expected := expectedEnd(c.err)
	go func() {
		defer c.pool.finishOne()
		if !expected { // close at once: the peer may not read a GOAWAY
			_ = c.rawConn.Close()
		}
		_ = c.client.Close()
	}()
}

// pingAfter is when HTTP/2 pings a connection without frames. Without an answer within the same time it closes the
// connection.
const pingAfter = dropSilentAfter / 2

// openForQueryLocked opens a connection for a waiting query. The error says why it may not.
func (p *httpsPool) openForQueryLocked(now time.Time, a *attempt) (*httpsConn, error) {
	if p.closed {
		return nil, errRemoved
	}
	if !p.openLimiter.allow(now, 0) {
		if p.lastErr != nil {
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
func (p *httpsPool) preopenLocked(now time.Time) {
	if p.noIdle || now.Sub(p.lastQuery) >= idleTimeout {
		return
	}
	for p.countYoungLocked() < p.connections && len(p.conns) < 2*p.connections+1 && p.openLimiter.allow(now, preopenReserve) {
		p.openLocked(now).preopened = true
	}
}

func (p *httpsPool) openLocked(now time.Time) *httpsConn {
	p.opened++
	c := &httpsConn{pool: p, number: p.opened, ready: make(chan struct{}), connState: connState{lastRead: now, idleSince: p.lastQuery}}
	p.conns = append(p.conns, c)
	p.running++
	go c.run() // joined by wait
	return c
}

// run opens the connection.
func (c *httpsConn) run() {
	p := c.pool
	conn, err := c.connect()
	if err != nil {
		c.end(fmt.Errorf("connecting: %w", err))
		close(c.ready)
		p.finishOne()
		return
	}
	now := p.now()
	p.mu.Lock()
	c.client = conn
	c.markOpenLocked(now)
	close(c.ready)
	p.mu.Unlock()
	conn.SetStateHook(func(conn *http.ClientConn) { c.checkPeer(conn) })
	c.checkPeer(conn) // if it ended before the hook was set
}

// connect opens the connection. It has a transport of its own, so that all it dials belongs to this connection.
func (c *httpsConn) connect() (conn *http.ClientConn, err error) {
	p := c.pool
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout) // many requests wait for it
	defer cancel()
	p.mu.Lock()
	c.cancel, err = cancel, c.err
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	defer p.recoverPanic(ctx, func() { err = errPanic })
	transport := &http.Transport{
		DialTLSContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
		DisableCompression:     true,
		MaxResponseHeaderBytes: 16 << 10,
		Protocols:              new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			StrictMaxConcurrentRequests: true, // otherwise excess requests fail
			SendPingTimeout:             pingAfter,
			PingTimeout:                 pingAfter,
			WriteByteTimeout:            writeTimeout,
		},
	}
	transport.Protocols.SetHTTP2(true)
	return transport.NewClientConn(ctx, "https", p.target.Addr.String())
}

// markOpenLocked records that the connection is open.
func (c *httpsConn) markOpenLocked(now time.Time) {
	p := c.pool
	if c.err != nil { // ended while it was being opened
		c.open = true
		c.closeLocked()
		return
	}
	if c.inFlight == 0 {
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

// checkPeer ends the connection if the peer or the network has.
func (c *httpsConn) checkPeer(conn *http.ClientConn) {
	if err := conn.Err(); err != nil {
		c.end(err)
	}
}

// dial opens the TLS connection below HTTP/2.
func (c *httpsConn) dial(ctx context.Context) (net.Conn, error) {
	p := c.pool
	nc, err := p.dial(ctx, "tcp", p.target.Addr)
	if err != nil {
		return nil, err
	}
	if tcp, ok := nc.(*net.TCPConn); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			_ = setUserTimeout(raw) // if it fails, the pings remain
		}
	}
	secured, err := p.tlsClient.handshake(ctx, nc)
	if err == nil && secured.ConnectionState().NegotiatedProtocol != "h2" {
		err = fmt.Errorf("%w: HTTP/2 not negotiated", errTLS)
	}
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	c.rawConn = nc
	return secured, nil // not wrapped: the transport inspects what was negotiated
}
