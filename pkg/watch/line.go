// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	dialTimeout = 5 * time.Second
	keepAlive   = 15 * time.Second
)

// dialFunc opens a connection.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// lines are the connections to the API server. All watches share one over HTTP/2, where client-go's pings find a dead
// one after 45 s. That is too late for a short limit of freshness, and pings are not seen by who waits for a watch: so each
// connection knows when it was last heard, and one that is silent when a watch is given up is closed, lest the next
// watch go down the same hole.
type connTracker struct {
	dial dialFunc
	now  func() time.Time

	mu   sync.Mutex // guards open
	open map[*trackedConn]struct{}
}

// A line is one connection.
type trackedConn struct {
	net.Conn
	tracker  *connTracker
	lastRead atomic.Int64 // last time something was read or it was opened; Unix nanoseconds
}

func newConnTracker(dial dialFunc, now func() time.Time) *connTracker {
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext
	}
	return &connTracker{dial: dial, now: now, open: make(map[*trackedConn]struct{})}
}

// dialContext opens a connection and keeps account of it until it is closed.
func (l *connTracker) dialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := l.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &trackedConn{Conn: conn, tracker: l}
	c.lastRead.Store(l.now().UnixNano())
	l.mu.Lock()
	l.open[c] = struct{}{}
	l.mu.Unlock()
	return c, nil
}

// Read notes that the other side lives.
func (c *trackedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.lastRead.Store(c.tracker.now().UnixNano())
	}
	return n, err
}

// Close ends the account.
func (c *trackedConn) Close() error {
	c.tracker.mu.Lock()
	delete(c.tracker.open, c)
	c.tracker.mu.Unlock()
	return c.Conn.Close()
}

// closeSilent closes the connections that were not heard since then.
func (l *connTracker) closeSilentSince(since time.Time) {
	l.mu.Lock()
	var silent []*trackedConn
	for c := range l.open {
		if c.lastRead.Load() < since.UnixNano() {
			silent = append(silent, c)
		}
	}
	l.mu.Unlock()
	for _, c := range silent {
		_ = c.Close() // it is given up
	}
}
