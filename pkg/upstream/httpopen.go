// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"
)

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
