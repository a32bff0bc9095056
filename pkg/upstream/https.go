// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"github.com/nodecache/node-cache/pkg/remote"
	"github.com/nodecache/node-cache/pkg/wire"
)

const dnsMessage = "application/dns-message" // RFC 8484 section 6

// pingAfter is how long a connection receives no frame before HTTP/2 pings it. If no answer to the ping comes
// within pingAfter, the connection is closed.
const pingAfter = dropSilentAfter / 2

// An httpsConn is the link of an HTTP/2 connection (RFC 8484). Each query is a request with its own goroutine, as
// net/http requires.
type httpsConn struct {
	*conn
	client *http.ClientConn // set before open
	queue  []*attempt       // started by the next flush; guarded by connPool.mu
}

// newHTTPSPool makes the transport for HTTPS.
func newHTTPSPool(c *common, t Target, count *counters) *connPool {
	p := newConnPool(c, t, count, func(c *conn) link { return &httpsConn{conn: c} })
	p.tlsClient = newTLSClient(c, t, count, "h2")
	p.maxYoung, p.maxPending = 2*c.Connections+2, maxInflight // the peer may allow few requests on each
	return p
}

// fullLocked implements link.
func (h *httpsConn) fullLocked(int) bool { return false }

// blocked implements link: the peer allows no further request now, or is about to end the connection.
func (h *httpsConn) blocked() bool { return h.client.Available() == 0 }

// queueLocked implements link.
func (h *httpsConn) queueLocked(a *attempt, _ *wire.SendBatch) (first bool) {
	wire.SetID(a.sent, 0) // RFC 8484 section 4.1
	h.queue = append(h.queue, a)
	return len(h.queue) == 1
}

// start begins HTTP/2. Each connection has an http.Transport of its own.
func (h *httpsConn) start(ctx context.Context, nc net.Conn) (err error) {
	transport := &http.Transport{
		// nc is not wrapped: the transport inspects the protocol that TLS negotiated.
		DialTLSContext:         func(context.Context, string, string) (net.Conn, error) { return nc, nil },
		DisableCompression:     true,
		MaxResponseHeaderBytes: 16 << 10,
		Protocols:              new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			StrictMaxConcurrentRequests: true, // otherwise excess requests fail
			// 64 KiB hold any answer. By default a peer may send 4 MiB for each query, and 1 GiB in all, before they are read.
			MaxReceiveBufferPerStream:     64 << 10,
			MaxReceiveBufferPerConnection: 1 << 20,
			SendPingTimeout:               pingAfter,
			PingTimeout:                   pingAfter,
			WriteByteTimeout:              writeTimeout,
		},
	}
	transport.Protocols.SetHTTP2(true)
	h.client, err = transport.NewClientConn(ctx, "https", h.pool.target.Addr.String())
	return err
}

// serve waits until the peer or this process ends the connection.
func (h *httpsConn) serve(ctx context.Context, _ net.Conn) {
	ended := func(client *http.ClientConn) {
		if err := client.Err(); err != nil {
			h.fail(err)
		}
	}
	h.client.SetStateHook(ended)
	ended(h.client) // if it ended before the hook was set
	h.Flush()       //nolint:contextcheck // queries that came while it opened: each has its own context
	<-ctx.Done()
	_ = h.client.Close()
}

// Flush starts the queued requests.
func (h *httpsConn) Flush() {
	p := h.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if !h.open || h.err != nil {
		return
	}
	for _, a := range h.queue {
		if a.conn != h.conn {
			continue // canceled
		}
		ctx, cancel := context.WithCancel(context.Background())
		a.stop = cancel
		p.running++
		go h.do(ctx, cancel, a, wire.AppendPadded(nil, a.sent)) // joined by wait
	}
	clear(h.queue)
	h.queue = h.queue[:0]
}

// do makes one request and delivers the reply. If there is no response, the query moves to another connection once, see
// moveLocked.
func (h *httpsConn) do(ctx context.Context, cancel context.CancelFunc, a *attempt, query []byte) {
	p := h.pool
	defer p.goroutineEnded()
	defer cancel()
	defer p.recoverPanic(ctx, func() {})
	msg, age, err := h.roundTrip(ctx, query)
	var batch wire.SendBatch
	defer batch.Flush()
	if h.claim(a, &err, &batch) { //nolint:contextcheck // it may open the next connection, which outlives this one
		a.receiver.handleReply(a, p.parseResponse(a, msg, age, err), &batch)
	}
}

