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
	maxConnections  = 16              // the most that a configuration may ask for
	maxInflight     = 1024            // queries on one connection
	maxOutbox       = 1 << 18         // bytes waiting to be written on one connection
	maxBatchPerConn = 16              // queries of a batch on one connection before the next one is used
	dialTimeout     = 3 * time.Second // for the handshakes of TCP and TLS together
	writeTimeout    = 3 * time.Second // for one write; a peer that does not read is gone
	dropSilentAfter = 3 * time.Second // a connection that owes an answer and is silent for so long may be replaced
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

// A connPool holds the connections to one upstream over TCP (RFC 7766) or TLS (RFC 7858). Many queries share each
// connection.
//
//	send ─ assign: an ID on a connection ─ outbox ─ Flush: one write per batch ─► upstream
//	                                                                                 │
//	attempt.deliver, for each ◄─ unlocked ─ match ID and question of one read ◄──────┘
//
// One lock guards all of it. It is never held during I/O or callbacks. A query costs no goroutine, timer or channel.
// A connection has one goroutine that reads, one that writes what the kernel did not accept at once, and one timer.
type connPool struct {
	*common
	addr      netip.AddrPort
	count     *counters
	tlsClient *tlsClient // nil: plain TCP
	keepOpen  bool       // keep all connections open while queries come

	mu          sync.Mutex    // guards the fields below, and those of streamConn where it says so
	conns       []*streamConn // opening or open, without those that failed
	opened      uint64        // connections ever opened; numbers them
	uses        uint64        // queries ever assigned; orders connections by last use
	lastQuery   time.Time     // when a query last came
	openLimiter openLimiter
	ids         idSource
	lastErr     error // of the latest connection that ended before an answer came on it; nil once one has come
	noIdle      bool  // close connections after their last query
	closed      bool  // the upstream was removed: refuse queries
	running     int   // connections whose goroutines run
	cond        sync.Cond
}

// newConnPool makes the transport for TCP or, if the target says so, TLS. For a UDP target it serves truncated
// answers only and opens no connections in advance. It opens nothing yet.
func newConnPool(c *common, t Target, count *counters) *connPool {
	p := &connPool{common: c, addr: t.Addr, count: count, keepOpen: t.Network != "udp"}
	p.cond.L = &p.mu
	p.ids.random = c.rand
	if t.Network == "tls" {
		p.tlsClient = newTLSClient(c, t, count, "dot")
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
		return fmt.Errorf("choosing a connection: %w", cmp.Or(refused, errLimit))
	}
	return c.addLocked(now, a, batch)
}

// targetConnsLocked returns how many connections there may be, including a new one for a query that could use c; c
// may be nil. An idle connection is always used, and so is an aged one, whose replacement is being opened. If no
// connection is usable there may be one more than configured.
func (p *connPool) targetConnsLocked(now time.Time, c *streamConn) int {
	switch {
	case c == nil || c.stalledLocked(now):
		return p.connections + 1
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

// pickLocked returns the best connection with room for a query of size bytes, nil if there is none. Within the best
// rank it prefers fewer queries, then the one unused for longest, so that no connection is idle while others work.
// The first few queries of a batch stay together, to share a write.
func (p *connPool) pickLocked(now time.Time, after uint64, size int, batch *wire.SendBatch) *streamConn {
	var best *streamConn
	bestRank := rankNone
	for _, c := range p.conns {
		if c.number <= after || c.queries.n >= maxInflight || len(c.outbox)+2+size > maxOutbox {
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

// lessUsedLocked reports whether c, of two connections of one rank, takes the query.
func (c *streamConn) lessUsedLocked(other *streamConn) bool {
	if c.queries.n != other.queries.n {
		return c.queries.n < other.queries.n
	}
	return c.lastUse < other.lastUse
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

// cancel removes the query from its connection. A malformed answer ends an attempt over TCP, so there is none to
// return.
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

// An idTable holds the queries on one connection by ID. The low bits of an ID select the slot. At least half of the
// slots are free, and an ID whose slot is taken is not used.
type idTable struct {
	slots []*attempt // a power of two, at least twice n
	n     int
}

const minSlots = 32

// lookup returns the query with the ID, or nil.
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

// add adds a query under a random ID.
func (q *idTable) add(a *attempt, ids *idSource) error {
	if 2*(q.n+1) > len(q.slots) {
		q.grow()
	}
	id := uint16(0)
	for range 4 { // all four taken: a chance of 1 in 16 at worst
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

// grow doubles the slots. IDs in different slots stay in different slots.
func (q *idTable) grow() {
	before := q.slots
	q.slots = make([]*attempt, max(2*len(before), minSlots))
	for _, a := range before {
		if a != nil {
			q.slots[int(a.pending.id)&(len(q.slots)-1)] = a
		}
	}
}

// remove removes a query that is in the table.
func (q *idTable) remove(a *attempt) {
	q.slots[int(a.pending.id)&(len(q.slots)-1)] = nil
	q.n--
}

// An idSource returns random numbers. It reads many from its source at once, as each read is expensive.
type idSource struct {
	random io.Reader
	buf    [256]byte
	unused []byte // part of buf
}

// next returns 16 random bits.
func (d *idSource) next() (uint16, error) {
	if len(d.unused) < 2 {
		if _, err := io.ReadFull(d.random, d.buf[:]); err != nil {
			return 0, fmt.Errorf("reading random numbers: %w", err)
		}
		d.unused = d.buf[:]
	}
	bits := binary.BigEndian.Uint16(d.unused)
	d.unused = d.unused[2:]
	return bits, nil
}

// How often connections are opened.
const (
	openInterval   = 50 * time.Millisecond // between two connections in the long run
	openBurst      = 3 * maxConnections    // connections at once
	preopenReserve = openBurst / 2         // of the burst, reserved for queries that wait
)

// An openLimiter is a token bucket for opening connections. Neither clients nor upstreams can cause connections to be
// opened faster.
type openLimiter struct {
	fullAt time.Time // when the whole burst is available again
}

// allow reports whether a connection may be opened now so that keep tokens are left, and if so takes one.
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
