// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
)

// A maliciousAnswer is an answer that an attacker sends to the question that was asked.
type maliciousAnswer struct {
	name       string
	ask        uint16 // A if it is zero
	rcode      int
	answer     []string
	authority  []string
	additional []string
	want       string // rcode and records of the reply, sections apart
	untouched  string // a name the answer speaks of without right: it is still asked upstream
}

// chainOf is n aliases, from www.test to the last, which has an address.
func chainOf(n int) []string {
	var records []string
	owner := "www.test."
	for i := range n {
		target := fmt.Sprintf("c%d.test.", i)
		records = append(records, fmt.Sprintf("%s 300 IN CNAME %s", owner, target))
		owner = target
	}
	return append(records, owner+" 300 IN A 1.1.1.1")
}

// many is n records that differ.
func many(n int, format string) []string {
	var records []string
	for i := range n {
		records = append(records, fmt.Sprintf(format, i))
	}
	return records
}

const (
	evilSOA  = "test. 600 IN SOA ns.test. host.test. 1 3600 600 86400 20"
	evilAddr = "www.test. 300 IN A 1.1.1.1"
)

func evils() []maliciousAnswer {
	refused, address := "SERVFAIL", "NOERROR www.test. A 1.1.1.1"
	mail := append(many(1, "www.test. 300 IN CNAME c%d.test."), many(64, "c0.test. 300 IN MX 5 m%d.test.")...)
	return []maliciousAnswer{
		// MaginotDNS, CVE-2021-25220, CVE-2025-40778, CVE-2026-42960: what was not asked is believed.
		{name: "an address of another name in the answer", answer: []string{evilAddr, "bank.test. 300 IN A 6.6.6.6"}, want: address, untouched: "bank.test."},
		{name: "an address of another name before the answer", answer: []string{"bank.test. 300 IN A 6.6.6.6", evilAddr}, want: address, untouched: "bank.test."},
		{name: "an alias of another name", answer: []string{evilAddr, "bank.test. 300 IN CNAME evil.test."}, want: address, untouched: "bank.test."},
		{name: "a DNAME above another name", answer: []string{evilAddr, "bank. 300 IN DNAME evil."}, want: address, untouched: "www.bank."},
		{name: "a DNAME above the name, unused", answer: []string{"test. 300 IN DNAME evil.", evilAddr}, want: address, untouched: "bank.test."},
		{name: "another zone's servers", answer: []string{evilAddr}, authority: []string{"bank. 300 IN NS ns.evil."}, additional: []string{"ns.evil. 300 IN A 6.6.6.6"}, want: address, untouched: "ns.evil."},
		{name: "the servers of a zone below", answer: []string{evilAddr}, authority: []string{"sub.www.test. 300 IN NS ns.evil."}, want: address, untouched: "ns.evil."},
		{name: "another name of the zone's in the authority section", answer: []string{evilAddr}, authority: []string{"bank.test. 300 IN A 6.6.6.6"}, want: address, untouched: "bank.test."},
		{name: "another name in the additional section", answer: []string{evilAddr}, additional: []string{"bank.test. 300 IN A 6.6.6.6"}, want: address, untouched: "bank.test."},
		{name: "the name itself in the additional section", answer: []string{evilAddr}, additional: []string{"www.test. 300 IN A 6.6.6.6"}, want: address},
		{name: "nothing but another name", answer: []string{"bank.test. 300 IN A 6.6.6.6"}, want: refused, untouched: "bank.test."},
		{name: "nothing but another name, and a denial", answer: []string{"bank.test. 300 IN A 6.6.6.6"}, authority: []string{evilSOA}, want: refused, untouched: "bank.test."},
		{name: "a denial by another zone", rcode: 3, authority: []string{"bank. 600 IN SOA ns.bank. host.bank. 1 2 3 4 600"}, want: "NXDOMAIN", untouched: "bank."},
		{
			name: "a mail server and an address of another", ask: dns.TypeMX, answer: []string{"www.test. 300 IN MX 5 mx.test."},
			additional: []string{"mx.test. 300 IN A 1.1.1.1", "bank.test. 300 IN A 6.6.6.6", "mx.test. 300 IN TXT x"}, want: "NOERROR www.test. MX 5 mx.test. | mx.test. A 1.1.1.1", untouched: "bank.test.",
		},
		{
			name: "the proof of another zone", rcode: 3, authority: []string{evilSOA, "a.bank. 300 IN NSEC z.bank. A", "vvv.test. 300 IN NSEC xxx.test. A"},
			want: "NXDOMAIN test. SOA ns.test. host.test. 1 3600 600 86400 20; vvv.test. NSEC xxx.test. A", untouched: "a.bank.",
		},

		// PowerDNS Recursor 4.8.8 and node-cache 1.13.2, as run: the class is not looked at.
		{name: "another class", answer: []string{"www.test. 300 CH A 6.6.6.6", evilAddr}, want: address},
		{name: "nothing but another class", answer: []string{"www.test. 300 CH A 6.6.6.6"}, want: refused},
		{name: "an alias of another class", answer: []string{"www.test. 300 CH CNAME evil.test.", "evil.test. 300 IN A 6.6.6.6"}, want: refused, untouched: "evil.test."},
		{name: "a denial of another class", rcode: 3, authority: []string{"test. 600 CH SOA ns.test. host.test. 1 2 3 4 600"}, want: "NXDOMAIN"},

		// CVE-2019-10190, CVE-2019-10191, CVE-2020-12244: forged denials. See also TestKept.
		{name: "a denial with another's data", rcode: 3, answer: []string{"bank.test. 300 IN A 6.6.6.6"}, authority: []string{evilSOA}, want: refused, untouched: "bank.test."},
		{name: "a denial at the end of a chain, with its data", rcode: 3, answer: chainOf(1), authority: []string{evilSOA}, want: refused},

		// CVE-2021-25215, CVE-2024-24788: aliases without end, order or sense.
		{name: "16 aliases", answer: chainOf(16), want: "NOERROR " + strings.Join(spoken(chainOf(16)), "; ")},
		{name: "17 aliases", answer: chainOf(17), want: refused},
		{name: "aliases in a circle", answer: []string{"www.test. 300 IN CNAME a.test.", "a.test. 300 IN CNAME www.test."}, want: "NOERROR www.test. CNAME a.test.; a.test. CNAME www.test."},
		{name: "an alias of itself", answer: []string{"www.test. 300 IN CNAME www.test."}, want: "NOERROR www.test. CNAME www.test."},
		{name: "65 aliases of other names", answer: append(many(65, "a%d.test. 300 IN CNAME evil.test."), evilAddr), want: refused, untouched: "a0.test."},
		{name: "65 aliases for who asks for one", ask: dns.TypeCNAME, answer: many(65, "www.test. 300 IN CNAME a%d.test."), want: refused, untouched: "a0.test."},
		{name: "an alias, and 64 records that begin like its signature", ask: dns.TypeMX, answer: mail, want: "NOERROR " + strings.Join(spoken(mail), "; ")},
		{name: "the data before the alias", answer: []string{"a.test. 300 IN A 1.1.1.1", "www.test. 300 IN CNAME a.test."}, want: "NOERROR www.test. CNAME a.test.; a.test. A 1.1.1.1", untouched: "a.test."},
		{
			name: "aliases backwards", answer: []string{"b.test. 300 IN A 1.1.1.1", "a.test. 300 IN CNAME b.test.", "www.test. 300 IN CNAME a.test."},
			want: "NOERROR www.test. CNAME a.test.; a.test. CNAME b.test.; b.test. A 1.1.1.1", untouched: "b.test.",
		},
		{
			name: "two aliases of one name", answer: []string{"www.test. 300 IN CNAME a.test.", "www.test. 300 IN CNAME evil.test.", "a.test. 300 IN A 1.1.1.1", "evil.test. 300 IN A 6.6.6.6"},
			want: "NOERROR www.test. CNAME a.test.; a.test. A 1.1.1.1", untouched: "evil.test.",
		},
		{name: "an alias and data beside it", answer: []string{"www.test. 300 IN CNAME a.test.", "www.test. 300 IN A 6.6.6.6", "a.test. 300 IN A 1.1.1.1"}, want: "NOERROR www.test. CNAME a.test.; a.test. A 1.1.1.1"},
		{
			name: "an alias made by a DNAME", answer: []string{"test. 300 IN DNAME other.", "www.test. 300 IN CNAME www.other.", "www.other. 300 IN A 1.1.1.1"},
			want: "NOERROR test. DNAME other.; www.test. CNAME www.other.; www.other. A 1.1.1.1", untouched: "www.other.",
		},
		{name: "data of another type", answer: []string{"www.test. 300 IN TXT x"}, want: "NOERROR"},

		// CVE-2024-1737, CVE-2023-4408: records without number.
		{name: "more records than are taken", answer: []string{evilAddr}, additional: tiny(4096), want: refused},

		// A server that neither serves nor resolves the name: node-cache and CoreDNS pass that on as NODATA.
		{name: "a referral", authority: []string{"test. 300 IN NS ns.test."}, additional: []string{"ns.test. 300 IN A 6.6.6.6"}, want: refused, untouched: "ns.test."},
		{name: "a referral to the root", authority: []string{". 300 IN NS a.root."}, want: refused},
		{name: "a referral behind data of another type", answer: []string{"www.test. 300 IN TXT x"}, authority: []string{"test. 300 IN NS ns.test."}, want: refused},
	}
}