// claim ends a request, whose result is err. It reports whether the attempt must get the result. It must not if it was
// canceled, or has moved to another connection. If it could not move, err becomes the reason.
func (h *httpsConn) claim(a *attempt, err *error, batch *wire.SendBatch) bool {
	p := h.pool
	now := p.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.conn != h.conn {
		return false
	}
	a.stop = nil
	defer h.checkIdleLocked(now)
	if !errors.Is(*err, errDied) {
		h.removeLocked(now, a)
		h.heardLocked(now)
		h.answeredLocked(now)
		return true
	}
	h.owesAnswer = true
	*err = h.moveLocked(now, a, *err, batch)
	return *err != nil
}

// parseResponse parses the answer and checks it.
func (p *connPool) parseResponse(a *attempt, msg []byte, age uint32, err error) reply {
	m := new(wire.Message)
	switch {
	case err != nil && !errors.Is(err, errMalformed):
		return reply{err: err}
	case err != nil:
	case !wire.Answers(a.sent, msg):
		p.count.failures[CauseMismatch].Add(1)
		return reply{err: fmt.Errorf("%w: other question or ID", errMalformed)}
	default:
		if err = m.Parse(msg); err == nil && m.Truncated() {
			err = errors.New("truncated over HTTPS")
		}
	}
	if err != nil {
		p.count.failures[CauseMalformed].Add(1)
		return reply{err: fmt.Errorf("%w: %w", errMalformed, err)}
	}
	subtractAge(m, age)
	return reply{m: m}
}

// subtractAge subtracts the time that the answer spent in HTTP caches, in seconds, from its TTLs (RFC 8484 section
// 5.1).
func subtractAge(m *wire.Message, age uint32) {
	if age == 0 {
		return
	}
	for _, r := range m.Records {
		ttl := m.RecordTTL(r)
		m.SetRecordTTL(r, ttl-min(ttl, age))
	}
}

// roundTrip sends the request and reads the response. age is its Age header, in seconds. The error is errDied if there
// was no response.
func (h *httpsConn) roundTrip(ctx context.Context, query []byte) (msg []byte, age uint32, err error) {
	defer h.pool.recoverPanic(ctx, func() { err = fmt.Errorf("%w: %w", errDied, errPanic) })
	req, err := h.pool.newRequest(ctx, query)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: building a request: %w", errDied, err)
	}
	resp, err := h.client.RoundTrip(req)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errDied, remote.Error(err))
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, 0, fmt.Errorf("%w: status %d", errStatus, resp.StatusCode)
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || kind != dnsMessage {
		return nil, 0, fmt.Errorf("%w: wrong content type", errStatus)
	}
	msg, err = io.ReadAll(io.LimitReader(resp.Body, wire.MaxMessage+1))
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errDied, remote.Error(err))
	}
	if len(msg) > wire.MaxMessage {
		return nil, 0, fmt.Errorf("%w: longer than 65,535 bytes", errMalformed)
	}
	seconds, err := strconv.ParseUint(resp.Header.Get("Age"), 10, 32)
	if err != nil {
		seconds = 0 // RFC 9111 section 5.1: ignore it
	}
	return msg, uint32(seconds), nil
}

// newRequest builds the HTTP request for a query.
func (p *connPool) newRequest(ctx context.Context, q []byte) (*http.Request, error) {
	host := p.tlsClient.serverName
	if port := p.target.Addr.Port(); port != 443 {
		host = net.JoinHostPort(host, strconv.Itoa(int(port)))
	} else if p.target.Name == "" && p.target.Addr.Addr().Is6() {
		host = "[" + host + "]"
	}
	u := url.URL{Scheme: "https", Host: host, Path: cmp.Or(p.target.Path, "/dns-query")}
	var req *http.Request
	var err error
	if p.target.Method == http.MethodGet {
		u.RawQuery = "dns=" + base64.RawURLEncoding.EncodeToString(q)
		req, err = http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	} else {
		req, err = http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(q))
	}
	if err != nil {
		return nil, err
	}
	if req.Method == http.MethodPost {
		req.Header.Set("Content-Type", dnsMessage)
	}
	req.Header.Set("Accept", dnsMessage)
	req.Header["User-Agent"] = []string{""} // omits the header, which would identify the client
	return req, nil
}
