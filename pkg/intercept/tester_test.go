// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

const (
	testDomain = "cluster.local."
	testSelf   = "self.node-cache.cluster.local."
	testName   = "kubernetes.default.svc.cluster.local."
)

// central answers as a DNS server of the cluster: it refuses the self-query.
func central(q upstreamtest.Query) upstreamtest.Action {
	if q.Name == testSelf {
		return upstreamtest.Action{Rcode: dns.RcodeRefused}
	}
	return upstreamtest.Action{Records: []string{testName + " 5 IN A 10.96.0.1"}}
}

// replies answers the self-query with one action, and all others with another.
func replies(self, other upstreamtest.Action) upstreamtest.Script {
	return func(q upstreamtest.Query) upstreamtest.Action {
		if q.Name == testSelf {
			return self
		}
		return other
	}
}

// likeAgent answers as the agent of this node: also the self-query.
func likeAgent(q upstreamtest.Query) upstreamtest.Action {
	if q.Name != testSelf {
		return central(q)
	}
	return upstreamtest.Action{Raw: []upstreamtest.Raw{func(q []byte) []byte {
		r := append(slices.Clone(q), 0xc0, 12, 0, byte(dns.TypeTXT), 0, dns.ClassCHAOS, 0, 0, 0, 0, 0, 5, 4, 'o', 'u', 'r', 's')
		r[2], r[7] = r[2]|0x80, 1
		return r
	}}}
}

// first returns a script that drops the first n queries.
func dropsFirst(n int, then upstreamtest.Script) upstreamtest.Script {
	left := make(chan struct{}, n)
	for range n {
		left <- struct{}{}
	}
	return func(q upstreamtest.Query) upstreamtest.Action {
		select {
		case <-left:
			return upstreamtest.Action{Drop: true}
		default:
			return then(q)
		}
	}
}

