// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// explained takes the explanation out of m, if it has one.
func explained(m *dns.Msg) (text string, ok bool) {
	o := m.IsEdns0()
	if o == nil {
		return "", false
	}
	kept := o.Option[:0]
	for _, option := range o.Option {
		if local, is := option.(*dns.EDNS0_LOCAL); is && local.Code == wire.OptionExplain {
			text, ok = string(local.Data), true
			continue
		}
		kept = append(kept, option)
	}
	o.Option = kept
	return text, ok
}

// TestAppendExplanation appends one to replies with every mix of options. But for it the reply stays as it is.
func TestAppendExplanation(t *testing.T) {
	t.Parallel()
	stored := parseMessage(t, pack(t, answer(t, "a.", dns.TypeA, records(t, "a. 60 IN A 192.0.2.1"), nil, nil)))
	long := strings.Repeat("x", wire.MaxExplanation)
	for _, opts := range []wire.ReplyOptions{
		{EDE: wire.EDENone},
		{EDE: wire.EDEStaleAnswer},
		{EDE: wire.EDENone, Keepalive: 100},
		{EDE: 0, Keepalive: 100, Cookie: bytes.Repeat([]byte{7}, 24)},
	} {
		for text, want := range map[string]string{"": "", "source=cache state=fresh": "source=cache state=fresh", long: long, long + "y": long} {
			opts.Limit, opts.UDPSize = 1232, 1232
			q := parseQuery(t, ask(flagsQuery, labels("A"), opt(1232, 0, 0x8000, option(65305))))
			const before = "before"
			replies := map[string][]byte{
				"answer": q.Reply(append([]byte(before), stored.Raw...), len(before), &opts),
				"empty":  q.AppendEmpty([]byte(before), wire.RcodeServFail, &opts),
				"record": q.AppendRecord([]byte(before), wire.TypeTXT, 0, []byte("\x01x"), &opts),
			}
			for name, reply := range replies {
				whole := unpack(t, reply[len(before):])
				got := q.AppendExplanation(bytes.Clone(reply), &opts, []byte(text))
				if !bytes.HasPrefix(got, []byte(before)) || len(got)-len(reply) > wire.ExplanationRoom {
					t.Errorf("%s: %d bytes more, room for %d", name, len(got)-len(reply), wire.ExplanationRoom)
				}
				m := unpack(t, got[len(before):])
				if explanation, ok := explained(m); explanation != want || !ok {
					t.Errorf("%s: got %q, %t; want %q", name, explanation, ok, want)
				}
				assert.Same(t, name+": the rest", whole.String(), m.String())
			}
		}
	}
}

// TestAppendExplanationWithoutOPT shows that there is none without a record to have it.
func TestAppendExplanationWithoutOPT(t *testing.T) {
	t.Parallel()
	q := parseQuery(t, ask(flagsQuery, labels("a")))
	opts := wire.ReplyOptions{Limit: 512, EDE: wire.EDENone}
	reply := q.AppendEmpty(nil, 0, &opts)
	if got := q.AppendExplanation(bytes.Clone(reply), &opts, []byte("x")); !bytes.Equal(got, reply) {
		t.Errorf("%x became %x", reply, got)
	}
}

// TestSmallestReply shows that a client that takes the least has room for all that a reply can say of itself.
func TestSmallestReply(t *testing.T) {
	t.Parallel()
	stored := parseMessage(t, pack(t, answer(t, strings.Repeat(strings.Repeat("a", 49)+".", 5), dns.TypeA, records(t, "a. 60 IN TXT \""+strings.Repeat("b", 255)+"\""), nil, nil)))
	q := parseQuery(t, cat(header(flagsQuery, 1, 0, 0, 1), stored.Raw[12:12+251+4], opt(512, 0, 0, option(65305))))
	opts := wire.ReplyOptions{
		Limit: q.Limit(false, 1232) - wire.ExplanationRoom, UDPSize: 1232,
		Cookie: bytes.Repeat([]byte{7}, 24), Keepalive: 1, EDE: wire.EDEOther,
	}
	reply := q.Reply(bytes.Clone(stored.Raw), 0, &opts)
	reply = q.AppendExplanation(reply, &opts, []byte(strings.Repeat("x", wire.MaxExplanation)))
	if m := unpack(t, reply); len(reply) > 512 || !m.Truncated {
		t.Errorf("%d bytes, truncated %t; want 512 at most", len(reply), m.Truncated)
	}
}

// TestAppendKey holds it to the key of a query that asks for the name itself.
func TestAppendKey(t *testing.T) {
	t.Parallel()
	for _, flags := range []uint16{0x0100, 0x0110} {
		for _, do := range []uint16{0, 0x8000} {
			q := parseQuery(t, ask(flags, labels("www", "Example"), opt(1232, 0, do)))
			for _, outside := range []bool{false, true} {
				key := q.AppendKey(nil, q.Name())
				if outside {
					q.SetOutside()
					key = q.AppendOutsideKey(nil, q.Name())
				}
				assert.Same(t, "result", q.Key(), key)
				isDO, isCD, isOutside := wire.KeyFlags(q.Key()[len(q.Name())+2])
				if isDO != q.DO || isCD != q.CD || isOutside != outside {
					t.Errorf("flags DO=%t CD=%t outside=%t, want %t, %t and %t", isDO, isCD, isOutside, q.DO, q.CD, outside)
				}
			}
		}
	}
}

// FuzzExplanation appends any text to the reply to any query. The oracle reads the reply as without it, and the text.
func FuzzExplanation(f *testing.F) {
	for _, pkt := range seedQueries(f) {
		f.Add(pkt, []byte("source=cache"), uint16(3), uint16(100))
	}
	f.Fuzz(func(t *testing.T, pkt, text []byte, ede, keepalive uint16) {
		var q wire.Query
		if q.Parse(pkt) != wire.RcodeSuccess {
			return
		}
		opts := wire.ReplyOptions{Limit: q.Limit(false, 1232), UDPSize: 1232, EDE: int(ede) - 1, Keepalive: keepalive}
		reply := q.AppendEmpty(nil, wire.RcodeRefused, &opts)
		whole := new(dns.Msg)
		if whole.Unpack(reply) != nil {
			return // the oracle refuses a name or a type for reasons of its own
		}
		m := unpack(t, q.AppendExplanation(bytes.Clone(reply), &opts, text))
		explanation, ok := explained(m)
		if ok != q.EDNS || ok && explanation != string(text[:min(len(text), wire.MaxExplanation)]) {
			t.Fatalf("got %q, %t; EDNS %t", explanation, ok, q.EDNS)
		}
		if diff := cmp.Diff(whole.String(), m.String()); diff != "" {
			t.Fatalf("the rest (-want +got):\n%s", diff)
		}
	})
}
