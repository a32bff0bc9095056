// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// A queryLog records when servers A, B and C were asked, as "A@0s B@400ms".
type queryLog struct {
	mu      sync.Mutex // guards lines
	start   time.Time
	entries []string
}

// server makes a server in memory that writes to the log.
func (l *queryLog) server(name string, script upstreamtest.Script) *upstreamtest.Server {
	l.start = time.Now()
	return upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
		if q.Probe {
			return script(q)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		edns := ""
		if !q.EDNS {
			edns = "-plain"
		}
		l.entries = append(l.entries, fmt.Sprintf("%s%s@%v", name, edns, time.Since(l.start)))
		return script(q)
	})
}

func (l *queryLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.entries, " ")
}

// One exchange with up to three servers without latency samples.
func TestExchangeAttempts(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	var (
		silent = upstreamtest.Action{Drop: true}
		good   = one("192.0.2.10")
		other  = one("192.0.2.20")
	)
	tests := []struct {
		name    string
		a, b, c []upstreamtest.Action // nil: no such server
		want    string
		by      string // server that answered, or that failed last and how
		asked   string
		took    time.Duration
	}{
		{
			name: "the first answer is enough",
			a:    []upstreamtest.Action{after(20*ms, good)}, b: []upstreamtest.Action{other},
			want: "192.0.2.10", asked: "A@0s", took: 20 * ms,
		},
		{
			name: "silence hands on to the other",
			a:    []upstreamtest.Action{silent}, b: []upstreamtest.Action{after(20*ms, other)},
			want: "192.0.2.20", asked: "A@0s B@400ms", took: 420 * ms,
		},
		{
			name: "a late reply still counts",
			a:    []upstreamtest.Action{after(500*ms, good)}, b: []upstreamtest.Action{silent},
			want: "192.0.2.10", asked: "A@0s B@400ms", took: 500 * ms,
		},
		{
			name: "one lost datagram",
			a:    []upstreamtest.Action{silent, after(10*ms, good)},
			want: "192.0.2.10", asked: "A@0s A@400ms", took: 410 * ms,
		},
		{
			name: "two silent servers get three attempts each, in turn",
			a:    []upstreamtest.Action{silent}, b: []upstreamtest.Action{silent}, c: []upstreamtest.Action{good},
			want: "timeout", by: "B timeout", asked: "A@0s B@400ms A@800ms B@1.2s A@1.6s B@2s", took: 4500 * ms,
		},
		{
			name: "SERVFAIL hands on at once",
			a:    []upstreamtest.Action{rcode(dns.RcodeServerFailure)}, b: []upstreamtest.Action{after(10*ms, other)},
			want: "192.0.2.20", asked: "A@0s B@0s", took: 10 * ms,
		},
		{
			name: "SERVFAIL and REFUSED are not retried",
			a:    []upstreamtest.Action{rcode(dns.RcodeServerFailure)}, b: []upstreamtest.Action{rcode(dns.RcodeRefused)},
			want: "rcode REFUSED", by: "B refused", asked: "A@0s B@0s", took: 0,
		},
		{
			name: "the other one gets all its attempts",
			a:    []upstreamtest.Action{rcode(dns.RcodeRefused)}, b: []upstreamtest.Action{silent, silent, after(10*ms, other)},
			want: "192.0.2.20", asked: "A@0s B@0s B@400ms B@800ms", took: 810 * ms,
		},
		{
			name: "a bad answer does not wait for the deadline",
			a:    []upstreamtest.Action{rcode(dns.RcodeServerFailure)}, b: []upstreamtest.Action{silent},
			want: "rcode SERVFAIL", by: "A servfail", asked: "A@0s B@0s B@400ms B@800ms", took: 1200 * ms,
		},
		{
			name: "an earlier failure does not shorten the latest attempt",
			a:    []upstreamtest.Action{after(500*ms, rcode(dns.RcodeServerFailure))},
			b:    []upstreamtest.Action{silent, silent, after(10*ms, other)},
			want: "192.0.2.20", asked: "A@0s B@400ms B@800ms B@1.2s", took: 1210 * ms,
		},
		{
			name: "FORMERR without OPT means a server without EDNS",
			a:    []upstreamtest.Action{{Rcode: dns.RcodeFormatError, NoEDNS: true}, good},
			want: "192.0.2.10", asked: "A@0s A-plain@0s",
		},
		{
			name: "NOTIMP without OPT as well, in turn",
			a:    []upstreamtest.Action{{Rcode: dns.RcodeNotImplemented, NoEDNS: true}, good},
			b:    []upstreamtest.Action{rcode(dns.RcodeServerFailure)},
			want: "192.0.2.10", asked: "A@0s B@0s A-plain@0s",
		},
		{
			name: "FORMERR twice is an answer",
			a:    []upstreamtest.Action{{Rcode: dns.RcodeFormatError, NoEDNS: true}},
			want: "rcode FORMERR", by: "A formerr", asked: "A@0s A-plain@0s",
		},
		{
			name: "FORMERR with OPT is an answer",
			a:    []upstreamtest.Action{rcode(dns.RcodeFormatError)},
			want: "rcode FORMERR", by: "A formerr", asked: "A@0s",
		},
		{
			name: "a referral hands on",
			a:    []upstreamtest.Action{{Raw: []upstreamtest.Raw{referral}}}, b: []upstreamtest.Action{other},
			want: "192.0.2.20", asked: "A@0s B@0s",
		},
		{
			name: "an extended response code", // 16 has two names
			a:    []upstreamtest.Action{rcode(dns.RcodeBadVers)},
			want: "rcode BADSIG", by: "A rcode", asked: "A@0s",
		},
		{
			name: "garbage to the end",
			a:    []upstreamtest.Action{{Raw: []upstreamtest.Raw{upstreamtest.BadShapes()[17].Make}}},
			want: "malformed", by: "A malformed", asked: "A@0s A@400ms A@800ms", took: 4500 * ms,
		},
		{
			name: "mismatches are silence",
			a:    []upstreamtest.Action{{Raw: []upstreamtest.Raw{upstreamtest.BadShapes()[0].Make}}},
			want: "timeout", by: "A timeout", asked: "A@0s A@400ms A@800ms", took: 4500 * ms,
		},
		{
			name: "an answer at the last moment",
			a:    []upstreamtest.Action{after(4499*ms, good), silent},
			want: "192.0.2.10", asked: "A@0s A@400ms A@800ms", took: 4499 * ms,
		},
		{
			name: "an answer long after",
			a:    []upstreamtest.Action{after(2900*ms, good), silent},
			want: "192.0.2.10", asked: "A@0s A@400ms A@800ms", took: 2900 * ms,
		},
	}
	for _, tt := range tests {
		for _, network := range []string{"udp", "tcp"} {
			if network == "tcp" && strings.HasPrefix(tt.name, "garbage") {
				continue // over TCP it ends an attempt at once: TestTCPMalformed
			}
			if network == "tcp" && strings.HasSuffix(tt.name, "last moment") {
				continue // a connection that is silent for three seconds is closed
			}
			t.Run(tt.name+" "+network, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					d := &queryLog{}
					servers := upstreamtest.Network{}
					var addrs []netip.AddrPort
					for i, actions := range [][]upstreamtest.Action{tt.a, tt.b, tt.c} {
						if actions != nil {
							addr := []netip.AddrPort{addrA, addrB, addrC}[i]
							addrs = append(addrs, addr)
							servers[addr] = d.server("ABC"[i:i+1], upstreamtest.Sequence(actions...))
						}
					}
					p := memory(t, network, servers, addrs...)
					start := time.Now()
					got, by := askBy(t, p)
					took := time.Since(start)
					assert.Equal(t, "outcome", tt.want, got)
					by = strings.NewReplacer(network+"://"+addrA.String(), "A", network+"://"+addrB.String(), "B").Replace(by)
					assert.Equal(t, "answered by", cmp.Or(tt.by, map[string]string{"192.0.2.10": "A", "192.0.2.20": "B"}[tt.want]), by)
					assert.Equal(t, "it took", tt.took, took)
					synctest.Wait()
					assert.Equal(t, "asked", tt.asked, d.String())
				})
			})
		}
	}
}

