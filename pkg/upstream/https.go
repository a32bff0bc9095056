// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// An httpsPool holds the HTTP/2 connections to one upstream over HTTPS (RFC 8484). Each query is a request with its
// own goroutine, as net/http requires; there are at most maxInflight.
//
//	send ─ queue ─ Flush ─ goroutine: acquire a connection, request, read ─ attempt.deliver
//
// The lock is never held during I/O or callbacks.
type httpsPool struct {
	*common
	target    Target
	tlsClient *tlsClient
	count     *counters

	mu          sync.Mutex    // guards the fields below, and those of httpsConn where it says so
	queue       []*dohRequest // started by the next flush
	inFlight    int           // requests, including queued ones
	conns       []*httpsConn
	opened      uint64    // connections ever opened; numbers them
	uses        uint64    // requests ever assigned; orders connections by last use
	lastQuery   time.Time // when a query last came
	openLimiter openLimiter
	ids         idSource
	lastErr     error // of the latest connection that ended before an answer came on it; nil once one has come
	noIdle      bool
	closed      bool
	running     int // requests that run and connections that are not closed yet
	cond        sync.Cond
}

// A dohRequest is one pending query.
type dohRequest struct {
	ctx     context.Context //nolint:containedctx // it is the request's own, from carry to its goroutine
	cancel  context.CancelFunc
	attempt *attempt
	msg     []byte // with ID 0 (RFC 8484 section 4.1)
}

// newHTTPSPool makes the transport for HTTPS. It opens nothing yet.
func newHTTPSPool(c *common, t Target, count *counters) *httpsPool {
	p := &httpsPool{common: c, target: t, count: count, tlsClient: newTLSClient(c, t, count, "h2")}
	if p.target.Path == "" {
		p.target.Path = "/dns-query"
	}
	p.cond.L = &p.mu
	p.ids.random = c.rand
	return p
}

// send queues the query for the next flush.
func (p *httpsPool) send(a *attempt, batch *wire.SendBatch) error {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return errRemoved
	case p.inFlight >= maxInflight:
		return fmt.Errorf("starting a request: %w", errLimit)
	}
	r := &dohRequest{attempt: a, msg: slices.Clone(a.query)}
	wire.SetID(r.msg, 0)
	r.ctx, r.cancel = context.WithCancel(context.Background())
	a.pending.request = r
	p.lastQuery = now
	p.inFlight++
	p.queue = append(p.queue, r)
	if len(p.queue) == 1 {
		batch.Add(p)
	}
	return nil
}

// Flush starts the queued requests.
func (p *httpsPool) Flush() {
	p.mu.Lock()
	queue := p.queue
	p.queue = nil
	p.running += len(queue)
	p.mu.Unlock()
	for _, r := range queue {
		go p.run(r) // joined by wait
	}
}

// cancel cancels the query's request.
func (p *httpsPool) cancel(a *attempt) error {
	p.mu.Lock()
	r := a.pending.request
	a.pending.request = nil
	p.mu.Unlock()
	if r != nil {
		r.cancel()
	}
	return nil
}

// run does one request and delivers the reply.
func (p *httpsPool) run(r *dohRequest) {
	var batch wire.SendBatch
	defer p.finishOne()
	defer r.cancel()
	got := p.do(r)
	p.mu.Lock()
	p.inFlight--
	wanted := r.attempt.pending.request == r
	if wanted {
		r.attempt.pending.request = nil
	}
	p.mu.Unlock()
	if wanted {
		r.attempt.deliver(got, &batch)
		batch.Flush()
	}
}

// finishOne counts the end of a request or a connection.
func (p *httpsPool) finishOne() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running--; p.running == 0 {
		p.cond.Broadcast()
	}
}

// shutdown implements transport.
func (p *httpsPool) shutdown() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.closeIdle()
}

// closeIdle implements transport.
func (p *httpsPool) closeIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noIdle = true
	for _, c := range slices.Clone(p.conns) {
		if c.inFlight == 0 {
			c.endLocked(errShutdown)
		}
	}
}

// wait implements transport.
func (p *httpsPool) wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.running > 0 {
		p.cond.Wait()
	}
}

// openCount implements transport.
func (p *httpsPool) openCount() (now int, ever uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns), p.opened
}

// lastError returns why the latest connection ended before an answer came on it. It is empty once an answer has come
// on any connection.
func (p *httpsPool) lastError() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lastErr == nil {
		return ""
	}
	return p.lastErr.Error()
}

const dnsMessage = "application/dns-message" // RFC 8484 section 6

