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
type lines struct {
	dial dialFunc
	now  func() time.Time

	mu   sync.Mutex // guards open
	open map[*line]struct{}
}

// A line is one connection.
type line struct {
	net.Conn
	lines *lines
	heard atomic.Int64 // last time something was read or it was opened; Unix nanoseconds
}

func newLines(dial dialFunc, now func() time.Time) *lines {
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext
	}
	return &lines{dial: dial, now: now, open: make(map[*line]struct{})}
}

// dialContext opens a connection and keeps account of it until it is closed.
func (l *lines) dialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := l.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &line{Conn: conn, lines: l}
	c.heard.Store(l.now().UnixNano())
	l.mu.Lock()
	l.open[c] = struct{}{}
	l.mu.Unlock()
	return c, nil
}

// Read notes that the other side lives.
func (c *line) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.heard.Store(c.lines.now().UnixNano())
	}
	return n, err
}

// Close ends the account.
func (c *line) Close() error {
	c.lines.mu.Lock()
	delete(c.lines.open, c)
	c.lines.mu.Unlock()
	return c.Conn.Close()
}

// closeSilent closes the connections that were not heard since then.
func (l *lines) closeSilent(since time.Time) {
	l.mu.Lock()
	var silent []*line
	for c := range l.open {
		if c.heard.Load() < since.UnixNano() {
			silent = append(silent, c)
		}
	}
	l.mu.Unlock()
	for _, c := range silent {
		_ = c.Close() // it is given up
	}
}
