// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/nodecache/node-cache/pkg/remote"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Bounds of the connections to one upstream.
const (
	maxConnections  = 16              // upper bound of Config.Connections
	maxInflight     = 1024            // pending queries on one TCP or TLS connection; HTTPS: on all connections
	maxBatchPerConn = 16              // queries of one batch that stay together on one connection
	dialTimeout     = 3 * time.Second // limit of the TCP and TLS handshakes together
	writeTimeout    = 3 * time.Second // limit of one write, after which the connection is closed
	dropSilentAfter = 3 * time.Second // silence with a query pending, after which a connection may be closed to make room

	connAge      = 60 * time.Second       // age at which a connection is replaced; a random 0 to 50% is added
	replaceRetry = 5 * time.Second        // interval of attempts to open the replacement of an aged connection
	idleTimeout  = 10 * time.Second       // time without queries after which a connection is closed
	stallAfter   = 800 * time.Millisecond // silence with a query pending, after which other connections are preferred

	// userTimeout is how long sent bytes may stay unacknowledged, in milliseconds (RFC 5482). It ends connections over
	// a broken path after 3 s; the kernel's default is a quarter of an hour.
	userTimeout = 3000
)

// How often connections are opened. Neither clients nor upstreams can cause connections to be opened faster.
const (
	openInterval   = 50 * time.Millisecond // one connection per openInterval in the long run
	openBurst      = 3 * maxConnections    // connections at once
	preopenReserve = openBurst / 2         // connections of the burst that only a waiting query may open
)

// A connPool holds the connections to one upstream over TCP (RFC 7766), TLS (RFC 7858) or HTTPS (RFC 8484). Many
// queries share each connection.
//
//	send ─ assign: an ID on a connection ─ conn.link ─ Flush: stream.go or https.go ─► upstream
//	                                                                                      │
//	handleReply, for each    ◄─ unlocked ─ match ID and question ◄───────────────────────┘
//
// One lock guards all of it. It is never held during I/O or callbacks. A query over TCP or TLS costs no goroutine,
// timer or channel.
type connPool struct {
	*common
	target      Target
	count       *counters
	tlsClient   *tlsClient // nil: plain TCP
	newLink     func(*conn) link
	keepOpen    bool // keep all connections open while queries come
	maxYoung    int  // most connections, without aged and suspect ones, while none is usable
	maxPending  int  // most queries pending on all connections
	openLimiter *rate.Limiter

	mu        sync.Mutex // guards the fields below, and those of conn where it says so
	conns     []*conn    // opening or open, without those that failed
	pending   int        // queries pending on all connections
	opened    uint64     // connections ever opened: the number of the newest one
	uses      uint64     // queries ever assigned; orders connections by last use
	lastQuery time.Time  // when a query last came
	random    *bufio.Reader
	lastErr   error // why the latest connection without an answer ended; nil: none did, or an answer has come since, on any connection
	noIdle    bool  // close connections after their last query
	closed    bool  // the upstream was removed: refuse queries
	running   int   // goroutines of connections and of requests
	cond      sync.Cond
}

// A conn is one connection and the queries on it. It is in connPool.conns until it fails.
type conn struct {
	pool    *connPool
	number  uint64 // counted from 1 per upstream
	link    link
	rawConn net.Conn // the TCP connection, which TLS uses if there is TLS; set before open

	// Guarded by connPool.mu:
	queries    map[uint16]*attempt // pending attempts by DNS message ID
	open       bool                // the handshake is complete
	preopened  bool                // opened before a query had to wait for it
	aged       bool                // to be replaced: takes a query only if no connection of rankGood has room
	answered   bool                // an answer has come on it
	owesAnswer bool                // a query was canceled on it since the last answer
	suspect    bool                // a query timed out on it, and nothing has come since that query was assigned: its path may be broken
	unproven   bool                // nothing has come on it since the query was assigned that made a connection suspect
	lastUse    uint64              // sequence number of the latest query
	heardAt    time.Time           // when something last came; zero: nothing has
	lastRead   time.Time           // when its silence began: heardAt, or later if it was idle until a query came
	idleSince  time.Time           // when its last query ended
	agesAt     time.Time           // when it ages; zero: not open yet
	timer      lazyTimer
	err        error              // why it ended; nil: it has not
	cancel     context.CancelFunc // ends run
	batch      *wire.SendBatch    // the batch whose queries stay together on it until the next flush
	batchCount int                // number of queries of batch on it
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
	// serve handles the connection until it fails or ctx ends, because it has failed.
	serve(ctx context.Context, nc net.Conn)
}

