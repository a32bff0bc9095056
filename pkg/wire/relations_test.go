// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// FuzzWithin holds the kinship of any two owners against the oracle's.
func FuzzWithin(f *testing.F) {
	for _, msg := range seedAnswers(f) {
		f.Add(msg)
	}
	f.Add(reply(3, 0, 0, record(labels(), wire.TypeTXT, nil), record(labels("Sub", "example"), wire.TypeTXT, nil), record(labels("subexample"), wire.TypeTXT, nil)))
	www := record(cat([]byte{3}, []byte("www"), pointer(12)), wire.TypeTXT, nil)
	for _, owner := range [][]byte{
		pointer(firstRecord), labels("WWW", "eXample"), cat([]byte{3}, []byte("WwW"), pointer(12)), cat([]byte{1, 'a'}, pointer(firstRecord)),
		labels("www.example"), labels("www", "\x45xampl\x25"),
	} {
		f.Add(reply(2, 0, 0, www, record(owner, wire.TypeTXT, nil)))
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		var m wire.Message
		if m.Parse(msg) != nil {
			return
		}
		names := []int{wire.QuestionNameOffset}
		for _, r := range m.Records[:min(len(m.Records), 8)] {
			names = append(names, int(r.Owner))
		}
		for _, a := range names {
			for _, b := range names {
				child, parent := oracleName(t, m.Raw, a), oracleName(t, m.Raw, b)
				if got, want := m.Within(a, b), dns.IsSubDomain(parent, child); got != want {
					t.Fatalf("%s in %s: got %t, want %t", child, parent, got, want)
				}
				if got, want := m.SameName(a, b), dns.IsSubDomain(parent, child) && dns.IsSubDomain(child, parent); got != want {
					t.Fatalf("%s is %s: got %t, want %t", child, parent, got, want)
				}
				equal := bytes.Equal(m.AppendName(nil, a), m.AppendName(nil, b))
				if equal != m.SameName(a, b) {
					t.Fatalf("%s and %s spelled out: equal %t", child, parent, equal)
				}
			}
		}
	})
}

func oracleName(tb testing.TB, msg []byte, off int) string {
	tb.Helper()
	name, _, err := dns.UnpackDomainName(msg, off)
	assert.NoError(tb, err)
	return name
}

// TestMessageTarget reads where records of every kind lead.
func TestMessageTarget(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, record, want string }{
		{"CNAME", "example. 60 IN CNAME a.b.", "a.b."},
		{"DNAME", "example. 60 IN DNAME a.b.", "a.b."},
		{"NS", "example. 60 IN NS a.b.", "a.b."},
		{"MX", "example. 60 IN MX 10 A.b.", "a.b."},
		{"no MX", "example. 60 IN MX 0 .", "."},
		{"SRV", "example. 60 IN SRV 1 2 3 a.b.", "a.b."},
		{"SVCB", "example. 60 IN SVCB 1 a.b. alpn=h2", "a.b."},
		{"HTTPS of the owner", "example. 60 IN HTTPS 1 . alpn=h2", "example."},
		{"NAPTR", `example. 60 IN NAPTR 1 2 "S" "SIP+D2U" "" a.b.`, "a.b."},
		{"NAPTR with an expression", `example. 60 IN NAPTR 1 2 "u" "sip+E2U" "!^.*$!sip:x@y!" .`, "."},
		{"PTR", "example. 60 IN PTR a.b.", "none"},
		{"SOA", "example. 60 IN SOA a.b. c. 1 2 3 4 5", "none"},
		{"A", "example. 60 IN A 192.0.2.1", "none"},
	}
	for _, tt := range tests {
		m := parseMessage(t, pack(t, answer(t, "example.", dns.TypeMX, records(t, tt.record), nil, nil)))
		got := "none"
		if off := m.Target(m.Records[0]); off >= 0 {
			got = oracleName(t, m.AppendName(nil, off), 0)
		}
		assert.Same(t, tt.name, tt.want, got)
	}
}

// TestMessageSigner reads what signatures cover and whose they are.
func TestMessageSigner(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, record string
		covered      uint16
		want         string
	}{
		{"whole", "example. 60 IN RRSIG NS 13 1 60 20300101000000 20200101000000 1 Signer.example. AAAA", dns.TypeNS, "signer.example."},
		{"of the root", "example. 60 IN RRSIG DS 13 1 60 20300101000000 20200101000000 1 . AAAA", dns.TypeDS, "."},
	}
	for _, tt := range tests {
		m := parseMessage(t, pack(t, answer(t, "example.", dns.TypeMX, records(t, tt.record), nil, nil)))
		assert.Same(t, tt.name+": covers", tt.covered, m.TypeCovered(m.Records[0]))
		got := "none"
		if off := m.Signer(m.Records[0]); off >= 0 {
			got = oracleName(t, m.AppendName(nil, off), 0)
		}
		assert.Same(t, tt.name, tt.want, got)
	}
}