// tiny is n records of 11 bytes each.
func tiny(n int) []string {
	records := make([]string, n)
	for i := range records {
		records[i] = ". 1 IN TYPE65280 \\# 0"
	}
	return records
}

// spoken is how TestEvil writes records.
func spoken(records []string) []string {
	list := make([]string, 0, len(records))
	for _, record := range records {
		fields := strings.Fields(record)
		list = append(list, strings.Join(append(fields[:1:1], fields[3:]...), " "))
	}
	return list
}

func replyText(m *dns.Msg) string {
	parts := []string{}
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		var lines []string
		for _, rr := range section {
			if rr.Header().Rrtype != dns.TypeOPT {
				lines = append(lines, rr.String())
			}
		}
		if len(lines) > 0 {
			parts = append(parts, strings.Join(spoken(lines), "; "))
		}
	}
	return strings.TrimSpace(dns.RcodeToString[m.Rcode] + " " + strings.Join(parts, " | "))
}

// TestMaliciousAnswers has an upstream send each of them. It checks the client's reply, the cached
// one, and queries the names that the answer had no authority for.
func TestMaliciousAnswers(t *testing.T) {
	t.Parallel()
	for _, tt := range evils() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				u := newUpstream(t, "bank.test. 60 IN A 192.0.2.9")
				u.mangle = tt.say(t)
				r := newResolver(t, plan(t, u))
				ask := func(name string, rrtype uint16) *dns.Msg {
					return unpack(t, newClient(r, true).exchange(t, pack(t, question(name, rrtype))))
				}
				rrtype := tt.ask
				if rrtype == 0 {
					rrtype = dns.TypeA
				}
				for _, when := range []string{"fresh", "again"} {
					assert.Same(t, when, tt.want, replyText(ask("www.test.", rrtype)))
				}
				if tt.untouched == "" {
					return
				}
				time.Sleep(10 * time.Second)
				for _, rrtype := range []uint16{dns.TypeA, dns.TypeNS, dns.TypeCNAME} {
					before := u.count()
					reply := ask(tt.untouched, rrtype)
					if u.count() == before || strings.Contains(reply.String(), "6.6.6.6") {
						t.Errorf("%s %s was not asked upstream, but answered\n%s", tt.untouched, dns.TypeToString[rrtype], reply)
					}
				}
			})
		})
	}
}

// say makes an upstream's answers about www.test these; of other names it knows
// nothing else than it did.
func (e *maliciousAnswer) say(tb testing.TB) func(*dns.Msg) {
	tb.Helper()
	read := func(lines []string) []dns.RR {
		list := make([]dns.RR, 0, len(lines))
		for _, line := range lines {
			rr := record(tb, line)
			list = append(list, rr)
		}
		return list
	}
	an, ns, ar := read(e.answer), read(e.authority), read(e.additional)
	return func(m *dns.Msg) {
		if m.Question[0].Name == "www.test." {
			m.Rcode, m.Answer, m.Ns, m.Extra = e.rcode, an, ns, ar
		}
	}
}
