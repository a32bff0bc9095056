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
	"strconv"

	"github.com/nodecache/node-cache/pkg/wire"
)

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
