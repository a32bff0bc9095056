// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// honest is what honest upstreams say, of which nothing is taken.
func honest(tb testing.TB) map[string][]byte {
	tb.Helper()
	soa := "example. 60 IN SOA ns.example. mail.example. 1 2 3 4 5"
	var many []string
	for range 30 {
		many = append(many, "www.example. 60 IN A 192.0.2.1")
	}
	srv := message(tb, dns.TypeSRV, []string{"www.example. 60 IN SRV 0 0 53 a.example.", "www.example. 60 IN SRV 0 0 53 b.example."}, nil,
		[]string{"a.example. 60 IN A 192.0.2.1", "b.example. 60 IN A 192.0.2.2"})
	denial := message(tb, dns.TypeA, nil, []string{soa}, nil)
	denial.Rcode = dns.RcodeNameError
	list := map[string]*dns.Msg{
		"address":   message(tb, dns.TypeA, []string{"www.example. 60 IN A 192.0.2.1"}, nil, nil),
		"alias":     message(tb, dns.TypeA, []string{"www.example. 60 IN CNAME a.example.", "a.example. 60 IN A 192.0.2.1"}, nil, nil),
		"addresses": message(tb, dns.TypeA, many, nil, nil),
		"denial":    denial,
		"services":  srv,
	}
	packed := map[string][]byte{}
	for name, m := range list {
		packed[name] = wired(tb, m)
	}
	return packed
}

// message is an answer for www.example.
func message(tb testing.TB, rrtype uint16, an, ns, ar []string) *dns.Msg {
	tb.Helper()
	m := new(dns.Msg).SetQuestion("www.example.", rrtype)
	m.Response, m.Compress = true, true
	read := func(lines []string) (list []dns.RR) {
		for _, line := range lines {
			rr, err := dns.NewRR(line)
			if err != nil {
				tb.Fatal(err)
			}
			list = append(list, rr)
		}
		return list
	}
	m.Answer, m.Ns, m.Extra = read(an), read(ns), read(ar)
	return m
}

func wired(tb testing.TB, m *dns.Msg) []byte {
	tb.Helper()
	msg, err := m.Pack()
	if err != nil {
		tb.Fatal(err)
	}
	return msg
}

func testRoute() *Route {
	return &Route{TTL: TTLs{Min: 5 * time.Second, Max: time.Hour, Negative: 30 * time.Second}}
}

// TestValidatorAllocations cannot run beside other tests: the count is the process's.
func TestValidatorAllocations(t *testing.T) {
	for name, msg := range honest(t) {
		p, j := testRoute(), new(validator)
		buf, m := make([]byte, len(msg)), new(wire.Message)
		got := testing.AllocsPerRun(100, func() {
			copy(buf, msg)
			err := m.Parse(buf)
			if err == nil {
				_, err = j.validate(p, m)
			}
			if err != nil || len(m.Raw) != len(msg) {
				t.Errorf("%s: %d bytes of %d are left, error %v", name, len(m.Raw), len(msg), err)
			}
		})
		if got != 0 {
			t.Errorf("%s: %v allocations, want none", name, got)
		}
	}
}

// BenchmarkClean is the part of judging that looks for what does not belong.
func BenchmarkClean(b *testing.B) {
	for name, msg := range honest(b) {
		b.Run(name, func(b *testing.B) {
			var m wire.Message
			var bw bailiwick
			if err := m.Parse(msg); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := bw.sanitize(&m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkValidator(b *testing.B) {
	for name, msg := range honest(b) {
		b.Run(name, func(b *testing.B) {
			p, j := testRoute(), new(validator)
			buf, m := make([]byte, len(msg)), new(wire.Message)
			b.ReportAllocs()
			for b.Loop() {
				copy(buf, msg)
				if err := m.Parse(buf); err != nil {
					b.Fatal(err)
				}
				if _, err := j.validate(p, m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for name, msg := range honest(b) {
		b.Run(name, func(b *testing.B) {
			var m wire.Message
			b.ReportAllocs()
			for b.Loop() {
				if err := m.Parse(msg); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
