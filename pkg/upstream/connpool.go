// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Bounds of the connections to one upstream.
const (
	maxConnections  = 16              // that may be asked for
	maxInflight     = 1024            // queries on one connection
	maxOutbox       = 1 << 18         // octets waiting to be written on one connection
	maxBatchPerConn = 16              // queries of a batch that go on one connection before the next is looked for
	dialTimeout     = 3 * time.Second // for the handshake, that of TLS included
	writeTimeout    = 3 * time.Second // for one write; a peer that does not read is gone
	dropSilentAfter = 3 * time.Second // owes an answer and is silent: makes way for another
)

var (
	// errDied marks the errors of a connection that ended with queries on it.
	errDied = errors.New("connection ended")
	// errLeft is what a query gets from an upstream that fell out of the list.
	errRemoved = fmt.Errorf("upstream has left: %w", errLimit)

	errIdle      = errors.New("idle")
	errShutdown  = errors.New("retired")
	errAged      = errors.New("aged")
	errAbandoned = errors.New("nobody waits for it")
	errStuck     = errors.New("peer does not read")
	errSilent    = errors.New("peer does not answer")
)

// lines are the connections to one upstream over TCP (RFC 7766) or TLS (RFC 7858), shared by many queries at a time.
//
//	carry ─ place: an ID on a connection ─ outbox ─ Flush: one write for a batch ─► upstream
//	                                                                                   │
//	try.carried, for each ◄─ unlocked ─ ID, question: all that one read brought ◄──────┘
//
// One lock guards all of it and is never held over I/O, nor while anybody is told what came. A query costs no
// goroutine, timer or channel: a connection has a goroutine that reads, one that writes what the kernel did not take at
// once, and a timer for the moments when something may be due.
type connPool struct {
	*common
	addr      netip.AddrPort
	count     *counters
	tlsClient *tlsClient // nil: plain TCP
	keepOpen  bool       // keep all connections open while queries come

	mu          sync.Mutex    // guards the fields below, and line's where it says so
	conns       []*streamConn // opening or open; those that have failed are not here
	opened      uint64        // ever, which numbers the connections
	uses        uint64        // queries ever placed, which says whose turn it is
	lastQuery   time.Time     // when a query last came
	openLimiter openLimiter
	ids         idSource
	lastErr     error // of the latest connection that ended before an answer came on it; nil once one has come
	noIdle      bool  // keep no connection without a query
	closed      bool  // the upstream is no longer one: take no query
	running     int   // connections whose goroutines run
	cond        sync.Cond
}

// newLines makes the carrier for TCP or, where the target says so, TLS. For a target of UDP it is there for what comes
// truncated, and opens no connection ahead. It opens nothing yet.
func newConnPool(c *common, t Target, count *counters) *connPool {
	p := &connPool{common: c, addr: t.Addr, count: count, keepOpen: t.Network != "udp"}
	p.cond.L = &p.mu
	p.ids.random = c.rand
	if t.Network == "tls" {
		p.tlsClient = newTLSClient(c, t, count, "dot")
	}
	return p
}

// carry puts the query on a connection.
func (p *connPool) send(a *attempt, batch *wire.SendBatch) error {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastQuery = now
	a.pending.retried = false
	return p.assignLocked(now, a, 0, batch)
}

// placeLocked gives the query a place on a connection numbered above after.
func (p *connPool) assignLocked(now time.Time, a *attempt, after uint64, batch *wire.SendBatch) error {
	if p.closed {
		return errRemoved
	}
	c := p.pickLocked(now, after, len(a.query)+maxPadding, batch)
	if (c == nil || c.stalledLocked(now)) && p.dropSilentLocked(now) {
		c = p.pickLocked(now, after, len(a.query)+maxPadding, batch)
	}
	var refused error
	if p.countYoungLocked() < p.targetConnsLocked(now, c) {
		var opened *streamConn
		if opened, refused = p.openForQueryLocked(now, a); opened != nil {
			c = opened
		}
	}
	if c == nil {
		return fmt.Errorf("finding a connection: %w", cmp.Or(refused, errLimit))
	}
	return c.addLocked(now, a, batch)
}

// roomLocked is how many connections there may be with another one for a query that could go on l, if there is such an
// l. One that does nothing is not left aside, nor one that is aged, whose successor is on the way. Where none is of use,
// there may be one more than are meant to be.
func (p *connPool) targetConnsLocked(now time.Time, c *streamConn) int {
	switch {
	case c == nil || c.stalledLocked(now):
		return p.connections + 1
	case c.queries.n > 0 && !c.aged:
		return p.connections
	}
	return 0
}