// referral builds a referral, as from a server that does not recurse.
func referral(q []byte) []byte {
	var m dns.Msg
	if err := m.Unpack(q); err != nil {
		panic(err)
	}
	ns, err := dns.NewRR("example. 60 IN NS ns.example.")
	if err != nil {
		panic(err)
	}
	r := new(dns.Msg).SetReply(&m)
	r.Ns = []dns.RR{ns}
	out, err := r.Pack()
	if err != nil {
		panic(err)
	}
	return out
}

// A bad answer does not end the wait for an upstream that is slow for this name only.
func TestExchangeWaitsForBetter(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]string{2 * time.Second: "192.0.2.10", 3 * time.Second: "rcode REFUSED"} {
		t.Run(took.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				slow := upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
					if q.Probe {
						return one("192.0.2.10")
					}
					return after(took, one("192.0.2.10"))
				})
				refusing := upstreamtest.New(upstreamtest.Always(rcode(dns.RcodeRefused)))
				p := memory(t, "udp", upstreamtest.Network{addrA: slow, addrB: refusing}, addrA, addrB)
				start := time.Now()
				assert.Equal(t, "outcome", want, ask(t, p))
				if got, want := time.Since(start), min(took, 2500*time.Millisecond); got != want {
					t.Errorf("it took %v, want %v", got, want)
				}
			})
		})
	}
}

// A refused connection fails the query at once, not at the deadline. Real sockets.
func TestExchangeRefused(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"udp", "tcp"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			// Ports below 1024 without a listener, which no other test can get.
			addr := netip.MustParseAddrPort("127.0.0.9:9")
			p := newPool(t, upstream.Config{Targets: []upstream.Target{target(network, addr)}})
			run(t, p)
			assert.Equal(t, "outcome", "network", askFor(t, p, time.Hour))
			if got, want := failures(p), "conn_refused=3"; got != want {
				t.Errorf("failures %q, want %q", got, want)
			}
		})
	}
}

// A query that ends before its attempt times out is no fault of the upstream.
func TestExchangeDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := memory(t, "udp", upstreamtest.Network{addrA: nil}, addrA)
		_, err := exchange(p, upstreamtest.Question(t, "www.example."), 100*time.Millisecond)
		if got := outcome(t, nil, err); got != "timeout" || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("outcome %q, error %v, want a timeout at the deadline", got, err)
		}
		assert.Equal(t, "failures", "", failures(p))
		if got := p.Penalized(0); got != 0 {
			t.Errorf("srtt %v, want no penalty", got)
		}
	})
}

// A panic in an attempt or on a connection is counted and fails only that one.
func TestPanicIsContained(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"udp", "tcp"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			var dials atomic.Int64
			p := newPool(t, upstream.Config{
				Targets: []upstream.Target{target(network, addrA)},
				Dial: func(context.Context, string, netip.AddrPort) (net.Conn, error) {
					dials.Add(1)
					panic("a bug")
				},
			})
			assert.Equal(t, "outcome", "network", ask(t, p))
			assert.Equal(t, "panics", 3, dials.Load())
			assert.Equal(t, "panics counted", 3, p.Stats().Panics)
		})
	}
}
