// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// TestAppendBelow makes denials of names from those of a name above, and reads with
// the oracle that nothing but the question and AD is another.
func TestAppendBelow(t *testing.T) {
	t.Parallel()
	soa := records(t, "example. 60 IN SOA ns.example. host.gone.example. 1 2 3 4 5")
	tests := []struct {
		name     string
		denied   string
		compress bool
		below    []byte
		ns, ar   []dns.RR
	}{
		{"one label more", "gone.example.", true, labels("www", "gone", "example"), soa, nil},
		{"many labels more", "gone.example.", true, append(longName(242)[:241], labels("gone", "example")...), soa, nil},
		{"the name itself", "gone.example.", true, labels("gone", "example"), soa, nil},
		{"names spelled out", "gone.example.", false, labels("a", "b", "gone", "example"), soa, nil},
		{"a top-level domain", "invalid.", true, labels("x", "invalid"), records(t, ". 60 IN SOA a.invalid. b. 1 2 3 4 5"), nil},
		{"without records", "gone.example.", true, labels("www", "gone", "example"), nil, nil},
		{
			"more records", "gone.example.", true, labels("www", "gone", "example"),
			append(records(t, "example. 60 IN NS ns.example.", "example. 60 IN RRSIG SOA 8 1 60 20300101000000 20200101000000 1 example. AAAA"), soa...),
			records(t, "ns.example. 60 IN A 192.0.2.1", "_x.example. 60 IN SRV 1 2 3 ns.gone.example."),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			denial := answer(t, tt.denied, dns.TypeA, nil, tt.ns, tt.ar)
			denial.Rcode, denial.AuthenticatedData, denial.Compress = dns.RcodeNameError, true, tt.compress
			m := parseMessage(t, pack(t, denial))
			before := bytes.Clone(m.Raw)
			buf, ok := m.AppendDenial([]byte("before"), tt.below, wire.TypeAAAA)
			if !ok || string(buf[:6]) != "before" {
				t.Fatalf("made %t, %q", ok, buf[:6])
			}
			if !bytes.Equal(m.Raw, before) {
				t.Error("the denial has changed")
			}
			parseMessage(t, buf[6:])
			got := unpack(t, buf[6:])
			if diff := cmp.Diff(lines(denial.Answer, denial.Ns, denial.Extra), lines(got.Answer, got.Ns, got.Extra)); diff != "" {
				t.Errorf("records (-want +got)\n%s", diff)
			}
			want := dns.Question{Name: string(wire.AppendText(nil, tt.below)), Qtype: dns.TypeAAAA, Qclass: dns.ClassINET}
			if got.Question[0] != want || got.Rcode != dns.RcodeNameError || got.AuthenticatedData {
				t.Errorf("question %v, rcode %d, AD %t; want %v, NXDOMAIN, no AD", got.Question[0], got.Rcode, got.AuthenticatedData, want)
			}
		})
	}
}

// TestAppendBelowTooLong is a denial whose compression pointers do not reach their
// labels behind a longer name, and one that makes more than a message.
func TestAppendBelowTooLong(t *testing.T) {
	t.Parallel()
	owner := labels("w")
	far := cat(header(flagsAnswer, 1, 0, 0, 3), question(owner, wire.TypeA),
		record(pointer(12), 65280, make([]byte, 16320)), record(labels("ns"), wire.TypeTXT, nil))
	far = append(far, record(pointer(len(far)-14), wire.TypeTXT, nil)...)
	long := cat(header(flagsAnswer, 1, 0, 0, 1), question(owner, wire.TypeA), record(pointer(12), 65280, make([]byte, 65480)))
	for name, msg := range map[string][]byte{"pointer": far, "message": long} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := parseMessage(t, msg)
			if _, ok := m.AppendDenial(nil, owner, wire.TypeA); !ok {
				t.Error("the message does not even fit as it is")
			}
			buf, ok := m.AppendDenial([]byte("before"), append(bytes.Clone(longName(100)[:99]), owner...), wire.TypeA)
			if ok || string(buf) != "before" {
				t.Errorf("made %t, %d bytes", ok, len(buf))
			}
		})
	}
}

// FuzzAppendBelow moves whatever can be walked below another name: the whole can be
// walked and holds the same records.
func FuzzAppendBelow(f *testing.F) {
	for _, msg := range seedAnswers(f) {
		f.Add(msg, []byte("www"))
	}
	f.Fuzz(func(t *testing.T, msg, label []byte) {
		var m wire.Message
		if m.Parse(msg) != nil || m.StripOPT() != nil {
			return
		}
		m.CanonicalizeQuestion()
		denied := m.Raw[12 : questionEnd(m.Raw)-4]
		if len(label) == 0 || len(label) > wire.MaxLabel || 1+len(label)+len(denied) > wire.MaxName {
			return
		}
		name := cat([]byte{byte(len(label))}, label, denied)
		wire.Canonical(name, name)
		buf, ok := m.AppendDenial(nil, name, wire.TypeTXT)
		if !ok {
			return
		}
		var whole wire.Message
		if err := whole.Parse(buf); err != nil {
			t.Fatalf("the whole cannot be walked: %v\n%x", err, buf)
		}
		if got, want := len(whole.Records), len(m.Records); got != want {
			t.Fatalf("%d records, want %d", got, want)
		}
		if got := buf[12 : questionEnd(buf)-4]; !bytes.Equal(got, name) {
			t.Fatalf("question %q, want %q", got, name)
		}
		var above, below dns.Msg
		if above.Unpack(m.Raw) != nil || below.Unpack(buf) != nil {
			return
		}
		if got, want := lines(below.Answer, below.Ns, below.Extra), lines(above.Answer, above.Ns, above.Extra); got != want {
			t.Errorf("records\n%s\nwant\n%s", got, want)
		}
	})
}