func TestTester(t *testing.T) {
	t.Parallel()
	silent := upstreamtest.Always(upstreamtest.Action{Drop: true})
	refused, found := upstreamtest.Action{Rcode: dns.RcodeRefused}, upstreamtest.Action{Records: []string{testName + " 5 IN A 10.96.0.1"}}
	rcode := func(code int) upstreamtest.Script { return replies(refused, upstreamtest.Action{Rcode: code}) }
	other := netip.MustParseAddrPort("10.244.0.4:53")
	third := netip.MustParseAddrPort("10.244.0.5:53")
	for _, tt := range []struct {
		name   string
		lapsed upstreamtest.Script // answers queries past the lease; nil: central
		direct map[netip.AddrPort]upstreamtest.Script
		want   intercept.FallbackState
		why    string // part of it
	}{
		{name: "works", want: intercept.FallbackWorks},
		{name: "two endpoints", direct: map[netip.AddrPort]upstreamtest.Script{fallback4: central, other: central}, want: intercept.FallbackWorks},
		{name: "an empty answer is one", lapsed: rcode(dns.RcodeSuccess), want: intercept.FallbackWorks},
		{name: "the first packets are lost", lapsed: upstreamtest.By(dropsFirst(2, central), central), want: intercept.FallbackWorks},
		{name: "the agent itself", lapsed: likeAgent, want: intercept.FallbackBroken, why: "past the lease over UDP: an agent of this node answers"},
		{name: "the agent itself over TCP", lapsed: upstreamtest.By(central, likeAgent), want: intercept.FallbackBroken, why: "over TCP: an agent of this node answers"},
		{
			name: "an endpoint is the agent itself", direct: map[netip.AddrPort]upstreamtest.Script{fallback4: likeAgent},
			want: intercept.FallbackBroken, why: "1 of 1 endpoints fail: 10.244.0.3:53: an agent of this node answers",
		},
		{name: "SERVFAIL", lapsed: rcode(dns.RcodeServerFailure), want: intercept.FallbackBroken, why: "replies with SERVFAIL"},
		{name: "REFUSED", lapsed: rcode(dns.RcodeRefused), want: intercept.FallbackBroken, why: "replies with REFUSED"},
		{name: "an RCODE without a name", lapsed: rcode(14), want: intercept.FallbackBroken, why: "replies with RCODE 14"},
		{
			name: "no cluster names", lapsed: rcode(dns.RcodeNameError), want: intercept.FallbackUnverified,
			why: "it replies that there is no name " + testName,
		},
		{name: "no cluster names, and the agent itself", lapsed: replies(likeAgent(upstreamtest.Query{Name: testSelf}), upstreamtest.Action{Rcode: dns.RcodeNameError}), want: intercept.FallbackBroken, why: "an agent of this node answers"},
		{name: "silent past the lease", lapsed: silent, want: intercept.FallbackBroken, why: "the endpoints answer, but not a query past the lease over UDP: no reply within 2s"},
		{name: "no TCP", lapsed: upstreamtest.By(central, silent), want: intercept.FallbackBroken, why: "over TCP: no reply within 2s"},
		{name: "TCP sessions end", lapsed: upstreamtest.By(central, upstreamtest.Always(upstreamtest.Action{Close: true})), want: intercept.FallbackBroken, why: "over TCP"},
		{
			name: "no reply to the self-query", lapsed: replies(upstreamtest.Action{Drop: true}, found),
			want: intercept.FallbackUnverified, why: "it does not reply to a query for self.node-cache.cluster.local.",
		},
		{name: "a reply to the self-query only", lapsed: replies(refused, upstreamtest.Action{Drop: true}), want: intercept.FallbackBroken, why: "no reply within 2s"},
		{
			name: "one endpoint of two is silent", direct: map[netip.AddrPort]upstreamtest.Script{fallback4: central, other: silent},
			want: intercept.FallbackBroken, why: "1 of 2 endpoints fail: 10.244.0.4:53: no reply within 2s",
		},
		{
			name: "two endpoints are closed", direct: map[netip.AddrPort]upstreamtest.Script{fallback4: nil, other: nil, third: central},
			want: intercept.FallbackBroken, why: "2 of 3 endpoints fail: 10.244.0.3:53: connection refused; 10.244.0.4:53: connection refused",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				if tt.lapsed == nil {
					tt.lapsed = central
				}
				if tt.direct == nil {
					tt.direct = map[netip.AddrPort]upstreamtest.Script{fallback4: central}
				}
				r := nodeRules("ours")
				r.Fallback = []netip.AddrPort{fallback6}
				direct := upstreamtest.Network{}
				for at, script := range tt.direct {
					r.Fallback = append(r.Fallback, at)
					if script != nil {
						direct[at] = upstreamtest.New(script)
					}
				}
				slices.SortFunc(r.Fallback, netip.AddrPort.Compare)
				lapsed := upstreamtest.Network{netip.AddrPortFrom(addr4, 53): upstreamtest.New(tt.lapsed)}
				tester := &intercept.Tester{Domain: testDomain, Dial: func(ctx context.Context, network string, to netip.AddrPort, mark uint32) (net.Conn, error) {
					if mark == rules.TestMark {
						return lapsed.Dial(ctx, network, to)
					}
					return direct.Dial(ctx, network, to)
				}}
				begun := time.Now()
				got := tester.Test(t.Context(), &r, rules.Lease{Key: addr4, Probe: addr4})
				if got.State != tt.want || !strings.Contains(got.Why, tt.why) || (got.Why == "") != (tt.want == intercept.FallbackWorks) {
					t.Errorf("result %+v, want %s with %q", got, tt.want, tt.why)
				}
				if took := time.Since(begun); took > 2*time.Second {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}

// TestTesterNeverWrong: no bad reply is taken for a good one.
func TestTesterNeverWrong(t *testing.T) {
	t.Parallel()
	for _, shape := range upstreamtest.BadShapes() {
		for name, script := range map[string]upstreamtest.Script{
			"to the name":       replies(upstreamtest.Action{Rcode: dns.RcodeRefused}, upstreamtest.Action{Raw: []upstreamtest.Raw{shape.Make}}),
			"to the self-query": replies(upstreamtest.Action{Raw: []upstreamtest.Raw{shape.Make}}, upstreamtest.Action{Drop: true}),
			"to both":           upstreamtest.Always(upstreamtest.Action{Raw: []upstreamtest.Raw{shape.Make}}),
		} {
			t.Run(shape.Name+" "+name, func(t *testing.T) {
				t.Parallel()
				if shape.Reads {
					t.Skip("header and question are right: the server is there")
				}
				synctest.Test(t, func(t *testing.T) {
					server := upstreamtest.New(script)
					network := upstreamtest.Network{netip.AddrPortFrom(addr4, 53): server, fallback4: server}
					tester := &intercept.Tester{Domain: testDomain, Dial: func(ctx context.Context, n string, to netip.AddrPort, _ uint32) (net.Conn, error) {
						return network.Dial(ctx, n, to)
					}}
					r := nodeRules("ours")
					if got := tester.Test(t.Context(), &r, rules.Lease{Key: addr4}); got.State != intercept.FallbackBroken {
						t.Errorf("result %+v, want broken", got)
					}
				})
			})
		}
	}
}

// TestTesterDials checks where the queries go, with which marks.
func TestTesterDials(t *testing.T) {
	t.Parallel()
	service := netip.MustParseAddr("10.96.0.10")
	for _, tt := range []struct {
		name   string
		rules  func(*rules.Rules)
		key    netip.Addr
		refuse error // of each dial
		want   []string
		state  intercept.FallbackResult
	}{
		{
			name: "link-local", rules: func(*rules.Rules) {}, key: addr6, state: intercept.FallbackResult{State: intercept.FallbackWorks},
			want: []string{"tcp [fd00:20::10]:53 0x10", "udp [fd00:20::10]:53 0x10", "udp [fd00:244::3]:53 0x0"},
		},
		{
			name: "transparent", key: service, state: intercept.FallbackResult{State: intercept.FallbackWorks},
			rules: func(r *rules.Rules) { r.Mode, r.Services = rules.Transparent, []netip.Addr{service} },
			want:  []string{"tcp 10.96.0.10:53 0x1000", "udp 10.96.0.10:53 0x1000"},
		},
		{
			name: "an excluded Service", key: service, state: intercept.FallbackResult{State: intercept.FallbackWorks},
			rules: func(r *rules.Rules) {
				r.Mode, r.Services, r.Excluded = rules.Transparent, []netip.Addr{service}, true
			},
			want: []string{"tcp 10.96.0.10:53 0x10", "udp 10.244.0.3:53 0x0", "udp 10.96.0.10:53 0x10"},
		},
		{
			name: "no fallback of the family", key: addr4, rules: func(r *rules.Rules) { r.Fallback = []netip.AddrPort{fallback6} },
			state: intercept.FallbackResult{State: intercept.FallbackUnverified, Why: "there is no fallback"},
		},
		{
			name: "too many open files", key: addr6, rules: func(*rules.Rules) {}, refuse: &net.OpError{Op: "dial", Err: syscall.EMFILE},
			want:  []string{"tcp [fd00:20::10]:53 0x10", "udp [fd00:20::10]:53 0x10", "udp [fd00:244::3]:53 0x0"},
			state: intercept.FallbackResult{State: intercept.FallbackUnverified, Why: "it cannot be tested: too many open files"},
		},
		{
			name: "no route", key: addr6, rules: func(*rules.Rules) {}, refuse: &net.OpError{Op: "dial", Err: syscall.ENETUNREACH},
			want:  []string{"tcp [fd00:20::10]:53 0x10", "udp [fd00:20::10]:53 0x10", "udp [fd00:244::3]:53 0x0"},
			state: intercept.FallbackResult{State: intercept.FallbackBroken, Why: "1 of 1 endpoints fail: [fd00:244::3]:53: network is unreachable"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := nodeRules("ours")
			tt.rules(&r)
			dialed := make(chan string, 100)
			tester := &intercept.Tester{Domain: testDomain, Dial: func(ctx context.Context, network string, to netip.AddrPort, mark uint32) (net.Conn, error) {
				dialed <- fmt.Sprintf("%s %s %#x", network, to, mark)
				if tt.refuse != nil {
					return nil, tt.refuse
				}
				return upstreamtest.Network{to: upstreamtest.New(central)}.Dial(ctx, network, to)
			}}
			got := tester.Test(t.Context(), &r, rules.Lease{Key: tt.key})
			assert.Same(t, "result", tt.state, got)
			close(dialed)
			var list []string
			for d := range dialed {
				list = append(list, d)
			}
			slices.Sort(list)
			assert.Same(t, "dialed", tt.want, list)
		})
	}
}
