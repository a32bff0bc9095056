// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// serveOn answers on a port of the loopback address, over one transport.
func serveOn(t *testing.T, tcp bool, handler dns.HandlerFunc) netip.AddrPort {
	t.Helper()
	s := &dns.Server{Handler: handler, MsgAcceptFunc: func(dns.Header) dns.MsgAcceptAction { return dns.MsgAccept }}
	var at net.Addr
	var err error
	if tcp {
		s.Listener, err = net.Listen("tcp", "127.0.0.1:0")
	} else {
		s.PacketConn, err = net.ListenPacket("udp", "127.0.0.1:0")
	}
	assert.NoError(t, err)
	if tcp {
		at = s.Listener.Addr()
	} else {
		at = s.PacketConn.LocalAddr()
	}
	ready := make(chan struct{})
	s.NotifyStartedFunc = func() { close(ready) }
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.ActivateAndServe() // until Shutdown
	}()
	<-ready
	t.Cleanup(func() {
		_ = s.Shutdown()
		<-done
	})
	return netip.MustParseAddrPort(at.String())
}

func TestProbe(t *testing.T) {
	t.Parallel()
	header := func(q *dns.Msg) dns.RR_Header {
		return dns.RR_Header{Name: q.Question[0].Name, Rrtype: q.Question[0].Qtype, Class: q.Question[0].Qclass}
	}
	agent := func(w dns.ResponseWriter, q *dns.Msg) {
		a := new(dns.Msg).SetReply(q)
		h := header(q)
		if self := h.Name == intercept.SelfName || h.Name == "a1."+intercept.SelfName; h.Class == dns.ClassCHAOS && self && h.Rrtype == dns.TypeTXT {
			a.Answer = []dns.RR{&dns.TXT{Hdr: h, Txt: []string{"a1"}}}
		} else {
			a.Answer = []dns.RR{&dns.A{Hdr: h, A: net.IPv4(192, 0, 2, 1)}, &dns.A{Hdr: h, A: net.IPv4(192, 0, 2, 2)}}
		}
		_ = w.WriteMsg(a)
	}
	tried := make(chan bool, 1)
	for _, tt := range []struct {
		name    string
		tcp     bool
		handler dns.HandlerFunc
		ask     string
		agent   string
		want    Outcome
		error   string
	}{
		{name: "an agent", handler: agent, want: Outcome{Answer: "NOERROR", Records: 1, Token: "a1"}},
		{name: "an agent over TCP", tcp: true, handler: agent, want: Outcome{Answer: "NOERROR", Records: 1, Token: "a1"}},
		{name: "an agent that is named", agent: "a1", handler: agent, want: Outcome{Answer: "NOERROR", Records: 1, Token: "a1"}},
		{name: "a name", handler: agent, ask: "a.example.", want: Outcome{Answer: "NOERROR", Records: 2}},
		{
			name:    "another server",
			handler: func(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeRefused)) },
			want:    Outcome{Answer: "REFUSED"},
		},
		{name: "silence", handler: func(dns.ResponseWriter, *dns.Msg) {}, error: "no answer in 600ms"},
		{
			name: "one lost packet", want: Outcome{Answer: "NOERROR", Records: 1, Token: "a1"},
			handler: func(w dns.ResponseWriter, q *dns.Msg) {
				select {
				case tried <- true:
				default:
					agent(w, q)
				}
			},
		},
		{
			name: "answers to others first", want: Outcome{Answer: "NOERROR", Records: 1, Token: "a1"},
			handler: func(w dns.ResponseWriter, q *dns.Msg) {
				other := new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
				other.Id++
				_ = w.WriteMsg(other)
				_ = w.WriteMsg(q) // a question is no answer
				agent(w, q)
			},
		},
		{
			name: "a session that is closed", tcp: true, error: "the connection was closed without an answer",
			handler: func(w dns.ResponseWriter, _ *dns.Msg) { _ = w.Close() },
		},
		{name: "silence over TCP", tcp: true, handler: func(dns.ResponseWriter, *dns.Msg) {}, error: "no answer in 600ms"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := Probe{To: serveOn(t, tt.tcp, tt.handler), TCP: tt.tcp, Name: tt.ask, Agent: tt.agent}
			got := (&Config{Timeout: 600 * time.Millisecond, Now: time.Now}).probeAll(t.Context(), []Probe{p})[0]
			if got.From.Addr() != p.To.Addr() || got.From.Port() == 0 || got.Took <= 0 {
				t.Errorf("asked from %s, in %s", got.From, got.Took)
			}
			tt.want.Probe, tt.want.Error = p, tt.error
			assert.Same(t, "outcome", tt.want, got, addressOptions(), cmpopts.IgnoreFields(Outcome{}, "From", "Took"))
		})
	}
}

func TestProbeWithoutServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	to := netip.MustParseAddrPort(l.Addr().String())
	assert.NoError(t, l.Close())
	got := (&Config{Timeout: time.Minute, Now: time.Now}).probe(t.Context(), Probe{To: to, TCP: true})
	if !got.Refused || got.Error != "connection refused" || got.Answer != "" {
		t.Errorf("a probe without a server: %+v", got)
	}
}

// TestStatus reads the status page of an agent that listens on all addresses.
func TestStatus(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, page string
		code       int
		want, bad  string
	}{
		{name: "ready", code: 200, page: "ok\n", want: "ready"},
		{name: "not ready", code: 503, page: "starting\n", want: "not ready: starting"},
		{name: "another program", code: 404, bad: "404 Not Found"},
		{name: "no page of an agent", code: 200, page: "<html>", bad: "the page is not that of an agent"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.String() != "/readyz" {
					t.Errorf("request for %s", r.URL)
				}
				w.WriteHeader(tt.code)
				_, _ = io.WriteString(w, tt.page)
			}))
			t.Cleanup(s.Close)
			at := netip.MustParseAddrPort(s.Listener.Addr().String())
			c := Config{Admin: netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port()), Timeout: time.Minute}
			got, err := status(t.Context(), &c)
			if got != tt.want || (err != nil) != (tt.bad != "") || err != nil && !strings.HasPrefix(err.Error(), tt.bad) {
				t.Errorf("status %q, error %v; want %q, %q", got, err, tt.want, tt.bad)
			}
		})
	}
}

// TestNoPod has reasons for which no pod is started.
func TestNoPod(t *testing.T) {
	t.Parallel()
	addrs := func(list ...string) (all []netip.Addr) {
		for _, a := range list {
			all = append(all, netip.MustParseAddr(a))
		}
		return all
	}
	for _, tt := range []struct {
		addresses []netip.Addr
		command   []string
		missing   []string
		want      string
	}{
		{want: "there is no address to query"},
		{addresses: addrs("169.254.20.10", "0.0.0.0"), want: "127.0.0.1 is local to the node: pods cannot query it"},
		{addresses: addrs("169.254.20.10"), want: "not requested"},
		{addresses: addrs("fd00::a"), command: []string{"self"}, missing: []string{"NET_ADMIN"}, want: "needs the capability NET_ADMIN"},
	} {
		f := Facts{Missing: tt.missing}
		f.askFromPod(t.Context(), &Config{Rules: rules.Rules{Addresses: tt.addresses, Port: 53}, Command: tt.command}, nil, nil)
		if f.PodErr == nil || f.PodErr.Error() != tt.want {
			t.Errorf("%v: %v, want %s", tt.addresses, f.PodErr, tt.want)
		}
	}
}

func TestServeEnds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, in, out, problem string }{
		{name: "nothing to do", in: ""},
		{name: "no probes", in: "{}\n{}\n", out: "{\"outcomes\":[],\"error\":\"\"}\n{\"outcomes\":[],\"error\":\"\"}\n"},
		{name: "nonsense", in: "{}x", out: "{\"outcomes\":[],\"error\":\"\"}\n", problem: "reading a command"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			err := Serve(t.Context(), strings.NewReader(tt.in), &out, time.Now)
			assert.Equal(t, "out", tt.out, out.String())
			if (err == nil) != (tt.problem == "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("error %v, want %q", err, tt.problem)
			}
		})
	}
}