// youngLocked counts the connections that have not come to their age.
func (p *connPool) countYoungLocked() int {
	n := 0
	for _, c := range p.conns {
		if !c.aged {
			n++
		}
	}
	return n
}

// pickLocked finds the best connection that has room for a query of so many octets: of those of the best rank the one
// with the fewest queries, then the one whose turn is the longest ago, so that none is idle while others work. The first
// few queries of a batch keep together: they share a write then.
func (p *connPool) pickLocked(now time.Time, after uint64, octets int, batch *wire.SendBatch) *streamConn {
	var best *streamConn
	bestRank := rankNone
	for _, c := range p.conns {
		if c.number <= after || c.queries.n >= maxInflight || len(c.outbox)+2+octets > maxOutbox {
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
	return best
}

func (c *streamConn) rankLocked(now time.Time) int { return c.rank(c.stalledLocked(now)) }

// beforeLocked tells which of two connections of one rank takes the query.
func (c *streamConn) lessUsedLocked(other *streamConn) bool {
	if c.queries.n != other.queries.n {
		return c.queries.n < other.queries.n
	}
	return c.lastUse < other.lastUse
}

// dropSilentLocked makes room where all connections are taken: those go that have been silent for too long. Queries
// that never pause would keep them otherwise, and a peer that hangs in them would be lost while it serves others.
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

// drop takes the query off its connection, if it is still there. What is malformed ends the wait, so there is nothing
// to tell.
func (p *connPool) cancel(a *attempt) error {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := a.pending.conn; c != nil {
		c.removeLocked(now, a)
		c.owesAnswer = true
		c.checkIdleLocked(now)
	}
	return nil
}

// leave is retire for an upstream that nobody may ask any more.
func (p *connPool) shutdown() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.closeIdle()
}

// retire closes idle connections now, and the others after their last query.
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

// wait returns when no connection is left, nor a goroutine of one.
func (p *connPool) wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.running > 0 {
		p.cond.Wait()
	}
}

// open counts the connections.
func (p *connPool) openCount() (now int, ever uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns), p.opened
}

// lastError says why the latest connection ended before an answer came on it. It is empty once an answer has come on
// any.
func (p *connPool) lastError() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lastErr == nil {
		return ""
	}
	return p.lastErr.Error()
}

// calls are the queries on one connection by their ID. A query stands in the slot that the low bits of its ID name, and
// an ID whose slot is taken is not given out; at least half of the slots are free, so there is always one to be found.
type idTable struct {
	slots []*attempt // a power of two of them, at least twice n
	n     int
}

const minSlots = 32

// at is the query with the ID, or nil.
func (q *idTable) lookup(id uint16) *attempt {
	if len(q.slots) == 0 {
		return nil
	}
	a := q.slots[int(id)&(len(q.slots)-1)]
	if a == nil || a.pending.id != id {
		return nil
	}
	return a
}

// put adds a query under an ID that it draws.
func (q *idTable) add(a *attempt, ids *idSource) error {
	if 2*(q.n+1) > len(q.slots) {
		q.grow()
	}
	id := uint16(0)
	for range 4 { // all taken: a chance of 1 in 16 at worst
		var err error
		if id, err = ids.next(); err != nil {
			return err
		}
		if q.slots[int(id)&(len(q.slots)-1)] == nil {
			break
		}
	}
	for q.slots[int(id)&(len(q.slots)-1)] != nil {
		id++
	}
	a.pending.id = id
	q.slots[int(id)&(len(q.slots)-1)] = a
	q.n++
	return nil
}

// grow doubles the slots. What had one of its own still has.
func (q *idTable) grow() {
	before := q.slots
	q.slots = make([]*attempt, max(2*len(before), minSlots))
	for _, a := range before {
		if a != nil {
			q.slots[int(a.pending.id)&(len(q.slots)-1)] = a
		}
	}
}

// remove takes out a query that is in.
func (q *idTable) remove(a *attempt) {
	q.slots[int(a.pending.id)&(len(q.slots)-1)] = nil
	q.n--
}

// draws are random numbers, read from their source many at once: a read costs more than they do.
type idSource struct {
	random io.Reader
	buf    [256]byte
	unused []byte // of buf
}

// next is 16 random bits.
func (d *idSource) next() (uint16, error) {
	if len(d.unused) < 2 {
		if _, err := io.ReadFull(d.random, d.buf[:]); err != nil {
			return 0, fmt.Errorf("drawing an ID: %w", err)
		}
		d.unused = d.buf[:]
	}
	bits := binary.BigEndian.Uint16(d.unused)
	d.unused = d.unused[2:]
	return bits, nil
}

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
