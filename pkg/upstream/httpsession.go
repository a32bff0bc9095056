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