// newConnPool makes the transport over connections. It opens nothing yet. For a UDP target it takes only the queries that
// go over TCP, and opens no connection in advance.
func newConnPool(c *common, t Target, count *counters, newLink func(*conn) link) *connPool {
	p := &connPool{
		common: c, target: t, count: count, newLink: newLink, keepOpen: t.Network != "udp", maxYoung: c.Connections + 1, maxPending: math.MaxInt,
		openLimiter: rate.NewLimiter(rate.Every(openInterval), openBurst), random: bufio.NewReaderSize(c.Rand, randomBuffer),
	}
	p.cond.L = &p.mu
	return p
}

// send implements transport.
func (p *connPool) send(a *attempt, batch *wire.SendBatch) error {
	now := p.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastQuery = now
	a.retried = false
	return p.assignLocked(now, a, p.afterTimeoutLocked(a.previous), batch)
}

// assignLocked assigns the query to the best connection, or to a new one if the limits allow that.
func (p *connPool) assignLocked(now time.Time, a *attempt, avoid avoided, batch *wire.SendBatch) error {
	switch {
	case p.closed:
		return errRemoved
	case p.pending >= p.maxPending:
		return fmt.Errorf("starting a request: %w", errLimit)
	}
	c := p.pickLocked(now, &avoid, len(a.query)+wire.MaxPadding, batch)
	if (c == nil || c.stalledLocked(now)) && p.dropSilentLocked(now) {
		c = p.pickLocked(now, &avoid, len(a.query)+wire.MaxPadding, batch)
	}
	refused := errLimit
	if p.countYoungLocked() < p.targetConnsLocked(now, c) {
		if refused = p.mayOpenLocked(now, a); refused == nil {
			c = p.openLocked(now)
		}
	}
	if c == nil { // take one that may be broken rather than none, but never the one on which this query timed out
		avoid.newest = 0
		c = p.pickLocked(now, &avoid, len(a.query)+wire.MaxPadding, batch)
	}
	if c == nil {
		return fmt.Errorf("choosing a connection: %w", refused)
	}
	return c.addLocked(now, a, batch)
}

