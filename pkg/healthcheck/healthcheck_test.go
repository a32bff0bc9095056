// SPDX-License-Identifier: Apache-2.0

package healthcheck_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/healthcheck"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// TestInterval asks at once and then every interval, however long the answers take.
func TestInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: records, takes: 400 * time.Millisecond}
		begun := time.Now()
		p, stop := start(t, config(s))
		if err := p.Result(); !errors.Is(err, healthcheck.ErrPending) {
			t.Errorf("at first: %v", err)
		}
		time.Sleep(11 * time.Second)
		stop()
		assert.Same(t, "asked at", []time.Duration{0, 5 * time.Second, 10 * time.Second}, s.since(begun))
		got, want := p.Stats(), healthcheck.Stats{Label: "web", Server: "udp://192.0.2.53:53", Question: "www.example. A", Known: true, Up: true, Last: 400 * time.Millisecond, TookSum: 1200 * time.Millisecond}
		want.Took[10] = 3 // above 250ms, up to 1s
		assert.Same(t, "stats", want, got)
		if err := p.Result(); err != nil {
			t.Errorf("Result: %v", err)
		}
	})
}

// TestFailures has the server fail in every way.
func TestFailures(t *testing.T) {
	t.Parallel()
	other := func(_ string, q *dns.Msg) *dns.Msg {
		r := records("", q)
		r.Question[0].Name = "other.example."
		return r
	}
	prohibited := func(_ string, q *dns.Msg) *dns.Msg {
		r := new(dns.Msg).SetRcode(q, dns.RcodeRefused)
		r.SetEdns0(1232, false)
		r.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeProhibited, ExtraText: "\x1b[2J"}}
		return r
	}
	for _, tc := range []struct {
		name   string
		answer func(string, *dns.Msg) *dns.Msg
		takes  time.Duration
		refuse error
		reason healthcheck.Reason
		want   string
	}{
		{name: "silence", answer: records, takes: 2 * time.Second, reason: healthcheck.Timeout, want: "no answer within 1s"},
		{name: "no way", refuse: &net.OpError{Op: "dial", Net: "udp", Err: errors.New("no route to host")}, reason: healthcheck.Unreachable, want: "no route to host"},
		{name: "a connection that ends", answer: func(string, *dns.Msg) *dns.Msg { return nil }, reason: healthcheck.Unreachable, want: "connection closed without an answer"},
		{name: "no message", reason: healthcheck.Malformed, want: "unreadable answer: dns: short read"},
		{name: "another question", answer: other, reason: healthcheck.Malformed, want: "message does not answer the question"},
		{name: "a query", answer: func(_ string, q *dns.Msg) *dns.Msg { return q }, reason: healthcheck.Malformed, want: "message does not answer the question"},
		{name: "SERVFAIL", answer: with(dns.RcodeServerFailure), reason: healthcheck.ServFail, want: "SERVFAIL"},
		{name: "NXDOMAIN", answer: with(dns.RcodeNameError), reason: healthcheck.NXDomain, want: "NXDOMAIN: the name does not exist"},
		{name: "no record", answer: with(dns.RcodeSuccess), reason: healthcheck.NoData, want: "no record of that type"},
		{name: "REFUSED", answer: prohibited, reason: healthcheck.OtherRcode, want: "REFUSED: Prohibited"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				s := &server{answer: tc.answer, takes: tc.takes, refuse: tc.refuse}
				cfg := config(s)
				cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
				p, stop := start(t, cfg)
				time.Sleep(6 * time.Second)
				synctest.Wait()
				want := healthcheck.Stats{Label: "web", Server: "udp://192.0.2.53:53", Question: "www.example. A", Known: true, Row: 2, LastError: tc.want}
				want.Failures[tc.reason] = 2
				assert.Same(t, "stats", want, p.Stats())
				if err := p.Result(); err == nil || err.Error() != tc.want+" for www.example. A from udp://192.0.2.53:53, 2 times in a row" {
					t.Errorf("Result: %v", err)
				}
				s.become(records, 0, nil)
				time.Sleep(5 * time.Second)
				synctest.Wait()
				if st := p.Stats(); !st.Up || st.Row != 0 || st.LastError != "" || p.Result() != nil {
					t.Errorf("once it answers: %+v, %v", st, p.Result())
				}
				stop()
				for line, n := range map[string]int{"probe failed": 1, "reason=" + tc.reason.String(): 1, "probe recovered": 1} {
					if got := strings.Count(log.String(), line); got != n {
						t.Errorf("the log has %q %d times, want %d:\n%s", line, got, n, log.String())
					}
				}
			})
		})
	}
}

// TestTruncatedAnswer repeats the query over TCP, as a client does.
func TestTruncatedAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: func(network string, q *dns.Msg) *dns.Msg {
			if network == "tcp" {
				return records(network, q)
			}
			r := new(dns.Msg).SetReply(q)
			r.Truncated = true
			return r
		}}
		p, stop := start(t, config(s))
		synctest.Wait()
		stop()
		if diff := cmp.Diff([]string{"udp", "tcp"}, s.over); diff != "" || p.Result() != nil {
			t.Errorf("%v; asked over (-want +got):\n%s", p.Result(), diff)
		}
	})
}

