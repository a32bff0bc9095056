// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
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
			assert.NoError(tb, err)
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
	assert.NoError(tb, err)
	return msg
}

func testBounds() TTLs {
	return TTLs{Min: 5 * time.Second, Max: time.Hour, Negative: 30 * time.Second}
}

// TestValidate checks how long an answer may be cached, and which answers are refused.
func TestValidate(t *testing.T) {
	t.Parallel()
	const soa, alias, addr = "example. 600 IN SOA ns.example. host.example. 1 3600 600 86400 20", "www.example. 300 IN CNAME a.example.", "a.example. 40 IN A 1.1.1.1"
	for _, tt := range []struct {
		name              string
		rcode             int
		answer, authority []string
		additional        []string
		want              string // lifetime and error
	}{
		{"an address", 0, []string{"www.example. 300 IN A 1.1.1.1"}, nil, nil, "5m0s <nil>"},
		{"the shortest TTL of all", 0, []string{alias, addr}, []string{"example. 35 IN NS ns.example."}, nil, "35s <nil>"},
		{"records that are removed do not count", 0, []string{alias, addr}, []string{"example. 50 IN NS ns.example."}, []string{"ns.example. 35 IN A 1.1.1.1"}, "40s <nil>"},
		{"raised to the minimum", 0, []string{"www.example. 1 IN A 1.1.1.1"}, nil, nil, "5s <nil>"},
		{"lowered to the maximum", 0, []string{"www.example. 604800 IN A 1.1.1.1"}, nil, nil, "1h0m0s <nil>"},
		{"TTL 0", 0, []string{"www.example. 0 IN A 1.1.1.1"}, nil, nil, "0s <nil>"},
		{"TTL with the top bit", 0, []string{"www.example. 2147483648 IN A 1.1.1.1"}, nil, nil, "0s <nil>"},
		{"the SOA record's MINIMUM", 3, nil, []string{soa}, nil, "20s <nil>"},
		{"the SOA record's TTL", 3, nil, []string{"example. 9 IN SOA ns.example. host.example. 1 3600 600 86400 20"}, nil, "9s <nil>"},
		{"denials are lowered", 0, nil, []string{"example. 900 IN SOA ns.example. host.example. 1 3600 600 86400 900"}, nil, "30s <nil>"},
		{"denials are not raised", 3, nil, []string{"example. 2 IN SOA ns.example. host.example. 1 3600 600 86400 900"}, nil, "2s <nil>"},
		{"NXDOMAIN at the end of a chain", 3, []string{alias}, []string{soa}, nil, "20s <nil>"},
		{"NODATA at the end of a chain", 0, []string{"www.example. 10 IN CNAME a.example."}, []string{soa}, nil, "10s <nil>"},
		{"a denial without SOA record", 3, nil, nil, nil, "0s <nil>"},
		{"no record", 0, nil, nil, nil, "0s <nil>"},
		{"a chain without data", 0, []string{alias}, nil, nil, "0s <nil>"},
		{"a referral", 0, nil, []string{"example. 300 IN NS ns.example."}, nil, "0s " + errReferral.Error()},
		{"NXDOMAIN with the data it denies", 3, []string{"www.example. 300 IN A 1.1.1.1"}, []string{soa}, nil, "0s " + errContradiction.Error()},
		{"NXDOMAIN with other data", 3, []string{"www.example. 300 IN TXT x"}, []string{soa}, nil, "0s " + errContradiction.Error()},
		{"REFUSED", 5, nil, []string{soa}, nil, "0s " + errRcode.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			sent := message(t, dns.TypeA, tt.answer, tt.authority, tt.additional)
			sent.Rcode = tt.rcode
			sent.SetEdns0(4096, true)
			var m wire.Message
			assert.NoError(t, m.Parse(wired(t, sent)))
			life, err := new(validator).validate(testBounds(), &m)
			if got := fmt.Sprintf("%v %v", life, err); got != tt.want || m.HasOPT() {
				t.Errorf("got %s, OPT record %t, want %s", got, m.HasOPT(), tt.want)
			}
		})
	}
}

// TestValidatorAllocations cannot run beside other tests: the count is the process's.
func TestValidatorAllocations(t *testing.T) {
	for name, msg := range honest(t) {
		p, j := testBounds(), new(validator)
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
		assert.Equal(t, name+": allocations", 0, got)
	}
}

func BenchmarkValidator(b *testing.B) {
	for name, msg := range honest(b) {
		b.Run(name, func(b *testing.B) {
			p, j := testBounds(), new(validator)
			buf, m := make([]byte, len(msg)), new(wire.Message)
			b.ReportAllocs()
			for b.Loop() {
				copy(buf, msg)
				assert.NoError(b, m.Parse(buf))
				if _, err := j.validate(p, m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
