// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// head is the answer "name is an alias of target", and the target's offset in it.
func head(name, target []byte) (msg []byte, offset int) {
	msg = cat(header(0x8400, 1, 1, 0, 0), question(name, wire.TypeA), record(pointer(12), wire.TypeCNAME, target))
	return msg, len(msg) - len(target)
}

// TestAppendToChain joins an alias to answers of its target, and reads with the
// oracle that only the question is left out.
func TestAppendToChain(t *testing.T) {
	t.Parallel()
	const target = "www.example."
	soa := records(t, "example. 60 IN SOA ns.example. host.www.example. 1 2 3 4 5")
	tests := []struct {
		name       string
		rcode      int
		an, ns, ar []dns.RR
	}{
		{"an address", 0, records(t, "www.example. 60 IN A 192.0.2.1"), nil, nil},
		{"an alias and addresses", 0, records(t, "www.example. 60 IN CNAME a.b.example.", "a.b.example. 60 IN A 192.0.2.1", "a.b.example. 60 IN A 192.0.2.2"), nil, nil},
		{"a denial", dns.RcodeNameError, nil, soa, nil},
		{"an alias of a denied name", dns.RcodeNameError, records(t, "www.example. 60 IN CNAME x.example."), soa, nil},
		{"no data", 0, nil, soa, nil},
		{
			"all sections", 0, records(t, "www.example. 60 IN A 192.0.2.1"), records(t, "example. 60 IN NS ns.www.example."),
			records(t, "ns.www.example. 60 IN A 192.0.2.9", "_x._tcp.www.example. 60 IN SRV 0 0 53 ns.www.example."),
		},
		{"unknown data", 0, records(t, "www.example. 60 IN TYPE65280 \\# 2 c00c"), nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tail := answer(t, target, dns.TypeA, tt.an, tt.ns, tt.ar)
			tail.Rcode = tt.rcode
			m := parseMessage(t, pack(t, tail))
			before := string(m.Raw)
			start, offset := head(labels("ext", "ns", "svc", "cluster", "local"), labels("www", "example"))
			buf, ok := m.AppendToChain(append([]byte("before"), start...), len("before"), offset)
			if !ok || string(buf[:6]) != "before" {
				t.Fatalf("appended %t, %q", ok, buf[:6])
			}
			if string(m.Raw) != before {
				t.Error("the tail has changed")
			}
			got := unpack(t, buf[6:])
			want := []dns.RR{records(t, "ext.ns.svc.cluster.local. 300 IN CNAME www.example.")[0]}
			want = append(want, unpack(t, m.Raw).Answer...)
			if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(got.Answer)); diff != "" {
				t.Errorf("answer (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(fmt.Sprint(tt.ns, tt.ar), fmt.Sprint(got.Ns, got.Extra)); diff != "" {
				t.Errorf("authority and additional (-want +got)\n%s", diff)
			}
			if got.Rcode != tt.rcode || !got.Authoritative || got.Question[0].Name != "ext.ns.svc.cluster.local." {
				t.Errorf("rcode %d, AA %t, question %s", got.Rcode, got.Authoritative, got.Question[0].Name)
			}
			parseMessage(t, buf[6:])
		})
	}
}

// TestAppendToChainTooLong is an answer whose compression pointers do not reach
// their labels behind a long head.
func TestAppendToChainTooLong(t *testing.T) {
	t.Parallel()
	start, offset := head(longName(255), labels("w"))
	owner := labels("w")
	far := cat(header(flagsAnswer, 1, 0, 0, 2), question(owner, wire.TypeA),
		record(pointer(12), 65280, make([]byte, 16300)), record(labels("ns"), wire.TypeTXT, nil))
	at := len(far) - 14 // of the last owner
	if far[at] != 2 {
		t.Fatal("the test's own offsets are wrong")
	}
	far[11] = 3
	far = append(far, record(pointer(at), wire.TypeTXT, nil)...)
	m := parseMessage(t, far)
	buf, ok := m.AppendToChain(append([]byte(nil), start...), 0, offset)
	if ok || string(buf) != string(start) {
		t.Errorf("appended %t, %d bytes of %d", ok, len(buf), len(start))
	}
}