// TestStop ends a prober that waits for an answer: it ends at once, and books nothing.
func TestStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: records, takes: 900 * time.Millisecond}
		p, stop := start(t, config(s))
		time.Sleep(100 * time.Millisecond)
		begun := time.Now()
		stop()
		if took := time.Since(begun); took > 0 {
			t.Errorf("it took %s", took)
		}
		s.serving.Wait()
		assert.Same(t, "stats", healthcheck.Stats{Label: "web", Server: "udp://192.0.2.53:53", Question: "www.example. A"}, p.Stats())
	})
}

// TestPanic has a panic in the function that reads the answer.
func TestPanic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(&server{})
		cfg.Dial = func(context.Context, string, netip.AddrPort) (net.Conn, error) { panic("lost") }
		p, stop := start(t, cfg)
		time.Sleep(6 * time.Second)
		stop()
		if st := p.Stats(); st.Panics != 2 || st.Failures[healthcheck.Malformed] != 2 || st.Up {
			t.Errorf("%+v, want two panics", st)
		}
	})
}

// TestRealSockets asks servers on loopback over UDP and TCP, with a mark and without, and one that is not there.
func TestRealSockets(t *testing.T) {
	t.Parallel()
	up := upstreamtest.New(upstreamtest.Zone("www.example. 300 IN A 192.0.2.1")).Listen(t)
	for _, tc := range []struct {
		name    string
		network string
		server  netip.AddrPort
		mark    uint32
		want    healthcheck.Reason // NumReasons: it is well
	}{
		{"udp", "udp", up, 0, healthcheck.Reason(healthcheck.NumReasons)},
		{"tcp", "tcp", up, 0, healthcheck.Reason(healthcheck.NumReasons)},
		{"marked", "udp", up, 0x1000, healthcheck.Reason(healthcheck.NumReasons)},
		{"marked tcp", "tcp", up, 0x1000, healthcheck.Reason(healthcheck.NumReasons)},
		{"no server", "udp", proctest.FreeAddr(t), 0, healthcheck.Unreachable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cfg := config(nil)
			cfg.Dial, cfg.Network, cfg.Server, cfg.Mark, cfg.Timeout = nil, tc.network, tc.server, tc.mark, 5*time.Second
			p, stop := start(t, cfg)
			for deadline := time.Now().Add(10 * time.Second); !p.Stats().Known && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
			stop()
			st := p.Stats()
			if tc.want == healthcheck.Reason(healthcheck.NumReasons) {
				if !st.Up {
					t.Errorf("%v, want a good answer", p.Result())
				}
				return
			}
			if st.Failures[tc.want] == 0 || !strings.HasSuffix(st.LastError, "connection refused") {
				t.Errorf("%+v, want %s", st, tc.want)
			}
		})
	}
}

func TestNewRejects(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		change func(*healthcheck.Config)
		want   string
	}{
		{"another network", func(c *healthcheck.Config) { c.Network = "tls" }, `probe "web": network "tls" is not udp or tcp`},
		{"no server", func(c *healthcheck.Config) { c.Server = netip.AddrPort{} }, `probe "web": invalid AddrPort is not a server address`},
		{"no port", func(c *healthcheck.Config) { c.Server = netip.MustParseAddrPort("192.0.2.1:0") }, `probe "web": 192.0.2.1:0 is not a server address`},
		{"no name", func(c *healthcheck.Config) { c.Name = "a..b." }, `probe "web": a..b. A is not a valid question`},
		{"a relative name", func(c *healthcheck.Config) { c.Name = "a" }, `probe "web": a A is not a valid question`},
		{"no type", func(c *healthcheck.Config) { c.Type = 0 }, `probe "web": www.example. None is not a valid question`},
		{"no timeout", func(c *healthcheck.Config) { c.Timeout = 0 }, `probe "web": timeout 0s must be positive and at most the interval 5s`},
		{"a timeout too long", func(c *healthcheck.Config) { c.Timeout = 6 * time.Second }, `probe "web": timeout 6s must be positive and at most the interval 5s`},
		{"no clock", func(c *healthcheck.Config) { c.Now = nil }, `probe "web": needs a clock`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cfg := config(&server{})
			tc.change(&cfg)
			if _, err := healthcheck.New(cfg); err == nil || err.Error() != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

// TestReasons holds the words, which are labels of metrics.
func TestReasons(t *testing.T) {
	t.Parallel()
	want := []string{"timeout", "unreachable", "malformed", "servfail", "nxdomain", "nodata", "other_rcode"}
	assert.Same(t, "got", want, healthcheck.Reasons())
	if got := healthcheck.Reason(healthcheck.NumReasons).String(); got != "unknown" {
		t.Errorf("beyond them: %s", got)
	}
}
