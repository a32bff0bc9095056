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

// A session is one connection of HTTP/2.
type httpsConn struct {
	pool    *httpsPool
	number  uint64           // counted from 1 over all of the upstream's
	ready   chan struct{}    // closed when it is open, or will not be
	client  *http.ClientConn // set when ready is closed; nil: it could not be opened
	rawConn net.Conn         // what TLS runs over; set before conn

	// Guarded by sessions.mu:
	connState
	cancel   context.CancelFunc // ends the opening; nil: it has not begun
	inFlight int                // requests on it
}

// A seat is a request's place on a session.
type connSlot struct {
	conn   *httpsConn
	reused bool   // it was open before
	newest uint64 // number of the newest session then
}

// joinLocked finds a session numbered above after for a request, or opens one.
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
		return connSlot{}, fmt.Errorf("finding a session: %w", cmp.Or(refused, errLimit))
	}
	if best.inFlight == 0 && !best.owesAnswer {
		best.lastRead = now
	}
	best.inFlight++
	p.uses++
	best.lastUse = p.uses
	return connSlot{conn: best, reused: best.open, newest: p.opened}, nil
}

// moreLocked tells whether a request that could go on the session best, if there is one, had better have another. An
// aged one has its successor on the way.
func (p *httpsPool) needsNewLocked(now time.Time, best *httpsConn) bool {
	switch {
	case best == nil || best.rankLocked(now) == rankStalled:
		return len(p.conns) < 2*p.connections+2
	case best.inFlight == 0 || best.aged:
		return false
	}
	return p.countYoungLocked() < p.connections
}

// youngLocked counts the sessions that have not come to their age.
func (p *httpsPool) countYoungLocked() int {
	n := 0
	for _, c := range p.conns {
		if !c.aged {
			n++
		}
	}
	return n
}

// pickLocked finds the best session.
func (p *httpsPool) pickLocked(now time.Time, after uint64) (best *httpsConn) {
	bestRank := rankNone
	for _, c := range slices.Clone(p.conns) {
		if c.open && c.inFlight == 0 && c.client.Available() == 0 { // the peer will have no more of it
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

// rankLocked is the session's rank among the others. One that is full, or that the peer is about to end, is as good as
// one that is silent: a request on it would wait.
func (c *httpsConn) rankLocked(now time.Time) int {
	silent := c.inFlight > 0 && now.Sub(c.lastRead) >= stallAfter
	return c.rank(silent || c.open && c.client.Available() == 0 || !c.open && c.inFlight >= maxInflight)
}

// part takes a request off its session. heard tells that something came back.
func (c *httpsConn) releaseSlot(heard bool) {
	p := c.pool
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	c.inFlight--
	if c.inFlight == 0 {
		c.idleSince = now
	}
	if heard {
		c.lastRead, c.owesAnswer = now, false
	} else {
		c.owesAnswer = true
	}
	c.checkIdleLocked(now)
}

// answered notes that an answer came on the session.
func (c *httpsConn) recordAnswer() {
	p := c.pool
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	c.answered = true
	p.lastErr = nil
	p.preopenLocked(now)
}

// restLocked decides what becomes of a session without requests.
func (c *httpsConn) checkIdleLocked(now time.Time) {
	if c.err != nil || c.inFlight > 0 {
		return
	}
	p, quiet := c.pool, c.idleSince
	if p.lastQuery.After(quiet) {
		quiet = p.lastQuery
	}
	look, end := c.idlePolicy(now, quiet, p.noIdle, c.aged && p.hasFreshLocked(now))
	switch {
	case end != nil:
		c.endLocked(end)
	case !look.IsZero():
		c.timer.set(now, look, c.onTimer)
	}
}

// freshLocked tells whether there is a session, other than those that came to their age, that is open and answers.
func (p *httpsPool) hasFreshLocked(now time.Time) bool {
	return slices.ContainsFunc(p.conns, func(c *httpsConn) bool { return c.open && c.rankLocked(now) == rankGood })
}

// expire does what is due, and sets the alarm to what is due next.
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

// end ends the session: requests on it get an error.
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
	if c.open { // else run sees to it
		c.closeLocked()
	}
}

// closeLocked closes the session in a goroutine, which wait waits for.
func (c *httpsConn) closeLocked() {
	c.timer.stop()
	good := expectedEnd(c.err)
	go func() {
		defer c.pool.finishOne()
		if !good { // then there is no time for a farewell, which the peer might not take
			_ = c.rawConn.Close()
		}
		_ = c.client.Close()
	}()
}

// When HTTP/2 itself finds out that a peer is silent: after this a session without a frame is pinged,
// and after as long again without an answer it is closed.
const pingAfter = dropSilentAfter / 2

// openForLocked opens a session for a query that waits. The error says why not.
func (p *httpsPool) openForQueryLocked(now time.Time, a *attempt) (*httpsConn, error) {
	if p.closed {
		return nil, errRemoved
	}
	if !p.openLimiter.allow(now, 0) {
		if p.lastErr != nil {
			return nil, fmt.Errorf("opening sessions too often, as they end: %w", p.lastErr)
		}
		return nil, errLimit
	}
	if a.connsOpened != nil && a.connsOpened.Add(1) > maxConnsPerQuery {
		return nil, errLimit
	}
	return p.openLocked(now), nil
}

// openAheadLocked opens what is missing of the sessions, no query having to wait for them.
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

// run opens the session.
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
	c.checkPeer(conn) // if it was before there was a hook
}

// connect makes the connection. Its transport is for this one only, so that what it dials is known to be this session's.
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
			StrictMaxConcurrentRequests: true, // else it refuses what is above
			SendPingTimeout:             pingAfter,
			PingTimeout:                 pingAfter,
			WriteByteTimeout:            writeTimeout,
		},
	}
	transport.Protocols.SetHTTP2(true)
	return transport.NewClientConn(ctx, "https", p.target.Addr.String())
}

// openedLocked notes that the session is open.
func (c *httpsConn) markOpenLocked(now time.Time) {
	p := c.pool
	if c.err != nil { // nobody waited for it
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

// lost ends the session if the peer has, or the network.
func (c *httpsConn) checkPeer(conn *http.ClientConn) {
	if err := conn.Err(); err != nil {
		c.end(err)
	}
}

// dial makes the connection under the session.
func (c *httpsConn) dial(ctx context.Context) (net.Conn, error) {
	p := c.pool
	nc, err := p.dial(ctx, "tcp", p.target.Addr)
	if err != nil {
		return nil, err
	}
	if tcp, ok := nc.(*net.TCPConn); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			_ = setUserTimeout(raw) // without it there are still the pings
		}
	}
	secured, err := p.tlsClient.handshake(ctx, nc)
	if err == nil && secured.ConnectionState().NegotiatedProtocol != "h2" {
		err = fmt.Errorf("%w: it does not speak HTTP/2", errTLS)
	}
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	c.rawConn = nc
	return secured, nil // as it is: the transport looks at what was negotiated
}
