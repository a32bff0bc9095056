// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

// TestStoredAnswer checks which answers are cached, and for how long.
func TestStoredAnswer(t *testing.T) {
	t.Parallel()
	const soa = "test. 600 IN SOA ns.test. host.test. 1 3600 600 86400 20"
	for _, tt := range []struct {
		name              string
		rcode             int
		answer, authority []string
		additional        []string
		want              string // rcode; how long the same question is answered without asking again
	}{
		{"an address", 0, []string{"www.test. 300 IN A 1.1.1.1"}, nil, nil, "NOERROR 5m0s"},
		{"the shortest TTL of all", 0, []string{"www.test. 300 IN CNAME a.test.", "a.test. 40 IN A 1.1.1.1"}, []string{"test. 35 IN NS ns.test."}, nil, "NOERROR 35s"},
		{"records that do not stay do not count", 0, []string{"www.test. 300 IN CNAME a.test.", "a.test. 40 IN A 1.1.1.1"}, []string{"test. 50 IN NS ns.test."}, []string{"ns.test. 35 IN A 1.1.1.1"}, "NOERROR 40s"},
		{"raised to the least", 0, []string{"www.test. 1 IN A 1.1.1.1"}, nil, nil, "NOERROR 5s"},
		{"cut to the most", 0, []string{"www.test. 604800 IN A 1.1.1.1"}, nil, nil, "NOERROR 1h0m0s"},
		{"TTL 0 is not kept", 0, []string{"www.test. 0 IN A 1.1.1.1"}, nil, nil, "NOERROR 0s"},
		{"TTL with the top bit is 0", 0, []string{"www.test. 2147483648 IN A 1.1.1.1"}, nil, nil, "NOERROR 0s"},
		{"NXDOMAIN with SOA", 3, nil, []string{soa}, nil, "NXDOMAIN 20s"},
		{"NODATA with SOA", 0, nil, []string{soa}, nil, "NOERROR 20s"},
		{"the SOA's own TTL if less", 3, nil, []string{"test. 9 IN SOA ns.test. host.test. 1 3600 600 86400 20"}, nil, "NXDOMAIN 9s"},
		{"denials are cut", 3, nil, []string{"test. 900 IN SOA ns.test. host.test. 1 3600 600 86400 900"}, nil, "NXDOMAIN 30s"},
		{"denials are not raised", 3, nil, []string{"test. 2 IN SOA ns.test. host.test. 1 3600 600 86400 900"}, nil, "NXDOMAIN 2s"},
		{"NXDOMAIN at the end of a chain", 3, []string{"www.test. 300 IN CNAME a.test."}, []string{soa}, nil, "NXDOMAIN 20s"},
		{"NODATA at the end of a chain", 0, []string{"www.test. 10 IN CNAME a.test."}, []string{soa}, nil, "NOERROR 10s"},
		{"a denial without SOA", 3, nil, nil, nil, "NXDOMAIN 0s"},
		{"nothing at all", 0, nil, nil, nil, "NOERROR 0s"},
		{"a referral", 0, nil, []string{"test. 300 IN NS ns.test."}, nil, "SERVFAIL 1s"},
		{"a chain that leads nowhere", 0, []string{"www.test. 300 IN CNAME a.test."}, nil, nil, "NOERROR 0s"},
		{"NXDOMAIN with the data it denies", 3, []string{"www.test. 300 IN A 1.1.1.1"}, []string{soa}, nil, "SERVFAIL 1s"},
		{"NXDOMAIN with other data", 3, []string{"www.test. 300 IN TXT x"}, []string{soa}, nil, "SERVFAIL 1s"},
		{"a rcode that is no answer", 5, nil, []string{soa}, nil, "SERVFAIL 1s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				u := newUpstream(t)
				u.mangle = func(m *dns.Msg) {
					m.Rcode = tt.rcode
					for _, part := range []struct {
						to   *[]dns.RR
						from []string
					}{{&m.Answer, tt.answer}, {&m.Ns, tt.authority}, {&m.Extra, tt.additional}} {
						for _, text := range part.from {
							rr, err := dns.NewRR(text)
							if err != nil {
								t.Error(err)
							}
							*part.to = append(*part.to, rr)
						}
					}
					m.SetEdns0(4096, true) // the hop's own, never seen by clients
				}
				r := newResolver(t, plan(t, u))
				ask := func() *dns.Msg {
					return unpack(t, newClient(r, false).exchange(t, pack(t, question("www.test.", dns.TypeA))))
				}
				first := ask()
				if first.IsEdns0() != nil {
					t.Errorf("a client without EDNS got\n%s", first)
				}
				kept := time.Duration(0)
				for ; kept < 2*time.Hour; kept += time.Second {
					before := u.count()
					ask()
					if u.count() > before {
						break
					}
					time.Sleep(time.Second)
				}
				if diff := cmp.Diff(tt.want, fmt.Sprintf("%s %s", dns.RcodeToString[first.Rcode], kept)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestRotation counts which address is first: with n addresses each one in every
// n-th reply, and the set is always whole.
func TestRotation(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 3, 7, 50} {
		for _, rrtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			t.Run(fmt.Sprintf("%d %s", n, dns.TypeToString[rrtype]), func(t *testing.T) {
				t.Parallel()
				var records []string
				for i := range n {
					records = append(records, fmt.Sprintf("www.test. 300 IN A 10.0.0.%d", i), fmt.Sprintf("www.test. 300 IN AAAA fd00::%x", i+1))
				}
				r := newResolver(t, plan(t, newUpstream(t, records...)))
				c := newClient(r, true)
				first := map[string]int{}
				c.exchange(t, pack(t, question("www.test.", rrtype)))
				for range 10 * n {
					m := unpack(t, c.exchange(t, pack(t, question("www.test.", rrtype))))
					whole := map[string]bool{}
					for _, rr := range m.Answer {
						rr.Header().Ttl = 0 // a slow machine sees it count down
						whole[rr.String()] = true
					}
					if len(whole) != n {
						t.Fatalf("%d different records, want %d:\n%s", len(whole), n, m)
					}
					first[m.Answer[0].String()]++
				}
				for rr, times := range first {
					if times != 10 {
						t.Errorf("%s was first %d times of %d, want 10", rr, times, 10*n)
					}
				}
				if len(first) != n {
					t.Errorf("%d of %d addresses were ever first", len(first), n)
				}
			})
		}
	}
}
