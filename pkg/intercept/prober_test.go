// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

const token = "0123abcd"

// self gives the right answer after a delay.
func self(after time.Duration) upstreamtest.Action {
	return upstreamtest.Action{Delay: after, Records: []string{intercept.SelfName + ` 0 CH TXT "` + token + `"`}}
}

func silent() upstreamtest.Action { return upstreamtest.Action{Drop: true} }

// probe probes a server in memory once, and returns the duration and the error.
func probe(t *testing.T, s *upstreamtest.Server) (took time.Duration, err error) {
	t.Helper()
	at := netip.AddrPortFrom(addr4, 53)
	p := &intercept.Prober{Port: 53, Token: token, Dial: upstreamtest.Network{at: s}.Dial}
	begun := time.Now()
	_, err = p.Probe(t.Context(), addr4)
	return time.Since(begun), err
}

func TestProbe(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	always, sequence, by := upstreamtest.Always, upstreamtest.Sequence, upstreamtest.By
	records := func(texts ...string) upstreamtest.Script { return always(upstreamtest.Action{Records: texts}) }
	right := always(self(0))
	other := upstreamtest.Action{Records: []string{intercept.SelfName + ` 0 CH TXT "0123abce"`}}
	raw := func(r upstreamtest.Raw) upstreamtest.Script {
		return always(upstreamtest.Action{Raw: []upstreamtest.Raw{r}})
	}
	changed := func(fault func(*dns.Msg)) upstreamtest.Script {
		return raw(func(q []byte) []byte {
			m := new(dns.Msg)
			if err := m.Unpack(q); err != nil {
				panic(err)
			}
			a := new(dns.Msg).SetReply(m)
			rr, err := dns.NewRR(self(0).Records[0])
			if err != nil {
				panic(err)
			}
			a.Answer = []dns.RR{rr}
			fault(a)
			packed, err := a.Pack()
			if err != nil {
				panic(err)
			}
			return packed
		})
	}
	tests := []struct {
		name   string
		script upstreamtest.Script
		want   string        // of the error; empty: the probe succeeds
		took   time.Duration // at most
	}{
		{name: "right over both", script: right, took: 0},
		{name: "slow", script: always(self(700 * ms)), took: 720 * ms},
		{name: "too slow", script: always(self(1001 * ms)), want: "udp: silent", took: time.Second},
		{name: "UDP lost but for one of the first", script: by(sequence(silent(), silent(), silent(), self(0)), right), took: 60 * ms},
		{name: "UDP lost five times", script: by(sequence(silent(), silent(), silent(), silent(), silent(), self(0)), right), took: 180 * ms},
		{name: "TCP lost three times", script: by(right, sequence(silent(), silent(), silent(), self(0))), took: 240 * ms},
		{name: "UDP silent", script: by(always(silent()), right), want: "udp: silent", took: time.Second},
		{name: "TCP silent", script: by(right, always(silent())), want: "tcp: silent", took: time.Second},
		{name: "TCP accepted and closed", script: by(right, always(upstreamtest.Action{Close: true})), want: "tcp: no-proof", took: time.Second},
		{name: "TCP closed three times", script: by(right, sequence(upstreamtest.Action{Close: true}, upstreamtest.Action{Close: true}, upstreamtest.Action{Close: true}, self(0))), took: 240 * ms},
		{name: "another token", script: always(other), want: "udp: wrong", took: time.Second},
		{name: "a longer token", script: records(intercept.SelfName + ` 0 CH TXT "` + token + `0"`), want: "udp: wrong", took: time.Second},
		{name: "two strings", script: records(intercept.SelfName + ` 0 CH TXT "0123" "abcd"`), want: "udp: wrong", took: 0},
		{name: "two records", script: records(self(0).Records[0], self(0).Records[0]), want: "udp: wrong", took: 0},
		{name: "no records", script: records(), want: "udp: wrong", took: 0},
		{name: "an address", script: records("self.node-cache. 0 IN A 192.0.2.1"), want: "udp: wrong", took: 0},
		{name: "SERVFAIL with the record", script: always(upstreamtest.Action{Rcode: dns.RcodeServerFailure, Records: self(0).Records}), want: "udp: wrong", took: 0},
		{name: "NXDOMAIN", script: always(upstreamtest.Action{Rcode: dns.RcodeNameError}), want: "udp: wrong", took: 0},
		{
			name: "another agent now and then", took: 0,
			script: sequence(other, other, self(0)),
		},
		{
			name: "another process now and then", want: "udp: wrong", took: 0,
			script: by(sequence(self(0), self(0), self(0), upstreamtest.Action{Rcode: dns.RcodeRefused}, self(0)), right),
		},
		{
			name: "another process over TCP only", want: "tcp: wrong", took: time.Second,
			script: by(always(silent()), always(upstreamtest.Action{Rcode: dns.RcodeRefused})),
		},
		{name: "another name", script: changed(func(m *dns.Msg) { m.Question[0].Name = "self.node-cashe." }), want: "udp: wrong", took: 0},
		{name: "another class", script: changed(func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassINET }), want: "udp: wrong", took: 0},
		{name: "another ID", script: by(changed(func(m *dns.Msg) { m.Id++ }), right), want: "udp: silent", took: time.Second},
		{name: "no response", script: by(changed(func(m *dns.Msg) { m.Response = false }), right), want: "udp: silent", took: time.Second},
		{name: "another ID over TCP", script: by(right, changed(func(m *dns.Msg) { m.Id++ })), want: "tcp: wrong", took: 0},
		{name: "the name in capitals", script: changed(func(m *dns.Msg) { m.Question[0].Name = "SELF.node-CACHE." }), took: 0},
		{name: "garbage", script: by(raw(func([]byte) []byte { return []byte("garbage") }), right), want: "udp: silent", took: time.Second},
		{name: "garbage over TCP", script: by(right, raw(func([]byte) []byte { return []byte("garbage") })), want: "tcp: wrong", took: 0},
		{name: "an endless answer over TCP", script: by(right, raw(func([]byte) []byte { return make([]byte, 60000) })), want: "tcp: wrong", took: 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := upstreamtest.New(tt.script)
				took, err := probe(t, server)
				switch {
				case tt.want == "" && err != nil:
					t.Errorf("probe: %v", err)
				case tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.want)):
					t.Errorf("probe: %v, want %s", err, tt.want)
				}
				if took > tt.took {
					t.Errorf("it took %s, want %s at most", took, tt.took)
				}
				if n := len(server.Queries()); n > 24 {
					t.Errorf("%d tries in one probe, want 12 over each transport at most", n)
				}
			})
		})
	}
}