// errStatus marks HTTP responses that carry no DNS answer.
var errStatus = errors.New("HTTP response without a DNS answer")

// do does a request and reads the response. If a reused connection ends during the request, the server may just have
// closed it for its age: the request is retried once on a newer one.
func (p *httpsPool) do(r *dohRequest) (got reply) {
	defer p.recoverPanic(r.ctx, func() { got = reply{err: errPanic} })
	body, slot, err := p.doOnce(r, 0)
	if slot.reused && errors.Is(err, errDied) && r.ctx.Err() == nil {
		body, _, err = p.doOnce(r, slot.newest)
	}
	if err != nil {
		return reply{err: err}
	}
	if !wire.Answers(r.msg, body.msg) {
		p.count.failures[CauseMismatch].Add(1)
		return reply{err: fmt.Errorf("%w: other question or ID", errMalformed)}
	}
	m := new(wire.Message)
	err = m.Parse(body.msg)
	if err == nil && m.Truncated() {
		err = errors.New("truncated over HTTPS")
	}
	if err != nil {
		p.count.failures[CauseMalformed].Add(1)
		return reply{err: fmt.Errorf("%w: %w", errMalformed, err)}
	}
	subtractAge(m, body.age)
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

// An httpBody is the body of a response.
type httpBody struct {
	msg []byte
	age uint32 // of the Age header, in seconds
}

// doOnce does the request on a connection numbered above after.
func (p *httpsPool) doOnce(r *dohRequest, after uint64) (httpBody, connSlot, error) {
	now := p.now()
	p.mu.Lock()
	slot, err := p.acquireLocked(now, r.attempt, after)
	p.mu.Unlock()
	if err != nil {
		return httpBody{}, slot, err
	}
	responded := false
	defer func() { slot.conn.releaseSlot(responded) }()
	select {
	case <-slot.conn.ready:
	case <-r.ctx.Done():
		return httpBody{}, slot, fmt.Errorf("waiting for a connection: %w", r.ctx.Err())
	}
	if slot.conn.client == nil {
		return httpBody{}, slot, fmt.Errorf("%w: %w", errDied, slot.conn.endReason())
	}
	body, err := p.roundTrip(r, slot.conn.client)
	responded = err == nil || errors.Is(err, errStatus) || errors.Is(err, errMalformed)
	if responded {
		slot.conn.recordAnswer()
	}
	return body, slot, err
}

// endReason returns why the connection ended.
func (c *httpsConn) endReason() error {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	return c.err
}

// roundTrip sends the request and reads the response.
func (p *httpsPool) roundTrip(r *dohRequest, conn *http.ClientConn) (httpBody, error) {
	req, err := p.newRequest(r.ctx, appendPadded(nil, r.msg))
	if err != nil {
		return httpBody{}, fmt.Errorf("building a request: %w", err)
	}
	resp, err := conn.RoundTrip(req)
	if err != nil {
		return httpBody{}, requestError(r.ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return httpBody{}, fmt.Errorf("%w: status %d", errStatus, resp.StatusCode)
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || kind != dnsMessage {
		return httpBody{}, fmt.Errorf("%w: wrong content type", errStatus)
	}
	msg, err := io.ReadAll(io.LimitReader(resp.Body, wire.MaxMessage+1))
	if err != nil {
		return httpBody{}, requestError(r.ctx, err)
	}
	if len(msg) > wire.MaxMessage {
		p.count.failures[CauseMalformed].Add(1)
		return httpBody{}, fmt.Errorf("%w: longer than 65,535 bytes", errMalformed)
	}
	age, err := strconv.ParseUint(resp.Header.Get("Age"), 10, 32)
	if err != nil {
		age = 0 // RFC 9111 section 5.1: ignore it
	}
	return httpBody{msg: msg, age: uint32(age)}, nil
}

// newRequest builds the HTTP request for a query.
func (p *httpsPool) newRequest(ctx context.Context, q []byte) (*http.Request, error) {
	host := p.tlsClient.serverName
	if port := p.target.Addr.Port(); port != 443 {
		host = net.JoinHostPort(host, strconv.Itoa(int(port)))
	} else if p.target.Name == "" && p.target.Addr.Addr().Is6() {
		host = "[" + host + "]"
	}
	u := url.URL{Scheme: "https", Host: host, Path: p.target.Path}
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

// requestError classifies the error of a request without a response.
func requestError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("waiting for an answer: %w", ctx.Err())
	}
	return fmt.Errorf("%w: %w", errDied, err)
}
