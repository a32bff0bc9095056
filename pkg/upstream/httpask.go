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
func (s *sessions) ask(r *request) (got received) {
	defer s.recovered(r.ctx, func() { got = received{err: errPanic} })
	msg, at, err := s.askOnce(r, 0)
	if at.reused && errors.Is(err, errDied) && r.ctx.Err() == nil {
		msg, _, err = s.askOnce(r, at.newest)
	}
	if err != nil {
		return received{err: err}
	}
	if !wire.Answers(r.sent, msg.body) {
		s.count.failures[CauseMismatch].Add(1)
		return received{err: fmt.Errorf("%w: another question or ID", errMalformed)}
	}
	m := new(wire.Message)
	err = m.Parse(msg.body)
	if err == nil && m.Truncated() {
		err = errors.New("truncated over HTTPS")
	}
	if err != nil {
		s.count.failures[CauseMalformed].Add(1)
		return received{err: fmt.Errorf("%w: %w", errMalformed, err)}
	}
	lessAge(m, msg.age)
	return received{m: m}
}

// lessAge takes the time that the answer has been in caches of HTTP off its TTLs (RFC 8484 section 5.1). age is in
// seconds.
func lessAge(m *wire.Message, age uint32) {
	if age == 0 {
		return
	}
	for _, r := range m.Records {
		ttl := m.RecordTTL(r)
		m.SetRecordTTL(r, ttl-min(ttl, age))
	}
}

// A body is what HTTP brought.
type body struct {
	body []byte
	age  uint32 // in seconds
}

// askOnce does the request on a session numbered above after.
func (s *sessions) askOnce(r *request, after uint64) (body, seat, error) {
	now := s.now()
	s.mu.Lock()
	at, err := s.joinLocked(now, r.t, after)
	s.mu.Unlock()
	if err != nil {
		return body{}, at, err
	}
	heard := false
	defer func() { at.session.part(heard) }()
	select {
	case <-at.session.ready:
	case <-r.ctx.Done():
		return body{}, at, fmt.Errorf("waiting for a session: %w", r.ctx.Err())
	}
	if at.session.conn == nil {
		return body{}, at, fmt.Errorf("%w: %w", errDied, at.session.why())
	}
	b, err := s.roundTrip(r, at.session.conn)
	heard = err == nil || errors.Is(err, errStatus) || errors.Is(err, errMalformed)
	if heard {
		at.session.answered()
	}
	return b, at, err
}

// why is the reason for the session's end.
func (x *session) why() error {
	x.sessions.mu.Lock()
	defer x.sessions.mu.Unlock()
	return x.err
}

// roundTrip sends the request and reads the response.
func (s *sessions) roundTrip(r *request, conn *http.ClientConn) (body, error) {
	req, err := s.message(r.ctx, appendPadded(nil, r.sent))
	if err != nil {
		return body{}, fmt.Errorf("making a request: %w", err)
	}
	resp, err := conn.RoundTrip(req)
	if err != nil {
		return body{}, requestFault(r.ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return body{}, fmt.Errorf("%w: %d", errStatus, resp.StatusCode)
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || kind != dnsMessage {
		return body{}, fmt.Errorf("%w: 200, and not with a DNS message", errStatus)
	}
	msg, err := io.ReadAll(io.LimitReader(resp.Body, wire.MaxMessage+1))
	if err != nil {
		return body{}, requestFault(r.ctx, err)
	}
	if len(msg) > wire.MaxMessage {
		s.count.failures[CauseMalformed].Add(1)
		return body{}, fmt.Errorf("%w: longer than a DNS message", errMalformed)
	}
	age, err := strconv.ParseUint(resp.Header.Get("Age"), 10, 32)
	if err != nil {
		age = 0 // as if there were none (RFC 9111 section 5.1)
	}
	return body{body: msg, age: uint32(age)}, nil
}

// message is the request for a query.
func (s *sessions) message(ctx context.Context, q []byte) (*http.Request, error) {
	host := s.trust.name
	if port := s.target.Addr.Port(); port != 443 {
		host = net.JoinHostPort(host, strconv.Itoa(int(port)))
	} else if s.target.Name == "" && s.target.Addr.Addr().Is6() {
		host = "[" + host + "]"
	}
	u := url.URL{Scheme: "https", Host: host, Path: s.target.Path}
	var req *http.Request
	var err error
	if s.target.Method == http.MethodGet {
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
func requestFault(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("waiting for an answer: %w", ctx.Err())
	}
	return fmt.Errorf("%w: %w", errDied, err)
}