func TestProbeQuery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(upstreamtest.Always(self(0)))
		if _, err := probe(t, s); err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		for _, q := range s.Queries() {
			m := new(dns.Msg)
			assert.NoError(t, m.Unpack(q.Raw))
			seen[fmt.Sprintf("%s %s %s %t", q.Network, m.Question[0].String(), dns.OpcodeToString[m.Opcode], m.RecursionDesired)]++
		}
		for _, network := range []string{"udp", "tcp"} {
			want := network + " ;self.node-cache.\tCH\t TXT QUERY false"
			if n := map[string]int{"udp": 4, "tcp": 1}[network]; seen[want] != n {
				t.Errorf("asked %v, want %d times %q", seen, n, want)
			}
		}
	})
}

func TestProbeContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Int64
		p := &intercept.Prober{Port: 53, Dial: func(ctx context.Context, _ string, _ netip.AddrPort) (net.Conn, error) {
			open.Add(1)
			defer open.Add(-1)
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		begun := time.Now()
		cause, err := p.Probe(ctx, addr4)
		if err == nil || cause != intercept.Silent || time.Since(begun) != 100*time.Millisecond {
			t.Errorf("probe: %v after %s, want silent after 100 ms", err, time.Since(begun))
		}
		if n := open.Load(); n != 0 {
			t.Errorf("%d tries go on after the probe", n)
		}
	})
}

func TestProbeCauses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		want intercept.Cause
	}{
		{syscall.ECONNREFUSED, intercept.Refused},
		{os.NewSyscallError("bind", syscall.EADDRNOTAVAIL), intercept.Unsent},
		{os.NewSyscallError("setsockopt", syscall.EPERM), intercept.Unsent},
		{syscall.ENETUNREACH, intercept.Unsent},
		{syscall.ETIMEDOUT, intercept.Silent},
		{os.ErrDeadlineExceeded, intercept.Silent},
		{errors.New("something else"), intercept.ProbeFailed},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &intercept.Prober{Port: 53, Dial: func(context.Context, string, netip.AddrPort) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Err: tt.err}
			}}
			if cause, err := p.Probe(t.Context(), addr4); err == nil || cause != tt.want {
				t.Errorf("%v: probe: %v, want cause %s", tt.err, err, tt.want)
			}
		})
	}
}

