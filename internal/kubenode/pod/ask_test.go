// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
)

// serveDNS answers over UDP: names that begin with lost not at all, with wrong by a denial.
func serveDNS(t *testing.T) (addr string) {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	assert.NoError(t, err)
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		switch name := q.Question[0].Name; {
		case strings.HasPrefix(name, "lost"):
			return
		case strings.HasPrefix(name, "wrong"):
			m.Rcode = dns.RcodeNameError
		default:
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(192, 0, 2, 1)}}
		}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = server.ActivateAndServe() }() // until it is shut down
	t.Cleanup(func() { _ = server.Shutdown() })
	return conn.LocalAddr().String()
}

func TestCountsWaitForQueriesUnderWay(t *testing.T) {
	t.Parallel()
	a := &client{
		server: serveDNS(t), asked: asking(t, "good.test,lost.test,wrong.test,good.test"),
		every: time.Hour, timeout: 300 * time.Millisecond, now: &epoch{},
	}
	// Four queries are sent, and their epoch ends before the lost one is known to be lost.
	for _, q := range a.asked {
		e := a.begin()
		go func() {
			defer e.inFlight.Done()
			e.udp.count(a.once("udp", q))
		}()
	}
	got := counted(t, a, http.MethodPost)["udp"]
	want := tally{Answered: 2, Lost: 1, Wrong: 1}
	assert.Same(t, "got", want, got, cmpopts.IgnoreFields(tally{}, "Slowest", "Failures"))
	if len(got.Failures) != 2 {
		t.Errorf("failures: got %q, want two", got.Failures)
	}
	if after := counted(t, a, http.MethodGet)["udp"]; after.Answered+after.Lost+after.Wrong > 0 {
		t.Errorf("the next epoch begins with %+v", after)
	}
}

func TestQuestions(t *testing.T) {
	t.Parallel()
	record := func(text string) dns.RR {
		rr, err := dns.NewRR(text)
		assert.NoError(t, err)
		return rr
	}
	for _, tt := range []struct {
		name, asked string
		answer      []string // records
		rcode       int
		want        error
	}{
		{name: "an address", asked: "a.test", answer: []string{"a.test. A 192.0.2.1"}},
		{name: "nothing", asked: "a.test", want: errWrong},
		{name: "a denial", asked: "a.test", answer: []string{"a.test. A 192.0.2.1"}, rcode: dns.RcodeNameError, want: errWrong},
		{name: "another type", asked: "a.test", answer: []string{"a.test. CNAME b.test."}, want: errWrong},
		{name: "a type", asked: "a.test/AAAA", answer: []string{"a.test. CNAME b.test.", "b.test. AAAA 2001:db8::1"}},
		{name: "what is wanted", asked: "a.test/AAAA/2001:db8::1", answer: []string{"a.test. AAAA 2001:db8::2", "a.test. AAAA 2001:db8::1"}},
		{name: "not what is wanted", asked: "a.test/AAAA/2001:db8::1", answer: []string{"a.test. AAAA 2001:db8::2"}, want: errWrong},
		{name: "a service", asked: "_a._tcp.test/SRV/0 100 53 b.test.", answer: []string{"_a._tcp.test. SRV 0 100 53 b.test."}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			q := asking(t, tt.asked)[0]
			m := new(dns.Msg).SetRcode(q.message(), tt.rcode)
			for _, text := range tt.answer {
				m.Answer = append(m.Answer, record(text))
			}
			if got := q.check(m); !errors.Is(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
	if _, err := questions("a.test/NOTHING"); err == nil {
		t.Error("a type that there is not is taken")
	}
}

func asking(t *testing.T, list string) []question {
	t.Helper()
	all, err := questions(list)
	assert.NoError(t, err)
	return all
}

func counted(t *testing.T, a *client, method string) map[string]tally {
	t.Helper()
	w := httptest.NewRecorder()
	a.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, "/counts", http.NoBody))
	var got map[string]tally
	assert.NoError(t, json.NewDecoder(w.Body).Decode(&got))
	return got
}
