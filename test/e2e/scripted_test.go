// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
)

// scripted is an upstream whose answers a test writes. It keeps the queries it was sent.
type scripted struct {
	addr    string
	mu      sync.Mutex // guards queries
	queries []*dns.Msg
}

// startScripted answers UDP and TCP on one free port with what the handler writes.
func startScripted(t *testing.T, handle dns.HandlerFunc) *scripted {
	t.Helper()
	udp, tcp := listenBoth(t)
	s := &scripted{addr: udp.LocalAddr().String()}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		s.mu.Lock()
		s.queries = append(s.queries, q.Copy())
		s.mu.Unlock()
		handle(w, q)
	})
	for _, server := range []*dns.Server{{PacketConn: udp, Handler: handler}, {Listener: tcp, Handler: handler}} {
		started, done := make(chan struct{}), make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		go func() {
			defer close(done)
			_ = server.ActivateAndServe() // ends with the listener
		}()
		<-started
		t.Cleanup(func() {
			_ = server.Shutdown()
			<-done
		})
	}
	return s
}

// listenBoth opens a port that is free for UDP and for TCP. The kernel draws one that is free for UDP; connections that
// other tests have open may have it.
func listenBoth(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	for range 20 {
		udp, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if tcp, err := net.Listen("tcp4", udp.LocalAddr().String()); err == nil {
			return udp, tcp
		}
		_ = udp.Close()
	}
	t.Fatal("no port is free for both UDP and TCP")
	return nil, nil
}

// seen is a copy of the list of queries, without those that the agent sends of its own accord.
func (s *scripted) seen() []*dns.Msg {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.queries), func(q *dns.Msg) bool {
		name := strings.ToLower(q.Question[0].Name)
		return name == "." || strings.Contains(name, ".loop.node-cache.")
	})
}

// answerA answers every query with one address.
func answerA(w dns.ResponseWriter, q *dns.Msg) {
	r := new(dns.Msg).SetReply(q)
	r.RecursionAvailable = true
	if q.Question[0].Qtype == dns.TypeA {
		r.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60},
			A:   net.IPv4(192, 0, 2, 7),
		}}
	}
	_ = w.WriteMsg(r) // a client that has gone away is none of the upstream's business
}
