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

// sessions are the connections to one upstream over HTTPS (RFC 8484), which is HTTP/2 and nothing older. Each query is a
// request with a goroutine of its own, as net/http will have it; there are at most maxInflight.
//
//	carry ─ queue ─ Flush ─ a goroutine: join a session, ask, read ─ try.carried
//
// The lock is held neither over I/O nor while anybody is told what came.
type httpsPool struct {
	*common
	target    Target
	tlsClient *tlsClient
	count     *counters

	mu          sync.Mutex    // guards the fields below, and session's where it says so
	queue       []*dohRequest // to be started by the next flush
	inFlight    int           // requests, those in the queue included
	conns       []*httpsConn  // opening or open
	opened      uint64        // sessions ever, which numbers them
	uses        uint64        // requests ever, which says whose turn it is
	lastQuery   time.Time     // when a query last came
	openLimiter openLimiter
	ids         idSource
	lastErr     error // of the latest session that ended before an answer came on it; nil once one has come
	noIdle      bool
	closed      bool
	running     int // requests that run, and sessions that are not closed yet
	cond        sync.Cond
}

// A request is one query under way.
type dohRequest struct {
	ctx     context.Context //nolint:containedctx // it is the request's own, from carry to its goroutine
	cancel  context.CancelFunc
	attempt *attempt
	msg     []byte // with ID 0 (RFC 8484 section 4.1)
}

// newHTTPS makes the carrier for HTTPS. It opens nothing yet.
func newHTTPSPool(c *common, t Target, count *counters) *httpsPool {
	p := &httpsPool{common: c, target: t, count: count, tlsClient: newTLSClient(c, t, count, "h2")}
	if p.target.Path == "" {
		p.target.Path = "/dns-query"
	}
	p.cond.L = &p.mu
	p.ids.random = c.rand
	return p
}

// carry takes the query for a request that the next flush starts.
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

// Flush starts the requests of a batch.
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

// drop ends the query's request.
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

// run does one request and tells what came.
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

// endOne counts a goroutine or a session that has ended.
func (p *httpsPool) finishOne() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running--; p.running == 0 {
		p.cond.Broadcast()
	}
}

// leave is retire for an upstream that nobody may ask any more.
func (p *httpsPool) shutdown() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.closeIdle()
}

// retire closes idle sessions now, and the others after their last request.
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

// wait returns when no request and no session is left.
func (p *httpsPool) wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.running > 0 {
		p.cond.Wait()
	}
}

// open counts the sessions.
func (p *httpsPool) openCount() (now int, ever uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns), p.opened
}

// lastError says why the latest session ended before an answer came on it. It is empty once an answer has come on any.
func (p *httpsPool) lastError() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lastErr == nil {
		return ""
	}
	return p.lastErr.Error()
}

const dnsMessage = "application/dns-message" // RFC 8484 section 6

// errStatus marks answers of HTTP that are none of DNS.
var errStatus = errors.New("no answer but an HTTP status")

// ask does a request and reads what came. A session that was open before and dies under the request may only have come
// to its end by age: the request then gets one more chance, on a newer one.
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
		return reply{err: fmt.Errorf("%w: another question or ID", errMalformed)}
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

// lessAge takes the time that the answer has been in caches of HTTP off its TTLs (RFC 8484 section 5.1). age is in
// seconds.
func subtractAge(m *wire.Message, age uint32) {
	if age == 0 {
		return
	}
	for _, r := range m.Records {
		ttl := m.RecordTTL(r)
		m.SetRecordTTL(r, ttl-min(ttl, age))
	}
}

// A body is what HTTP brought.
type httpBody struct {
	msg []byte
	age uint32 // in seconds
}

// askOnce does the request on a session numbered above after.
func (p *httpsPool) doOnce(r *dohRequest, after uint64) (httpBody, connSlot, error) {
	now := p.now()
	p.mu.Lock()
	slot, err := p.acquireLocked(now, r.attempt, after)
	p.mu.Unlock()
	if err != nil {
		return httpBody{}, slot, err
	}
	heard := false
	defer func() { slot.conn.releaseSlot(heard) }()
	select {
	case <-slot.conn.ready:
	case <-r.ctx.Done():
		return httpBody{}, slot, fmt.Errorf("waiting for a session: %w", r.ctx.Err())
	}
	if slot.conn.client == nil {
		return httpBody{}, slot, fmt.Errorf("%w: %w", errDied, slot.conn.endReason())
	}
	body, err := p.roundTrip(r, slot.conn.client)
	heard = err == nil || errors.Is(err, errStatus) || errors.Is(err, errMalformed)
	if heard {
		slot.conn.recordAnswer()
	}
	return body, slot, err
}

// why is the reason for the session's end.
func (c *httpsConn) endReason() error {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	return c.err
}

// roundTrip sends the request and reads the response.
func (p *httpsPool) roundTrip(r *dohRequest, conn *http.ClientConn) (httpBody, error) {
	req, err := p.newRequest(r.ctx, appendPadded(nil, r.msg))
	if err != nil {
		return httpBody{}, fmt.Errorf("making a request: %w", err)
	}
	resp, err := conn.RoundTrip(req)
	if err != nil {
		return httpBody{}, requestError(r.ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return httpBody{}, fmt.Errorf("%w: %d", errStatus, resp.StatusCode)
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || kind != dnsMessage {
		return httpBody{}, fmt.Errorf("%w: 200, and not with a DNS message", errStatus)
	}
	msg, err := io.ReadAll(io.LimitReader(resp.Body, wire.MaxMessage+1))
	if err != nil {
		return httpBody{}, requestError(r.ctx, err)
	}
	if len(msg) > wire.MaxMessage {
		p.count.failures[CauseMalformed].Add(1)
		return httpBody{}, fmt.Errorf("%w: longer than a DNS message", errMalformed)
	}
	age, err := strconv.ParseUint(resp.Header.Get("Age"), 10, 32)
	if err != nil {
		age = 0 // as if there were none (RFC 9111 section 5.1)
	}
	return httpBody{msg: msg, age: uint32(age)}, nil
}

// message is the request for a query.
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
	req.Header["User-Agent"] = []string{""} // nothing is sent then: it says nothing about who asks
	return req, nil
}

// requestFault is what became of a request that got no response.
func requestError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("waiting for an answer: %w", ctx.Err())
	}
	return fmt.Errorf("%w: %w", errDied, err)
}
