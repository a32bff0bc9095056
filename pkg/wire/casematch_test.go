// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// slowMix changes the case of letters one by one.
func slowMix(name []byte, bits uint64) []byte {
	mixed := bytes.Clone(name)
	for i, c := range name {
		if bits>>(i%64)&1 == 0 {
			continue
		}
		switch {
		case 'a' <= c && c <= 'z':
			mixed[i] = c - 'a' + 'A'
		case 'A' <= c && c <= 'Z':
			mixed[i] = c - 'A' + 'a'
		}
	}
	return mixed
}

// FuzzMixCase holds RandomCase against a byte-by-byte reading, and Match against
// what it must say of an answer in those letters and in others.
func FuzzMixCase(f *testing.F) {
	for _, q := range seedQueries(f) {
		f.Add(q, uint64(0xdeadbeefcafef00d))
	}
	f.Add(cat(header(flagsQuery, 1, 0, 0, 0), question(labels("@AZ[`az{\x00\x7f\x80\xc1\xda\xff", "www"), 0x4161)), ^uint64(0))
	f.Add(cat(header(flagsQuery, 1, 0, 0, 0), question(longName(255), 0x4161)), ^uint64(0))
	f.Fuzz(func(t *testing.T, pkt []byte, bits uint64) {
		var q wire.Query
		if q.Parse(pkt) != wire.RcodeSuccess {
			return
		}
		end := 12 + len(q.QuestionSection()) - 4
		want := cat(pkt[:12], slowMix(pkt[12:end], bits), pkt[end:])
		got := bytes.Clone(pkt)
		wire.RandomCase(got, bits)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("(-want +got)\n%s", diff)
		}
		r := bytes.Clone(got[:end+4])
		r[2] |= 0x80
		if like := wire.Match(got, r); like != wire.ExactMatch {
			t.Fatalf("the same letters are %d", like)
		}
		wantLike := wire.CaseMismatch
		if bytes.Equal(pkt, got) {
			wantLike = wire.ExactMatch
		}
		if like := wire.Match(pkt, r); like != wantLike {
			t.Fatalf("other letters are %d, want %d", like, wantLike)
		}
	})
}

// TestMixCaseMalformed leaves alone what is no query.
func TestMixCaseMalformed(t *testing.T) {
	t.Parallel()
	for _, pkt := range [][]byte{nil, make([]byte, 12), cat(header(flagsQuery, 1, 0, 0, 0), []byte("\x05abc")), cat(header(flagsQuery, 1, 0, 0, 0), []byte("\x01a\xc0\x0cAA"))} {
		got := bytes.Clone(pkt)
		wire.RandomCase(got, ^uint64(0))
		if !bytes.Equal(pkt, got) {
			t.Errorf("%x became %x", pkt, got)
		}
	}
}

