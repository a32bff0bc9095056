// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/nftables"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/iptables"
)

// TestTesterOnNode tests the fallback in a real kernel, and breaks it.
func TestTesterOnNode(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		open func() (intercept.Backend, error)
		flat []string // the command that removes the rules that masquerade
	}{
		{"nftables", openNftables, []string{"nft", "flush chain inet node-cache fallback-postrouting"}},
		{"iptables-nft", openIptables(iptables.Nft), []string{"iptables-nft", "-w", "-t", "nat", "-F", "NODE-CACHE-SNAT"}},
		{"iptables-legacy", openIptables(iptables.Legacy), []string{"iptables-legacy", "-w", "-t", "nat", "-F", "NODE-CACHE-SNAT"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newTesterNode(t, tt.open)
			s.expect("no rules", intercept.FallbackBroken, "an agent of this node answers")
			_, err := s.backend.Apply(t.Context(), s.rules)
			assert.NoError(t, err)
			s.expect("not leased", intercept.FallbackWorks, "")
			assert.NoError(t, s.backend.Renew(t.Context(), s.rules.Addresses, time.Minute))
			s.expect("leased", intercept.FallbackWorks, "")
			assert.NoError(t, s.backend.Release(t.Context(), s.rules.Addresses, time.Minute))
			s.expect("released", intercept.FallbackWorks, "")
			assert.NoError(t, s.backend.Renew(t.Context(), s.rules.Addresses, time.Minute))

			s.central[1].Pause(true)
			s.expect("one endpoint silent", intercept.FallbackBroken, "1 of 2 endpoints fail: "+s.rules.Fallback[1].String()+": no reply within 2s", s.rules.Addresses[0])
			s.central[1].Pause(false)

			s.run("nft", "table inet cut { chain cut { type filter hook output priority 300; th dport { 5301, 5302 } meta mark and 0x10 != 0 drop; }; }")
			s.expect("packets past the lease dropped", intercept.FallbackBroken, "the endpoints answer, but not a query past the lease over UDP")
			s.run("nft", "delete table inet cut")
			s.run("nft", "table inet raw2 { chain out { type filter hook output priority -310; th dport 53 meta mark and 0x10 != 0 notrack; }; }")
			s.expect("untracked by another program", intercept.FallbackBroken, "an agent of this node answers")
			s.run("nft", "delete table inet raw2")
			// No other host answers a link-local source.
			if out, err := s.hosts.Upstream.Output(t.Context(), "nft", "table ip far { chain in { type filter hook input priority 0; ip saddr 169.254.0.0/16 drop; }; }"); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			s.expect("masqueraded", intercept.FallbackWorks, "")
			s.run("iptables-nft", "-w", "-t", "raw", "-A", "OUTPUT", "-d", "169.254.20.10/32", "-p", "tcp", "--dport", "53", "-j", "CT", "--notrack")
			s.expect("TCP untracked, as another node cache's rules do", intercept.FallbackBroken, "over TCP: an agent of this node answers", s.rules.Addresses[0])
			s.run("iptables-nft", "-w", "-t", "raw", "-D", "OUTPUT", "-d", "169.254.20.10/32", "-p", "tcp", "--dport", "53", "-j", "CT", "--notrack")
			s.run(tt.flat[0], tt.flat[1:]...)
			s.expect("not masqueraded", intercept.FallbackBroken, "the endpoints answer, but not a query past the lease over UDP", s.rules.Addresses[0])
			if changed, err := s.backend.Apply(t.Context(), s.rules); err != nil || !changed {
				t.Errorf("repairing the rules: changed %t, %v", changed, err)
			}
			s.expect("repaired", intercept.FallbackWorks, "")
			assert.NoError(t, s.backend.Remove(t.Context(), "ours"))
			s.expect("removed", intercept.FallbackBroken, "an agent of this node answers")
		})
	}
}

func openNftables() (intercept.Backend, error) { return nftables.New(slog.New(slog.DiscardHandler)) }

