// SPDX-License-Identifier: Apache-2.0

package healthcheck_test

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/healthcheck"
)

// A server answers over pipes, so that time can be virtual.
type server struct {
	serving sync.WaitGroup

	mu     sync.Mutex // guards what follows
	asked  []time.Time
	over   []string // the network of each
	answer func(network string, q *dns.Msg) *dns.Msg
	takes  time.Duration
	refuse error // of connecting
}

// records is a good answer.
func records(_ string, q *dns.Msg) *dns.Msg {
	r := new(dns.Msg).SetReply(q)
	r.Answer = append(r.Answer, &dns.A{
		Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 30}, A: net.IPv4(192, 0, 2, 1),
	})
	return r
}

// with is an answer with a response code and no record.
func with(rcode int) func(string, *dns.Msg) *dns.Msg {
	return func(_ string, q *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(q, rcode) }
}

// become changes what the server answers from now on, and how long that takes.
func (s *server) become(answer func(string, *dns.Msg) *dns.Msg, takes time.Duration, refuse error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer, s.takes, s.refuse = answer, takes, refuse
}

// dial connects to the server, which takes one query of each connection.
func (s *server) dial(_ context.Context, network string, _ netip.AddrPort) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		s.asked = append(s.asked, time.Now())
		return nil, s.refuse
	}
	near, far := net.Pipe()
	s.serving.Go(func() { s.serve(network, &dns.Conn{Conn: far}) })
	return near, nil
}

func (s *server) serve(network string, c *dns.Conn) {
	defer func() { _ = c.Close() }()
	q, err := c.ReadMsg()
	if err != nil {
		return
	}
	s.mu.Lock()
	s.asked, s.over = append(s.asked, time.Now()), append(s.over, network)
	answer, takes := s.answer, s.takes
	s.mu.Unlock()
	time.Sleep(takes)
	if answer != nil {
		if r := answer(network, q); r != nil {
			_ = c.WriteMsg(r)
		}
		return
	}
	_, _ = c.Write([]byte("no message")) // of 10 bytes, too short for a header
}

// since is when the server was asked, from a moment on.
func (s *server) since(from time.Time) (list []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.asked {
		list = append(list, at.Sub(from))
	}
	return list
}

// config is a probe of s.
func config(s *server) healthcheck.Config {
	return healthcheck.Config{
		Label: "web", Network: "udp", Server: netip.MustParseAddrPort("192.0.2.53:53"), Name: "www.example.", Type: dns.TypeA,
		Interval: 5 * time.Second, Timeout: time.Second, Now: time.Now, Dial: s.dial,
	}
}

// start runs a prober until stop is called.
func start(t *testing.T, cfg healthcheck.Config) (p *healthcheck.Prober, stop func()) {
	t.Helper()
	p, err := healthcheck.New(cfg)
	assert.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	return p, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}