// dropSilentLocked makes room if there are more connections than configured: it closes those that have been silent for
// dropSilentAfter, and reports whether there were any. Otherwise continuous queries would keep them open.
func (p *connPool) dropSilentLocked(now time.Time) (dropped bool) {
	if len(p.conns) <= p.Connections {
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

// targetConnsLocked returns the number of young connections below which a query opens one instead of using c, its best
// connection or nil. It is 0 if c is idle, or aged: the replacement of an aged connection is opened without a query. It is
// more than configured if no connection is usable.
func (p *connPool) targetConnsLocked(now time.Time, c *conn) int {
	switch {
	case c == nil || c.stalledLocked(now):
		return p.maxYoung
	case len(c.queries) > 0 && !c.aged:
		return p.Connections
	}
	return 0
}

// countYoungLocked counts the connections that have not aged and are not suspect.
func (p *connPool) countYoungLocked() int {
	n := 0
	for _, c := range p.conns {
		if !c.aged && !c.suspect {
			n++
		}
	}
	return n
}

// mayOpenLocked counts a connection to be opened for a waiting query, or returns which limit forbids it.
func (p *connPool) mayOpenLocked(now time.Time, a *attempt) error {
	switch {
	case len(p.conns) >= 2*p.Connections+2:
		return errLimit
	case p.openLimiter.AllowN(now, 1):
		if a.connsOpened != nil && a.connsOpened.Add(1) > maxConnsPerQuery {
			return errLimit
		}
		return nil
	case p.lastErr != nil: // the upstream ends connections too often
		return fmt.Errorf("opening a connection: rate limited after failures: %w", p.lastErr)
	}
	return errLimit
}

// preopenLocked opens the missing connections of a pool that keeps them open, so that no query has to wait for them.
func (p *connPool) preopenLocked(now time.Time) {
	if !p.keepOpen || p.noIdle || now.Sub(p.lastQuery) >= idleTimeout {
		return
	}
	for p.countYoungLocked() < p.Connections && len(p.conns) < 2*p.Connections+1 &&
		p.openLimiter.TokensAt(now) > preopenReserve && p.openLimiter.AllowN(now, 1) {
		p.openLocked(now).preopened = true
	}
}

// openLocked adds a connection and starts its goroutine, which ends when the connection ends.
func (p *connPool) openLocked(now time.Time) *conn {
	p.opened++
	ctx, cancel := context.WithCancel(context.Background()) // not a query's context: many queries share the connection
	c := &conn{pool: p, number: p.opened, lastRead: now, idleSince: p.lastQuery, queries: map[uint16]*attempt{}, cancel: cancel}
	c.link = p.newLink(c)
	p.conns = append(p.conns, c)
	p.running++
	go c.run(ctx) // joined by wait
	return c
}

// goroutineEnded counts the end of a goroutine that wait waits for.
func (p *connPool) goroutineEnded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	p.cond.Broadcast()
}

// cancel removes the query from its connection. A malformed answer ends an attempt on a connection, so there is no
// error of one to return.
func (p *connPool) cancel(a *attempt) error {
	now := p.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := a.conn; c != nil {
		c.removeLocked(now, a)
		c.owesAnswer = true
		c.checkIdleLocked(now)
	}
	if a.stop != nil {
		a.stop()
	}
	return nil
}

// closeIdle implements transport.
func (p *connPool) closeIdle(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noIdle, p.closed = true, p.closed || refuse
	for _, c := range slices.Clone(p.conns) {
		c.checkIdleLocked(p.Now())
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

// lastError returns why the latest connection ended before an answer came on it, nil once an answer has come on any.
func (p *connPool) lastError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lastErr
}

// silentLocked reports whether a query is pending on the connection and nothing has come on it for at least long.
func (c *conn) silentLocked(now time.Time, long time.Duration) bool {
	return len(c.queries) > 0 && now.Sub(c.lastRead) >= long
}

// addLocked adds a query to the connection.
func (c *conn) addLocked(now time.Time, a *attempt, batch *wire.SendBatch) error {
	p := c.pool
	if len(c.queries) == 0 && !c.owesAnswer {
		c.lastRead = now
	}
	if err := addByID(c.queries, a, p.random); err != nil {
		return err
	}
	p.pending++
	a.conn, a.reused, a.newestConn = c, c.open, p.opened
	a.lastConn, a.assignedAt = c.number, now
	a.sent = append(a.inline[:0], a.query...)
	p.uses++
	c.lastUse = p.uses
	if c.link.queueLocked(a, batch) && c.open { // otherwise it is sent once the connection opens
		batch.Add(c.link)
	}
	return nil
}

// removeLocked removes a query of this connection.
func (c *conn) removeLocked(now time.Time, a *attempt) {
	delete(c.queries, a.id)
	c.pool.pending--
	a.conn = nil
	if len(c.queries) == 0 {
		c.idleSince = now
	}
}

// run opens the connection and serves it until it fails or this process ends it.
func (c *conn) run(ctx context.Context) {
	p := c.pool
	defer p.goroutineEnded()
	defer c.requeueOrFail() //nolint:contextcheck // it may open the next connection, which outlives this one
	defer p.recoverPanic(ctx, func() { c.fail(errPanic) })
	nc, err := c.connect(ctx)
	if err != nil {
		c.fail(fmt.Errorf("connecting: %w", err))
		return
	}
	defer func() { _ = nc.Close() }() // no effect if closeConn has closed it already
	defer context.AfterFunc(ctx, func() { c.closeConn(nc) })()
	c.link.serve(ctx, nc)
}

// connect opens the connection, including handshakes. It sets TCP_USER_TIMEOUT even if Config.Dial is not the default.
func (c *conn) connect(ctx context.Context) (net.Conn, error) {
	p := c.pool
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	nc, err := p.Dial(ctx, "tcp", p.target.Addr)
	if err != nil {
		return nil, err
	}
	c.rawConn = nc
	if raw := rawConn(nc); raw != nil {
		// If that fails, only stallAfter and dropSilentAfter reveal a broken path.
		_ = setOption(raw, "TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, userTimeout)
	}
	if p.tlsClient != nil {
		if nc, err = p.tlsClient.handshake(ctx, nc); err != nil {
			_ = c.rawConn.Close()
			return nil, err
		}
	}
	if err := c.link.start(ctx, nc); err != nil {
		_ = c.rawConn.Close()
		return nil, err
	}
	now := p.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.err != nil {
		_ = nc.Close()
		return nil, c.err
	}
	c.markOpenLocked(now)
	return nc, nil
}

// markOpenLocked records that the connection is open, and ages the suspect and surplus connections that it replaces.
func (c *conn) markOpenLocked(now time.Time) {
	p := c.pool
	if len(c.queries) == 0 {
		c.lastRead = now
	}
	age := connAge
	if drawn, err := draw(p.random, 2); err == nil {
		age += time.Duration(binary.BigEndian.Uint16(drawn)) * (connAge / 2) / (1 << 16)
	}
	c.open, c.agesAt = true, now.Add(age)
	c.timer.set(now, c.agesAt, c.onTimer)
	c.checkIdleLocked(now)
	surplus := p.countYoungLocked() - p.Connections // young connections beyond the configured number, opened because others may be broken
	for _, old := range slices.Clone(p.conns) {
		switch {
		case old.suspect:
			old.aged = true
		case old.unproven && !old.aged && surplus > 0:
			old.aged = true
			surplus--
		}
		if old.aged {
			old.checkIdleLocked(now)
		}
	}
}

// onTimer ages the connection if it is time, opens the replacement of an aged one, applies the idle policy and sets the timer again.
func (c *conn) onTimer() {
	p := c.pool
	now := p.Now()
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

// heardLocked records that something came on the connection.
func (c *conn) heardLocked(now time.Time) {
	c.heardAt, c.lastRead = now, now
	c.owesAnswer, c.suspect, c.unproven = false, false, false
}

// answeredLocked records that an answer came on the connection, and opens missing connections of the pool in advance.
func (c *conn) answeredLocked(now time.Time) {
	c.answered = true
	c.pool.lastErr = nil
	c.pool.preopenLocked(now)
}

// checkIdleLocked applies the idle policy to a connection without queries: it ends, or is checked again later.
//
// A connection that stays silent after its queries were canceled is closed after stallAfter. Its path may be broken, or
// an unfinished frame or answer may block all that would follow.
func (c *conn) checkIdleLocked(now time.Time) {
	if c.err != nil || len(c.queries) > 0 {
		return
	}
	p, quiet := c.pool, c.idleSince
	if p.keepOpen && p.lastQuery.After(quiet) {
		quiet = p.lastQuery
	}
	checkAt, end := quiet.Add(idleTimeout), error(nil)
	switch {
	case p.noIdle:
		end = errShutdown
	case !c.open && !c.preopened:
		end = errAbandoned
	case !c.open:
		return
	case c.owesAnswer && now.Sub(c.lastRead) >= stallAfter:
		end = errSilent
	case c.owesAnswer:
		checkAt = c.lastRead.Add(stallAfter)
	case c.aged && slices.ContainsFunc(p.conns, func(o *conn) bool { return o.open && o.rankLocked(now) == rankGood }):
		end = errAged
	case now.Sub(quiet) >= idleTimeout:
		end = errIdle
	}
	if end != nil {
		c.failLocked(end)
		return
	}
	c.timer.set(now, checkAt, c.onTimer)
}

// failLocked ends the connection. run then handles its queries. The first error stays.
func (c *conn) failLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = remote.Error(err)
	c.cancel()
	c.timer.stop()
	c.pool.conns = slices.DeleteFunc(c.pool.conns, func(other *conn) bool { return other == c })
}

// fail is failLocked for callers that do not hold the lock.
func (c *conn) fail(err error) {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	c.failLocked(err)
}

// expectedEnd reports whether this process ended the connection, so that the error does not concern the upstream.
func expectedEnd(end error) bool {
	return slices.Contains([]error{errIdle, errShutdown, errAged, errAbandoned}, end)
}

// closeConn closes the connection. An expected end of TLS sends close_notify (RFC 8446 section 6.1), which may block;
// any other end does not.
func (c *conn) closeConn(nc net.Conn) {
	c.pool.mu.Lock()
	if !expectedEnd(c.err) {
		nc = c.rawConn
	}
	c.pool.mu.Unlock()
	_ = nc.Close()
}

// requeueOrFail moves the queries of a failed connection to others, or fails them.
func (c *conn) requeueOrFail() {
	p := c.pool
	now := p.Now()
	var batch wire.SendBatch
	p.mu.Lock()
	err := fmt.Errorf("%w: %w", errDied, c.err)
	if !c.answered && !expectedEnd(c.err) {
		p.lastErr = c.err
	}
	lost := map[*attempt]error{}
	for _, a := range c.queries {
		if reason := c.moveLocked(now, a, err, &batch); reason != nil {
			lost[a] = reason
		}
	}
	if c.answered {
		p.preopenLocked(now)
	}
	p.mu.Unlock()
	for a, reason := range lost {
		a.receiver.handleReply(a, reply{err: reason}, &batch)
	}
	batch.Flush()
}

// moveLocked moves a query that got no answer because of err to another connection, or returns why it fails. A query
// moves only once, and only if it was assigned after the connection opened: the server may have closed the connection for
// its age or for a restart. If the peer was silent all queries fail: their exchanges have started other attempts.
func (c *conn) moveLocked(now time.Time, a *attempt, err error, batch *wire.SendBatch) error {
	c.removeLocked(now, a)
	if !a.reused || a.retried || errors.Is(c.err, errSilent) {
		return err
	}
	a.retried = true
	return c.pool.assignLocked(now, a, avoided{newest: a.newestConn, since: now}, batch)
}