// TestProbeOnTheWire checks the packets of a probe: they have the mark, and their source
// is their destination, or there are none.
func TestProbeOnTheWire(t *testing.T) {
	t.Parallel()
	hosts := nodetest.Start(t, nodetest.Options{Pods: 1})
	node := hosts.Node
	count := fmt.Sprintf(`table inet seen {
		counter marked {}
		counter other {}
		chain in {
			type filter hook prerouting priority raw
			meta l4proto { udp, tcp } th dport 53 meta mark and %[1]d == %[1]d ip saddr 169.254.20.10 ip daddr 169.254.20.10 counter name marked return
			meta l4proto { udp, tcp } th dport 53 meta mark and %[1]d == %[1]d ip6 saddr fd00:20::10 ip6 daddr fd00:20::10 counter name marked return
			meta l4proto { udp, tcp } th dport 53 counter name other
		}
	}`, rules.Mark)
	if out, err := node.Output(t.Context(), "nft", count); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p := &intercept.Prober{
		Port: 53, Token: token,
		Dial: func(ctx context.Context, network string, addr netip.AddrPort) (conn net.Conn, err error) {
			err = node.Do(func() error { // on the thread that is in the node's namespace
				conn, err = intercept.DialMarked(ctx, network, addr)
				return err
			})
			return conn, err
		},
	}
	for _, addr := range []netip.Addr{addr4, addr6} {
		cause, err := p.Probe(t.Context(), addr)
		if err == nil || cause != intercept.Unsent {
			t.Errorf("without the address: %v, want unsent", err)
		}
		assert.NoError(t, node.AddAddress(addr))
		cause, err = p.Probe(t.Context(), addr)
		if err == nil || cause != intercept.Refused {
			t.Errorf("without a server: %v, want refused", err)
		}
		serve(t, node, netip.AddrPortFrom(addr, 53), token) // answers TXT queries with its name
		if _, err := p.Probe(t.Context(), addr); err != nil {
			t.Errorf("probe: %v", err)
		}
	}
	out, err := node.Output(t.Context(), "nft", "list", "counters")
	assert.NoError(t, err)
	marked, other := between(out, "marked {\n\t\tpackets ", " "), between(out, "other {\n\t\tpackets ", " ")
	if marked == "" || marked == "0" || other != "0" {
		t.Errorf("%q packets as they should be, %q others:\n%s", marked, other, out)
	}
}

// TestForgedOwnAddress sends queries from a pod whose source is their destination, as in
// the agent's own queries. The kernel drops those over IPv4. Over IPv6 the answers stay on
// the node.
func TestForgedOwnAddress(t *testing.T) {
	t.Parallel()
	hosts := nodetest.Start(t, nodetest.Options{Pods: 1})
	for _, tt := range []struct {
		addr          netip.Addr
		level, option int
		arrive        uint64
	}{{addr4, unix.IPPROTO_IP, unix.IP_TRANSPARENT, 0}, {addr6, unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT, 1}} {
		assert.NoError(t, hosts.Node.AddAddress(tt.addr))
		to := netip.AddrPortFrom(tt.addr, 53)
		s := serve(t, hosts.Node, to, token)
		lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
			return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), tt.level, tt.option, 1) }), err)
		}}
		var forger *net.UDPConn
		err := hosts.Pods[0].Do(func() error {
			conn, err := lc.ListenPacket(t.Context(), "udp", netip.AddrPortFrom(tt.addr, 0).String())
			if err == nil {
				forger = conn.(*net.UDPConn)
			}
			return err
		})
		assert.NoError(t, err)
		defer func() { _ = forger.Close() }()
		q, err := new(dns.Msg).SetQuestion("forged.nodetest.test.", dns.TypeTXT).Pack() // the server does not count those for SelfName
		assert.NoError(t, err)
		ask := func() {
			if who, err := nodetest.Ask(hosts.Pods[0], to, "udp"); err != nil || who != token {
				t.Fatalf("%s answers, %v", who, err)
			}
		}
		ask() // so that the pod knows its neighbour: a forged packet may be dropped while it is resolved
		if _, err := forger.WriteToUDPAddrPort(q, to); err != nil {
			t.Fatal(err)
		}
		ask() // after the forged one, by the same path; that one may still be in the queue of another processor
		n := uint64(0)
		for deadline := time.Now().Add(time.Minute); n != 2+tt.arrive && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			n, _ = s.Queries()
		}
		if n != 2+tt.arrive {
			t.Errorf("%s: %d queries arrived, want %d forged and two others", tt.addr, n, tt.arrive)
		}
		_ = forger.SetReadDeadline(time.Now().Add(time.Millisecond))
		if n, err := forger.Read(make([]byte, 512)); err == nil {
			t.Errorf("%s: the pod got an answer of %d bytes", tt.addr, n)
		}
	}
}

// between returns the text between before and after.
func between(text, before, after string) string {
	_, text, _ = strings.Cut(text, before)
	text, _, _ = strings.Cut(text, after)
	return text
}
