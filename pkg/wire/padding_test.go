// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Padded queries have a size that is a multiple of 128 bytes, and the same content.
func TestPadding(t *testing.T) {
	t.Parallel()
	for labels := range 60 {
		name := strings.Repeat("abc.", labels) + strings.Repeat("x", labels%5+1) + "."
		q := new(dns.Msg).SetQuestion(name, dns.TypeAAAA)
		q.SetEdns0(1232, labels%2 == 0)
		if labels%3 == 0 {
			q.IsEdns0().Option = append(q.IsEdns0().Option, &dns.EDNS0_SUBNET{
				Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: netip.MustParseAddr("192.0.2.0").AsSlice(),
			})
		}
		checkPadding(t, q, true)
		q.Extra = nil
		checkPadding(t, q, false)
	}
}

func checkPadding(t *testing.T, m *dns.Msg, padded bool) {
	t.Helper()
	q, err := m.Pack()
	assert.NoError(t, err)
	got := wire.AppendPadded([]byte("before"), q)[len("before"):]
	if !padded {
		if string(got) != string(q) {
			t.Errorf("%s: changed, want it left as it is", m.Question[0].Name)
		}
		return
	}
	var back dns.Msg
	assert.NoError(t, back.Unpack(got))
	options := &back.IsEdns0().Option
	last := len(*options) - 1
	if _, ok := (*options)[last].(*dns.EDNS0_PADDING); !ok || len(got)%128 != 0 || len(got)-len(q) >= 128+4 {
		t.Errorf("%d bytes became %d, with the option last %t, want the next multiple of 128", len(q), len(got), ok)
	}
	*options = (*options)[:last]
	if back.String() != m.String() {
		t.Errorf("without the padding it is\n%s\nwant\n%s", &back, m)
	}
}

// FuzzPadding pads arbitrary bytes: the result parses like the query, or is unchanged.
func FuzzPadding(f *testing.F) {
	q, err := new(dns.Msg).SetQuestion("www.example.", dns.TypeA).SetEdns0(1232, false).Pack()
	assert.NoError(f, err)
	f.Add(q)
	f.Add([]byte{0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 41})
	f.Fuzz(func(t *testing.T, q []byte) {
		got := wire.AppendPadded(nil, q)
		if string(got) == string(q) {
			return
		}
		var before, after dns.Msg
		if before.Unpack(q) != nil || before.IsEdns0() == nil {
			return // it looks like a query but is still invalid
		}
		if err := after.Unpack(got); err != nil || len(got)%128 != 0 {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		options := &after.IsEdns0().Option
		*options = (*options)[:len(*options)-1]
		if before.String() != after.String() {
			t.Errorf("%s\nbecame\n%s", &before, &after)
		}
	})
}

// TestReplyPadding pads replies of every size to a multiple of 468 bytes, or to the limit, and changes nothing else.
func TestReplyPadding(t *testing.T) {
	t.Parallel()
	text := "listed"
	for _, tt := range []struct {
		name string
		s    wire.ReplyOptions
	}{
		{"no other option", wire.ReplyOptions{EDE: wire.EDENone}},
		{"all options", wire.ReplyOptions{EDE: wire.EDEBlocked, EDEText: &text, Cookie: make([]byte, 24), Keepalive: 100}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, limit := range []int{512, 1232, 1 << 16} {
				for records := range 30 {
					var q wire.Query
					m := new(dns.Msg).SetQuestion(strings.Repeat("x", records+1)+".example.", dns.TypeA).SetEdns0(1232, false)
					pkt, err := m.Pack()
					assert.NoError(t, err)
					assert.Equal(t, "rcode", wire.RcodeSuccess, q.Parse(pkt))
					answer := new(dns.Msg).SetReply(m)
					for range records {
						answer.Answer = append(answer.Answer, &dns.A{Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: make([]byte, 4)})
					}
					stored, err := answer.Pack()
					assert.NoError(t, err)
					s := tt.s
					s.Limit = limit
					plain := q.Reply(append([]byte("before"), stored...), len("before"), &s)[len("before"):]
					s.Pad = true
					padded := q.Reply(append([]byte("before"), stored...), len("before"), &s)[len("before"):]
					checkPadded(t, plain, padded, limit)
				}
			}
		})
	}
	t.Run("no EDNS", func(t *testing.T) {
		t.Parallel()
		var q wire.Query
		pkt, err := new(dns.Msg).SetQuestion("a.example.", dns.TypeA).Pack()
		assert.NoError(t, err)
		assert.Equal(t, "rcode", wire.RcodeSuccess, q.Parse(pkt))
		assert.Equal(t, "size", len(pkt), len(q.AppendEmpty(nil, wire.RcodeSuccess, &wire.ReplyOptions{Limit: 1232, Pad: true})))
	})
}

// checkPadded compares a reply with the same reply padded.
func checkPadded(t *testing.T, plain, padded []byte, limit int) {
	t.Helper()
	if limit-len(plain) < 4 {
		assert.Equal(t, "reply without room for padding", string(plain), string(padded))
		return
	}
	if size := len(padded); size > limit || size%468 != 0 && size != limit || size-len(plain) >= 468+4 {
		t.Errorf("%d bytes padded to %d, of at most %d", len(plain), size, limit)
	}
	var want, got dns.Msg
	assert.NoError(t, want.Unpack(plain))
	assert.NoError(t, got.Unpack(padded))
	options := &got.IsEdns0().Option
	last := len(*options) - 1
	padding, ok := (*options)[last].(*dns.EDNS0_PADDING)
	if !ok || strings.Trim(string(padding.Padding), "\x00") != "" {
		t.Fatalf("the last option is %v, want zeros as padding", (*options)[last])
	}
	*options = (*options)[:last]
	if got.String() != want.String() {
		t.Errorf("without the padding it is\n%s\nwant\n%s", &got, &want)
	}
}
