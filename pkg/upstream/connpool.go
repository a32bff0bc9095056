// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Bounds of the connections to one upstream.
const (
	maxConnections  = 16              // the most that a configuration may ask for
	maxInflight     = 1024            // queries on one connection; over HTTPS, on all of them
	maxBatchPerConn = 16              // queries of a batch on one connection before the next one is used
	dialTimeout     = 3 * time.Second // for the handshakes of TCP and TLS together
	writeTimeout    = 3 * time.Second // for one write; a peer that does not read is gone
	dropSilentAfter = 3 * time.Second // a connection that owes an answer and is silent for so long may be replaced
)

// How often connections are opened. Neither clients nor upstreams can cause connections to be opened faster.
const (
	openInterval   = 50 * time.Millisecond // between two connections in the long run
	openBurst      = 3 * maxConnections    // connections at once
	preopenReserve = openBurst / 2         // of the burst, reserved for queries that wait
)

var (
	// errDied marks the error of a connection that ended with pending queries.
	errDied = errors.New("connection ended")
	// errRemoved is the error of a query to an upstream that is no longer in the list.
	errRemoved = fmt.Errorf("upstream removed: %w", errLimit)

	errIdle      = errors.New("idle")
	errShutdown  = errors.New("shut down")
	errAged      = errors.New("too old")
	errAbandoned = errors.New("no query waits for it")
	errStuck     = errors.New("peer does not read")
	errSilent    = errors.New("peer does not answer")
)

// A connPool holds the connections to one upstream over TCP (RFC 7766), TLS (RFC 7858) or HTTPS (RFC 8484). Many
// queries share each connection.
//
//	send ─ assign: an ID on a connection ─ conn.link ─ Flush: stream.go or https.go ─► upstream
//	                                                                                      │
//	attempt.deliver, for each ◄─ unlocked ─ match ID and question ◄───────────────────────┘
//
// One lock guards all of it. It is never held during I/O or callbacks. A query over TCP or TLS costs no goroutine,
// timer or channel.
type connPool struct {
	*common
	target      Target
	count       *counters
	tlsClient   *tlsClient // nil: plain TCP
	keepOpen    bool       // keep all connections open while queries come
	maxYoung    int        // connections that have not aged, while no usable one is left
	maxPending  int        // queries on all connections
	openLimiter *rate.Limiter

	mu        sync.Mutex // guards the fields below, and those of conn where it says so
	conns     []*conn    // opening or open, without those that failed
	pending   int        // queries on all connections
	opened    uint64     // connections ever opened; numbers them
	uses      uint64     // queries ever assigned; orders connections by last use
	lastQuery time.Time  // when a query last came
	random    *bufio.Reader
	lastErr   error // of the latest connection that ended before an answer came on it; nil once one has come
	noIdle    bool  // close connections after their last query
	closed    bool  // the upstream was removed: refuse queries
	running   int   // goroutines of connections and of requests
	cond      sync.Cond
}

// newConnPool makes the transport for TCP, TLS or HTTPS. For a UDP target it serves truncated answers only and opens
// no connections in advance. It opens nothing yet.
func newConnPool(c *common, t Target, count *counters) *connPool {
	p := &connPool{
		common: c, target: t, count: count, keepOpen: t.Network != "udp", maxYoung: c.connections + 1, maxPending: math.MaxInt,
		openLimiter: rate.NewLimiter(rate.Every(openInterval), openBurst), random: bufio.NewReaderSize(c.rand, randomBuffer),
	}
	p.cond.L = &p.mu
	switch t.Network {
	case "tls":
		p.tlsClient = newTLSClient(c, t, count, "dot")
	case "https":
		p.tlsClient = newTLSClient(c, t, count, "h2")
		p.maxYoung, p.maxPending = 2*c.connections+2, maxInflight // the peer may allow few requests on each
	}
	return p
}

// send assigns the query to a connection.
func (p *connPool) send(a *attempt, batch *wire.SendBatch) error {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastQuery = now
	a.pending.retried = false
	return p.assignLocked(now, a, 0, batch)
}