// TestAppendToChainTruncated appends an answer that does not fit, or that was truncated before: the result has TC set.
func TestAppendToChainTruncated(t *testing.T) {
	t.Parallel()
	start, offset := head(longName(255), labels("w"))
	asked, small := question(labels("w"), wire.TypeA), record(pointer(12), wire.TypeA, make([]byte, 4))
	large := record(pointer(12), 65280, make([]byte, 65300))
	for _, tt := range []struct {
		name    string
		msg     []byte
		records int
		cut     bool
	}{
		{"all", cat(header(flagsAnswer, 1, 1, 0, 1), asked, small, small), 2, false},
		{"of the answer", cat(header(flagsAnswer, 1, 2, 0, 1), asked, small, large, small), 1, true},
		{"of the authority", cat(header(flagsAnswer, 1, 1, 1, 0), asked, small, large), 1, true},
		{"additional ones", cat(header(flagsAnswer, 1, 1, 0, 1), asked, small, large), 1, false},
		{"cut before", cat(header(flagsAnswer|0x0200, 1, 1, 0, 0), asked, small), 1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := parseMessage(t, tt.msg)
			buf, ok := m.AppendToChain(append([]byte(nil), start...), 0, offset)
			whole := parseMessage(t, buf)
			if !ok || len(whole.Records) != 1+tt.records || len(whole.Raw) != len(buf) || whole.Truncated() != tt.cut {
				t.Errorf("appended %t, %d records, TC %t; want %d, %t", ok, len(whole.Records)-1, whole.Truncated(), tt.records, tt.cut)
			}
		})
	}
}

// TestQueryFollow looks for another name than was asked, and answers to the one
// that was.
func TestQueryFollow(t *testing.T) {
	t.Parallel()
	q := parseQuery(t, ask(0x0110, labels("Ext", "ns"), opt(1232, 0, 0x8000)))
	for _, target := range [][]byte{labels("www", "example"), longName(255), labels("a")} {
		q.SetName(target)
		if got, want := string(q.Name()), string(target); got != want {
			t.Errorf("name %q, want %q", got, want)
		}
		direct := parseQuery(t, ask(0x0110, target, opt(1232, 0, 0x8000)))
		if got, want := string(q.Key()), string(direct.Key()); got != want {
			t.Errorf("key %q, want %q", got, want)
		}
		if got, want := string(q.AppendUpstream(nil, false)), string(direct.AppendUpstream(nil, false)); got != want {
			t.Errorf("query upstream %q, want %q", got, want)
		}
	}
	opts := wire.ReplyOptions{Limit: 512, UDPSize: 1232, EDE: wire.EDENone}
	if got := unpack(t, q.AppendEmpty(nil, wire.RcodeSuccess, &opts)).Question[0].Name; got != "Ext.ns." {
		t.Errorf("the reply's question is %s", got)
	}
}

// FuzzGraft joins an alias to whatever can be walked: the whole can be walked and
// holds the records of both.
func FuzzGraft(f *testing.F) {
	for _, msg := range seedAnswers(f) {
		f.Add(msg)
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		var m wire.Message
		if m.Parse(msg) != nil || m.StripOPT() != nil {
			return
		}
		m.CanonicalizeQuestion()
		name := m.Raw[12 : questionEnd(m.Raw)-4]
		start, offset := head(labels("ext", "ns"), name)
		buf, ok := m.AppendToChain(start, 0, offset)
		if !ok {
			return
		}
		var whole wire.Message
		if err := whole.Parse(buf); err != nil {
			t.Fatalf("the whole cannot be walked: %v\n%x", err, buf)
		}
		if got, want := len(whole.Records), len(m.Records)+1; got > want || got < want && len(m.Raw) < 16<<10 {
			t.Fatalf("%d records, want %d", got, want)
		} else if got < want {
			return // there was no room for all
		}
		var tail, both dns.Msg
		if tail.Unpack(m.Raw) != nil || both.Unpack(buf) != nil {
			return
		}
		if got, want := lines(both.Answer[1:], both.Ns, both.Extra), lines(tail.Answer, tail.Ns, tail.Extra); got != want {
			t.Errorf("records\n%s\nwant\n%s", got, want)
		}
	})
}

func lines(sections ...[]dns.RR) string {
	var b strings.Builder
	for _, section := range sections {
		for _, rr := range section {
			b.WriteString(rr.String() + "\n")
		}
		b.WriteString("--\n")
	}
	return b.String()
}