// A testerNode is a node with an agent that answers as a real one, and with a fallback.
type testerNode struct {
	t       testing.TB
	hosts   *nodetest.Network
	backend intercept.Backend
	rules   rules.Rules
	central []*nodetest.Server // as rules.Fallback
	tester  *intercept.Tester
}

func newTesterNode(tb testing.TB, open func() (intercept.Backend, error)) *testerNode {
	tb.Helper()
	s := &testerNode{t: tb, hosts: nodetest.Start(tb, nodetest.Options{Pods: 1})}
	up4, up6 := s.hosts.Upstream.IPv4, s.hosts.Upstream.IPv6
	s.rules = rules.Rules{Owner: "ours", Addresses: []netip.Addr{addr4, addr6}, Port: 53, Fallback: []netip.AddrPort{
		netip.AddrPortFrom(up4, 5301), netip.AddrPortFrom(up4, 5302), netip.AddrPortFrom(up6, 5301),
	}}
	s.tester = &intercept.Tester{Domain: testDomain, Dial: func(ctx context.Context, network string, to netip.AddrPort, mark uint32) (conn net.Conn, err error) {
		err = s.hosts.Node.Do(func() error {
			conn, err = intercept.DialWithMark(ctx, network, to, mark)
			return err
		})
		return conn, err
	}}
	for _, a := range s.rules.Addresses {
		assert.NoError(tb, s.hosts.Node.AddAddress(a))
		assert.NoError(tb, s.hosts.Node.Do(func() error {
			server, err := proctest.ServeDNS(&net.ListenConfig{}, netip.AddrPortFrom(a, 53), dns.HandlerFunc(answerAsAgent))
			if err == nil {
				tb.Cleanup(server.Close)
			}
			return err
		}))
	}
	for _, f := range s.rules.Fallback {
		server, err := nodetest.Serve(s.hosts.Upstream, f, "central")
		assert.NoError(tb, err)
		tb.Cleanup(server.Close)
		s.central = append(s.central, server)
	}
	assert.NoError(tb, s.hosts.Node.Do(func() (err error) {
		s.backend, err = open()
		return err
	}))
	tb.Cleanup(func() { assert.NoError(tb, s.backend.Close()) })
	return s
}

func answerAsAgent(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	if q.Question[0].Qclass == dns.ClassCHAOS {
		m.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassCHAOS}, Txt: []string{"ours"}}}
	}
	_ = w.WriteMsg(m) // the client may have gone
}

// expect checks the results for the addresses, all without one.
func (s *testerNode) expect(when string, state intercept.FallbackState, why string, addrs ...netip.Addr) {
	s.t.Helper()
	if addrs == nil {
		addrs = s.rules.Addresses
	}
	for _, a := range addrs {
		got := s.tester.Test(s.t.Context(), &s.rules, rules.Lease{Key: a, Probe: a})
		if got.State != state || !strings.Contains(got.Why, why) {
			s.t.Errorf("%s: result for %s: %+v, want %s, %q", when, a, got, state, why)
		}
	}
}

func (s *testerNode) run(program string, args ...string) {
	s.t.Helper()
	if out, err := s.hosts.Node.Output(s.t.Context(), program, args...); err != nil {
		s.t.Fatalf("running %s %v: %v\n%s", program, args, err, out)
	}
}

// BenchmarkTester tests the fallback of both addresses in a real kernel. cpu-µs/op includes the servers. A test runs each 30 s on
// average, so 3,000 µs are 0.1 ms each second.
func BenchmarkTester(b *testing.B) {
	s := newTesterNode(b, openNftables)
	_, err := s.backend.Apply(b.Context(), s.rules)
	assert.NoError(b, err)
	cpu := func() time.Duration {
		var u unix.Rusage
		assert.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := cpu()
	for b.Loop() {
		s.expect("benchmark", intercept.FallbackWorks, "")
	}
	b.ReportMetric(float64((cpu()-before).Microseconds())/float64(b.N), "cpu-µs/op")
}
