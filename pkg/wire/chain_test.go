// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// head is the answer "name is an alias of target", and the target's offset in it.
func head(name, target []byte) (msg []byte, offset int) {
	msg = cat(header(0x8400, 1, 1, 0, 0), question(name, wire.TypeA), record(pointer(12), wire.TypeCNAME, target))
	return msg, len(msg) - len(target)
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
		m := parseMessage(t, tt.msg)
		buf, ok := m.AppendToChain(append([]byte(nil), start...), 0, offset)
		whole := parseMessage(t, buf)
		if !ok || len(whole.Records) != 1+tt.records || len(whole.Raw) != len(buf) || whole.Truncated() != tt.cut {
			t.Errorf("%s: appended %t, %d records, TC %t; want %d, %t", tt.name, ok, len(whole.Records)-1, whole.Truncated(), tt.records, tt.cut)
		}
	}
}

// TestQueryFollow looks for another name than was asked, and answers to the one
// that was.
func TestQueryFollow(t *testing.T) {
	t.Parallel()
	q := parseQuery(t, ask(0x0110, labels("Ext", "ns"), opt(1232, 0, 0x8000)))
	for _, target := range [][]byte{labels("www", "example"), longName(255), labels("a")} {
		q.SetName(target)
		assert.Same(t, "name", string(target), string(q.Name()))
		direct := parseQuery(t, ask(0x0110, target, opt(1232, 0, 0x8000)))
		assert.Same(t, "key", string(direct.Key()), string(q.Key()))
		assert.Same(t, "query upstream", string(direct.AppendUpstream(nil, false)), string(q.AppendUpstream(nil, false)))
	}
	opts := wire.ReplyOptions{Limit: 512, UDPSize: 1232, EDE: wire.EDENone}
	assert.Same(t, "the reply's question", "Ext.ns.", unpack(t, q.AppendEmpty(nil, wire.RcodeSuccess, &opts)).Question[0].Name)
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
		before := string(m.Raw)
		buf, ok := m.AppendToChain(append([]byte("before"), start...), len("before"), offset)
		if string(buf[:6]) != "before" || string(m.Raw) != before {
			t.Fatalf("%q stands before, or the tail has changed", buf[:6])
		}
		if !ok {
			return
		}
		buf = buf[6:]
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
		assert.Same(t, "records", lines(tail.Answer, tail.Ns, tail.Extra), lines(both.Answer[1:], both.Ns, both.Extra))
		if alias := both.Answer[0].(*dns.CNAME); alias.Hdr.Name != "ext.ns." || both.Question[0].Name != "ext.ns." || !both.Authoritative || both.Rcode != tail.Rcode {
			t.Errorf("%v, want the alias's question, AA, and rcode %d", &both, tail.Rcode)
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