// assignLocked assigns the query to a connection numbered above after.
func (p *connPool) assignLocked(now time.Time, a *attempt, after uint64, batch *wire.SendBatch) error {
	switch {
	case p.closed:
		return errRemoved
	case p.pending >= p.maxPending:
		return fmt.Errorf("starting a request: %w", errLimit)
	}
	c := p.pickLocked(now, after, len(a.query)+wire.MaxPadding, batch)
	if (c == nil || c.stalledLocked(now)) && p.dropSilentLocked(now) {
		c = p.pickLocked(now, after, len(a.query)+wire.MaxPadding, batch)
	}
	var refused error
	if p.countYoungLocked() < p.targetConnsLocked(now, c) {
		var opened *conn
		if opened, refused = p.openForQueryLocked(now, a); opened != nil {
			c = opened
		}
	}
	if c == nil {
		return fmt.Errorf("choosing a connection: %w", cmp.Or(refused, errLimit))
	}
	return c.addLocked(now, a, batch)
}

// pickLocked returns the best connection with room for a query of size bytes, nil if there is none. Within the best
// rank it prefers fewer queries, then the one unused for longest, so that no connection is idle while others work.
// The first few queries of a batch stay together, to share a write.
func (p *connPool) pickLocked(now time.Time, after uint64, size int, batch *wire.SendBatch) (best *conn) {
	bestRank := rankNone
	var finished *conn
	for _, c := range p.conns {
		switch {
		case c.open && c.queries.n == 0 && c.link.blocked(): // the peer accepts no more queries
			finished = c
			continue
		case c.number <= after || c.link.fullLocked(size):
			continue
		}
		rank := c.rankLocked(now)
		if rank == rankGood && c.batch == batch && c.batchCount < maxBatchPerConn {
			return c
		}
		if rank < bestRank || rank == bestRank && c.lessUsedLocked(best) {
			best, bestRank = c, rank
		}
	}
	if finished != nil {
		finished.failLocked(errAged)
	}
	return best
}

// dropSilentLocked makes room if all connections are taken: it closes those that have been silent for too long, and
// reports whether there were any. Continuous queries would otherwise keep a connection whose peer hangs.
func (p *connPool) dropSilentLocked(now time.Time) (dropped bool) {
	if len(p.conns) <= p.connections {
		return false
	}
	for _, c := range slices.Clone(p.conns) {
		if c.silentLocked(now, dropSilentAfter) {
			c.failLocked(errSilent)
			dropped = true
		}
	}
	return dropped
}

// targetConnsLocked returns how many connections there may be, including a new one for a query that could use c; c
// may be nil. An idle connection is always used, and so is an aged one, whose replacement is being opened. If no
// connection is usable there may be more than configured.
func (p *connPool) targetConnsLocked(now time.Time, c *conn) int {
	switch {
	case c == nil || c.stalledLocked(now):
		return p.maxYoung
	case c.queries.n > 0 && !c.aged:
		return p.connections
	}
	return 0
}

// countYoungLocked counts the connections that have not aged.
func (p *connPool) countYoungLocked() int {
	n := 0
	for _, c := range p.conns {
		if !c.aged {
			n++
		}
	}
	return n
}

// openForQueryLocked opens a connection for a waiting query. The error says why it may not.
func (p *connPool) openForQueryLocked(now time.Time, a *attempt) (*conn, error) {
	if len(p.conns) >= 2*p.connections+2 {
		return nil, errLimit
	}
	if !p.openLimiter.AllowN(now, 1) {
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

// preopenLocked opens the missing connections of a pool that keeps them open, so that no query has to wait for them.
func (p *connPool) preopenLocked(now time.Time) {
	if !p.keepOpen || p.noIdle || now.Sub(p.lastQuery) >= idleTimeout {
		return
	}
	for p.countYoungLocked() < p.connections && len(p.conns) < 2*p.connections+1 &&
		p.openLimiter.TokensAt(now) > preopenReserve && p.openLimiter.AllowN(now, 1) {
		p.openLocked(now).preopened = true
	}
}

// openLocked adds a connection and starts its goroutine, which ends when the connection ends.
func (p *connPool) openLocked(now time.Time) *conn {
	p.opened++
	c := &conn{pool: p, number: p.opened, lastRead: now, idleSince: p.lastQuery}
	if p.target.Network == "https" {
		c.link = &httpsConn{conn: c}
	} else {
		c.link = &streamConn{conn: c, wake: make(chan struct{}, 1)}
	}
	p.conns = append(p.conns, c)
	p.running++
	go c.run() // joined by wait
	return c
}

// goroutineEnded counts the end of a goroutine that wait waits for.
func (p *connPool) goroutineEnded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running--; p.running == 0 {
		p.cond.Broadcast()
	}
}

// hasFreshLocked reports whether a connection that has not aged is open and answers.
func (p *connPool) hasFreshLocked(now time.Time) bool {
	return slices.ContainsFunc(p.conns, func(c *conn) bool { return c.open && c.rankLocked(now) == rankGood })
}

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