// TestMessageNoName reads RDATA that Parse does not look into and that is cut, or
// has a pointer where none may be.
func TestMessageNoName(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		rrtype  uint16
		data    []byte
		covered uint16
	}{
		{"HTTPS of nothing", wire.TypeHTTPS, nil, 0},
		{"HTTPS of a byte", wire.TypeHTTPS, []byte{0}, 0},
		{"HTTPS without a name", wire.TypeHTTPS, []byte{0, 1}, 0},
		{"HTTPS, name cut", wire.TypeHTTPS, []byte{0, 1, 3, 'a'}, 0},
		{"HTTPS, name compressed", wire.TypeHTTPS, cat([]byte{0, 1}, pointer(12)), 0},
		{"NAPTR of nothing", wire.TypeNAPTR, nil, 0},
		{"NAPTR without flags", wire.TypeNAPTR, []byte{0, 1, 0, 2}, 0},
		{"NAPTR cut in the flags", wire.TypeNAPTR, []byte{0, 1, 0, 2, 255, 0}, 0},
		{"NAPTR without a name", wire.TypeNAPTR, []byte{0, 1, 0, 2, 0, 0, 0}, 0},
		{"NAPTR, name compressed", wire.TypeNAPTR, cat([]byte{0, 1, 0, 2, 0, 0, 0}, pointer(12)), 0},
		{"RRSIG of nothing", wire.TypeRRSIG, nil, 0},
		{"RRSIG cut in the type", wire.TypeRRSIG, []byte{1}, 0},
		{"RRSIG cut before the signer", wire.TypeRRSIG, cat(u16(wire.TypeNS), make([]byte, 16)), wire.TypeNS},
		{"RRSIG cut in the signer", wire.TypeRRSIG, cat(u16(wire.TypeNS), make([]byte, 16), []byte{3, 'a'}), wire.TypeNS},
		{"RRSIG, signer compressed", wire.TypeRRSIG, cat(u16(wire.TypeNS), make([]byte, 16), pointer(12)), wire.TypeNS},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			// What follows would make a name of what is cut.
			msg := reply(2, 0, 0, record(pointer(12), tt.rrtype, tt.data), record(labels("a", "b"), wire.TypeTXT, nil))
			m := parseMessage(t, msg)
			r := m.Records[0]
			if target := m.Target(r); target >= 0 {
				t.Errorf("target at %d", target)
			}
			if tt.rrtype != wire.TypeRRSIG {
				return
			}
			if signer := m.Signer(r); signer >= 0 {
				t.Errorf("signer at %d", signer)
			}
			assert.Same(t, "covers", tt.covered, m.TypeCovered(r))
		})
	}
}

// TestMessageLame tells referrals from all else that has no answer.
func TestMessageInconclusive(t *testing.T) {
	t.Parallel()
	alias, soa := "www.example. 60 IN CNAME web.example.", "example. 60 IN SOA ns.example. mail.example. 1 2 3 4 5"
	tests := []struct {
		name   string
		rrtype uint16
		rcode  int
		an     []string
		ns     []string
		want   bool
	}{
		{"an alias", dns.TypeA, 0, []string{alias}, nil, true},
		{"an alias and servers", dns.TypeA, 0, []string{alias}, []string{"example. 60 IN NS ns.example."}, true},
		{"an alias and data of another type", dns.TypeA, 0, []string{alias, "web.example. 60 IN AAAA 2001:db8::1"}, nil, true},
		{"a denied target", dns.TypeA, 0, []string{alias}, []string{soa}, false},
		{"a target that does not exist", dns.TypeA, dns.RcodeNameError, []string{alias}, nil, false},
		{"an answer", dns.TypeA, 0, []string{alias, "web.example. 60 IN A 192.0.2.1"}, nil, false},
		{"the alias was asked for", dns.TypeCNAME, 0, []string{alias}, nil, false},
		{"NODATA without SOA", dns.TypeA, 0, nil, nil, false},
		{"SERVFAIL with the alias", dns.TypeA, dns.RcodeServerFailure, []string{alias}, nil, false},
	}
	for _, tt := range tests {
		msg := answer(t, "www.example.", tt.rrtype, records(t, tt.an...), records(t, tt.ns...), nil)
		msg.Rcode = tt.rcode
		assert.Same(t, tt.name, tt.want, parseMessage(t, pack(t, msg)).IsInconclusive())
	}
	nothing := answer(t, "www.example.", dns.TypeA, nil, nil, nil)
	nothing.RecursionAvailable = false
	assert.Same(t, "nothing, without AA and RA", true, parseMessage(t, pack(t, nothing)).IsInconclusive())
	nothing.Authoritative = true
	assert.Same(t, "nothing, with AA", false, parseMessage(t, pack(t, nothing)).IsInconclusive())
}

func TestMessageLame(t *testing.T) {
	t.Parallel()
	ns, soa := "example. 60 IN NS ns.example.", "example. 60 IN SOA ns.example. mail.example. 1 2 3 4 5"
	tests := []struct {
		name  string
		aa    bool
		rcode int
		an    []string
		ns    []string
		want  bool
	}{
		{"a referral", false, 0, nil, []string{ns}, true},
		{"upwards", false, 0, nil, []string{". 60 IN NS a.root."}, true},
		{"with a DS", false, 0, nil, []string{ns, "example. 60 IN DS 1 13 2 00"}, true},
		{"NODATA", false, 0, nil, []string{soa}, false},
		{"NODATA with the zone's servers", false, 0, nil, []string{ns, soa}, false},
		{"NODATA of an authority that forgot the SOA", true, 0, nil, []string{ns}, false},
		{"nothing", false, 0, nil, nil, false},
		{"NXDOMAIN", false, dns.RcodeNameError, nil, []string{ns}, false},
		{"SERVFAIL", false, dns.RcodeServerFailure, nil, []string{ns}, false},
		{"an answer and its servers", false, 0, []string{"www.example. 60 IN A 192.0.2.1"}, []string{ns}, false},
	}
	for _, tt := range tests {
		msg := answer(t, "www.example.", dns.TypeA, records(t, tt.an...), records(t, tt.ns...), nil)
		msg.Authoritative, msg.Rcode = tt.aa, tt.rcode
		assert.Same(t, tt.name, tt.want, parseMessage(t, pack(t, msg)).IsReferral())
	}
}