// TestMessageStoredQuestionCopied asks in mixed letters servers that copy the name they
// were asked for.
func TestMessageStoredQuestionCopied(t *testing.T) {
	t.Parallel()
	asked := labels("wWw", "eXample", "COM")
	a := func(owner []byte) []byte { return record(owner, wire.TypeA, []byte{192, 0, 2, 1}) }
	msg := func(an, ns uint16, records ...[]byte) []byte {
		return cat(header(flagsAnswer, 1, an, ns, 0), question(asked, wire.TypeA), cat(records...))
	}
	const behind = 12 + 17 + 4
	tests := []struct {
		name string
		msg  []byte
		want []string // records as the oracle reads them
	}{
		{"a pointer", msg(1, 0, a(pointer(12))), []string{"www.example.com. 300 IN A 192.0.2.1"}},
		{"a copy", msg(1, 0, a(asked)), []string{"www.example.com. 300 IN A 192.0.2.1"}},
		{"half a copy", msg(1, 0, a(cat([]byte("\x03wWw"), pointer(16)))), []string{"www.example.com. 300 IN A 192.0.2.1"}},
		{"a copy and a pointer to it", msg(2, 0, a(asked), a(pointer(behind))), []string{"www.example.com. 300 IN A 192.0.2.1", "www.example.com. 300 IN A 192.0.2.1"}},
		{
			"a zone", msg(0, 1, record(asked[4:], wire.TypeSOA, cat(pointer(16), labels("Host"), make([]byte, 20)))),
			[]string{"example.com. 300 IN SOA example.com. Host. 0 0 0 0 0"},
		},
		{
			"another's letters stay", msg(2, 0, record(pointer(12), wire.TypeCNAME, labels("WWW", "Other")), a(labels("WWW", "Other"))),
			[]string{"www.example.com. 300 IN CNAME WWW.Other.", "WWW.Other. 300 IN A 192.0.2.1"},
		},
		{"the root", msg(1, 0, a(labels())), []string{". 300 IN A 192.0.2.1"}},
		{
			"an alias made for a DNAME",
			msg(3, 0, record(asked[12:], wire.TypeDNAME, labels("Net")), record(pointer(12), wire.TypeCNAME, labels("wWw", "eXample", "Net")), a(pointer(behind+4+1+10+5+2+10))),
			[]string{"com. 300 IN DNAME Net.", "www.example.com. 300 IN CNAME www.example.Net.", "www.example.Net. 300 IN A 192.0.2.1"},
		},
		{
			"an alias made for a DNAME, and compressed",
			msg(2, 0, record(asked[12:], wire.TypeDNAME, labels("eXample")), record(pointer(12), wire.TypeCNAME, cat([]byte("\x03wWw\x07eXample"), pointer(behind+5+10)))),
			[]string{"com. 300 IN DNAME eXample.", "www.example.com. 300 IN CNAME www.example.eXample."},
		},
	}
	for _, tt := range tests {
		m := parseMessage(t, tt.msg)
		m.CanonicalizeQuestion()
		read := unpack(t, m.Raw)
		var got []string
		for _, rr := range append(read.Answer, read.Ns...) {
			got = append(got, rr.String())
		}
		var want []string
		for _, rr := range records(t, tt.want...) {
			want = append(want, rr.String())
		}
		assert.Same(t, tt.name, want, got)
		assert.Same(t, tt.name+": question", "www.example.com.", read.Question[0].Name)
	}
}

// FuzzStoredQuestion changes nothing but the case of letters, and leaves a
// message that can be read.
func FuzzStoredQuestion(f *testing.F) {
	for i, msg := range seedAnswers(f) {
		wire.RandomCase(msg, uint64(i)*0x9e3779b97f4a7c15)
		f.Add(msg)
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		var m wire.Message
		if m.Parse(bytes.Clone(msg)) != nil {
			return
		}
		m.CanonicalizeQuestion()
		if !wire.EqualFold(msg[:len(m.Raw)], m.Raw) {
			t.Fatalf("%x became %x", msg, m.Raw)
		}
		again := parseMessage(t, m.Raw)
		if diff := cmp.Diff(m.Records, again.Records); len(m.Records) > 0 && diff != "" {
			t.Fatalf("records (-want +got)\n%s", diff)
		}
		name := m.Raw[12 : questionEnd(m.Raw)-4]
		if !bytes.Equal(name, slowLower(name)) {
			t.Fatalf("question %q", name)
		}
	})
}

func BenchmarkMixCase(b *testing.B) {
	q := pack(b, new(dns.Msg).SetQuestion("some-service.production.example.com.", dns.TypeA).SetEdns0(1232, false))
	bits := binary.BigEndian.Uint64([]byte("\xa5\x5a\xc3\x3c\x99\x66\x0f\xf0"))
	b.ReportAllocs()
	for b.Loop() {
		wire.RandomCase(q, bits)
	}
}

func BenchmarkMatch(b *testing.B) {
	q := pack(b, new(dns.Msg).SetQuestion("some-service.production.example.com.", dns.TypeA).SetEdns0(1232, false))
	r := bytes.Clone(q)
	r[2] |= 0x80
	b.ReportAllocs()
	for b.Loop() {
		if wire.Match(q, r) != wire.ExactMatch {
			b.Fatal("not the answer")
		}
	}
}
