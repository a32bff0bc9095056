// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of the connections to one upstream.
const (
	maxConnections = 16                     // that may be asked for
	maxInflight    = 1024                   // queries on one connection
	maxOutbox      = 1 << 18                // octets waiting to be written on one connection
	dialTimeout    = 3 * time.Second        // for the handshake
	writeTimeout   = 3 * time.Second        // for one write; a peer that does not read is gone
	idleTimeout    = 10 * time.Second       // without a query in flight
	stallTime      = 800 * time.Millisecond // owes an answer and is silent: not for new queries
	silenceTime    = 3 * time.Second        // owes an answer and is silent: makes way for another
)

var (
	// errDied marks the errors of a connection that ended with queries on it.
	errDied = errors.New("connection ended")
	// errLeft is what a query gets from an upstream that fell out of the list.
	errLeft = fmt.Errorf("upstream has left: %w", errLimit)
)

// streams are the TCP connections to one upstream (RFC 7766): opened on demand,
// shared by many queries at a time, closed when idle.
//
//	ask ─ join: a place on a connection ─ outbox ─► writer ─► upstream
//	 ▲                                                           │
//	 └───────── the call's channel ◄── reader: ID, question ◄────┘
//
// One lock guards all of it and is never held over I/O.
type streams struct {
	*common
	addr  netip.AddrPort
	count *counters

	mu      sync.Mutex // guards the fields below, and conn's where it says so
	conns   []*conn    // opening or open, at most one more than connections
	opened  uint64     // ever, which numbers the connections
	retired bool       // keep no connection without a query
	left    bool       // the upstream is no longer one: take no query

	running sync.WaitGroup // connections opened before retired was set
}

// A call is one query on one connection.
type call struct {
	conn   *conn
	id     uint16
	query  []byte     // with this ID; not written to after join
	reused bool       // the connection was open before the query came
	newest uint64     // number of the newest connection then
	done   chan reply // has room for the one reply
}

// A reply is a checked answer, or the reason why there is none.
type reply struct {
	answer answer
	err    error
}

// ask sends q over a connection and waits for its answer. A connection that was
// open before and dies under the query may only have come to its end by age: the
// query then gets one more chance, on a newer one. opened counts the connections
// opened for this client query.
func (s *streams) ask(ctx context.Context, q []byte, opened *atomic.Int32) (answer, error) {
	c, err := s.join(ctx, q, 0, opened)
	if err != nil {
		return answer{}, err
	}
	r := s.await(ctx, c)
	if !c.reused || !errors.Is(r.err, errDied) || ctx.Err() != nil {
		return r.answer, r.err
	}
	if c, err = s.join(ctx, q, c.newest, opened); err != nil {
		return answer{}, err
	}
	r = s.await(ctx, c)
	return r.answer, r.err
}

// join gives q a place and an ID on a connection numbered above after.
func (s *streams) join(ctx context.Context, q []byte, after uint64, opened *atomic.Int32) (*call, error) {
	var ids [16]byte // eight random IDs: one is not in use, but for a chance of 1 in 2^48
	if _, err := io.ReadFull(s.rand, ids[:]); err != nil {
		return nil, fmt.Errorf("drawing an ID: %w", err)
	}
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left {
		return nil, errLeft
	}
	c := s.pickLocked(now, after, len(q))
	if (c == nil || c.stalledLocked(now)) && s.dropSilentLocked(now) {
		c = s.pickLocked(now, after, len(q))
	}
	if len(s.conns) < s.roomLocked(now, c) && opened.Add(1) <= maxConns {
		c = s.openLocked(ctx)
	}
	if c == nil {
		return nil, fmt.Errorf("finding a connection: %w", errLimit)
	}
	return c.addLocked(now, q, ids[:])
}

// roomLocked is how many connections there may be with another one for a query
// that could go on c, if there is such a c. One that does nothing is not left
// aside. Where none is of use, there may be one more than are meant to be.
func (s *streams) roomLocked(now time.Time, c *conn) int {
	switch {
	case c == nil || c.stalledLocked(now):
		return s.connections + 1
	case len(c.calls) > 0:
		return s.connections
	}
	return 0
}

// pickLocked finds the connection with the fewest queries that has room for one
// of so many octets. One that is stalled is taken only if there is no other.
func (s *streams) pickLocked(now time.Time, after uint64, octets int) *conn {
	var best, stalled *conn
	for _, c := range s.conns {
		switch {
		case c.number <= after || len(c.calls) >= maxInflight || len(c.outbox)+2+octets > maxOutbox:
		case c.stalledLocked(now):
			stalled = c
		case best == nil || len(c.calls) < len(best.calls):
			best = c
		}
	}
	return cmp.Or(best, stalled)
}

// dropSilentLocked makes room where all connections are taken: those go that have
// been silent for too long. Queries that never pause would keep them otherwise,
// and a peer that hangs in them would be lost while it serves others.
func (s *streams) dropSilentLocked(now time.Time) (dropped bool) {
	if len(s.conns) <= s.connections {
		return false
	}
	for _, c := range slices.Clone(s.conns) {
		if c.silentLocked(now, silenceTime) {
			c.failLocked(errSilent)
			dropped = true
		}
	}
	return dropped
}

// openLocked adds a connection and starts its goroutine, which ends when the
// connection has failed: by itself, when idle, or when retired.
func (s *streams) openLocked(ctx context.Context) *conn {
	s.opened++
	// Other queries will ride on it: it does not end with the one that opens it.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &conn{
		streams: s, number: s.opened, cancel: cancel,
		wake: make(chan struct{}, 1), ended: make(chan struct{}), calls: map[uint16]*call{},
	}
	s.conns = append(s.conns, c)
	if s.retired {
		go c.run(ctx) // joined by await
	} else {
		s.running.Go(func() { c.run(ctx) }) // joined by wait
	}
	return c
}

// await waits for the reply to a call, or gives the call up with ctx.
func (s *streams) await(ctx context.Context, c *call) reply {
	var r reply
	select {
	case r = <-c.done:
	case <-ctx.Done():
		r.err = fmt.Errorf("waiting for an answer: %w", ctx.Err())
	}
	s.mu.Lock()
	c.conn.abandonLocked(c)
	ending := s.retired && c.conn.err != nil
	s.mu.Unlock()
	if ending {
		<-c.conn.ended
	}
	return r
}

// leave is retire for an upstream that nobody may ask any more.
func (s *streams) leave() {
	s.mu.Lock()
	s.left = true
	s.mu.Unlock()
	s.retire()
}

// retire closes idle connections now, and the others after their last query.
func (s *streams) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = true
	for _, c := range slices.Clone(s.conns) {
		if len(c.calls) == 0 {
			c.failLocked(errRetired)
		}
	}
}

// wait returns when the connections of a retired upstream are gone.
func (s *streams) wait() { s.running.Wait() }

func (s *streams) stats() (open int, opened uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns), s.opened
}
