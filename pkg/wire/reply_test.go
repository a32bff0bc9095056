// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// sealed is the OPT record that a reply to q must end with.
func sealed(q *wire.Query, s *wire.ReplyOptions) []byte {
	if !q.EDNS {
		return nil
	}
	var options [][]byte
	if s.Cookie != nil {
		options = append(options, option(10, s.Cookie...))
	}
	if s.Keepalive != 0 {
		options = append(options, option(11, u16(s.Keepalive)...))
	}
	if s.EDE != wire.EDENone {
		text := ""
		if s.EDE == wire.EDEBlocked && s.EDEText != nil {
			text = *s.EDEText
		}
		options = append(options, option(15, append(u16(uint16(s.EDE)), text...)...))
	}
	flags := uint16(0)
	if q.DO {
		flags = 0x8000
	}
	return opt(s.UDPSize, 0, flags, options...)
}

// replyTo is the reply to q made of a stored answer, checked in all that holds
// for every reply: who it goes to, what is cut, and that it can be read.
func replyTo(tb testing.TB, q *wire.Query, stored *wire.Message, s *wire.ReplyOptions) []byte {
	tb.Helper()
	const before = "before"
	buf := q.Reply(append([]byte(before), stored.Raw...), len(before), s)
	if string(buf[:len(before)]) != before {
		tb.Fatalf("the reply spoilt what was before it: %q", buf[:len(before)])
	}
	got := buf[len(before):]
	if len(got) > s.Limit {
		tb.Errorf("%d bytes, limit %d", len(got), s.Limit)
	}
	end := sealed(q, s)
	counts, size, truncated := slowCut(tb, stored, s.Limit-len(end))
	flags := uint16(0x8080) | uint16(stored.Raw[3]&0x0f)
	set := func(yes bool, bit uint16) {
		if yes {
			flags |= bit
		}
	}
	set(q.RD, 0x0100)
	set(q.CD, 0x0010)
	set(stored.Raw[3]&0x20 != 0 && (q.AD || q.DO), 0x0020)
	set(truncated || stored.Raw[2]&0x02 != 0, 0x0200)
	set(stored.Raw[2]&0x04 != 0, 0x0400)
	additional := counts[2]
	if q.EDNS {
		additional++
	}
	want := cat(u16(q.ID, flags, 1, uint16(counts[0]), uint16(counts[1]), uint16(additional)), q.QuestionSection(),
		stored.Raw[questionEnd(stored.Raw):size], end)
	if !bytes.Equal(want, got) {
		tb.Errorf("reply (-want +got)\n%s", cmp.Diff(want, got))
	}
	m := new(wire.Message)
	if err := m.Parse(got); err != nil || m.HasOPT() != q.EDNS || len(m.Raw) != len(got) {
		tb.Errorf("the reply is walked with error %v, OPT %t, %d of %d bytes", err, m.HasOPT(), len(m.Raw), len(got))
	}
	whole := new(dns.Msg)
	if err := whole.Unpack(stored.Raw); err == nil {
		unpack(tb, got)
	}
	return got
}

// TestExtendedErrorText gives only EDEBlocked a text, at the end of the OPT record, and counts it against the limit.
func TestExtendedErrorText(t *testing.T) {
	t.Parallel()
	text := "blocked by ads.txt"
	for ede, want := range map[int]string{wire.EDEBlocked: text, wire.EDENotReady: "", wire.EDENone: ""} {
		var q wire.Query
		q.Parse(ask(0, labels("a"), opt(512, 0, 0)))
		s := &wire.ReplyOptions{Limit: 512, UDPSize: 1232, EDE: ede, EDEText: &text, Keepalive: 9, Cookie: []byte("0123456789abcdef")}
		var m dns.Msg
		assert.NoError(t, m.Unpack(q.AppendExplanation(q.AppendEmpty(nil, wire.RcodeNXDomain, s), s, []byte("source=block"))))
		got := ""
		for _, o := range m.IsEdns0().Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				got = e.ExtraText
			}
		}
		assert.Equal(t, "text", want, got)
		stored := new(wire.Message)
		assert.NoError(t, stored.Parse(cat(header(0x8000, 1, 40, 0, 0), question(labels("a"), 1), bytes.Repeat(cat([]byte{0xc0, 12}, u16(1, 1, 0, 60, 4), []byte{10, 0, 0, 1}), 40))))
		replyTo(t, &q, stored, s)
	}
}

func TestAppendEmpty(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		pkt   []byte
		rcode int
		want  []byte
	}{
		{"REFUSED", ask(0x0110, labels("A")), wire.RcodeRefused, cat(header(0x8195, 1, 0, 0, 0), question(labels("A"), 1))},
		{"AD is never made up", ask(0x0020, labels("A")), wire.RcodeNXDomain, cat(header(0x8083, 1, 0, 0, 0), question(labels("A"), 1))},
		{
			"with OPT", ask(0, labels("a"), opt(4096, 0, 0x8000)), wire.RcodeServFail,
			cat(header(0x8082, 1, 0, 0, 1), question(labels("a"), 1), opt(1232, 0, 0x8000)),
		},
		{
			"BADVERS", ask(0, labels("a"), opt(4096, 7, 0)), wire.RcodeBadVers,
			cat(header(0x8080, 1, 0, 0, 1), question(labels("a"), 1), []byte{0}, u16(41, 1232, 0x0100, 0, 0)),
		},
		{"no question", header(0x0100, 0, 0, 0, 0), wire.RcodeFormErr, header(0x8181, 0, 0, 0, 0)},
		{"question cut", cat(header(0x0100, 1, 0, 0, 0), labels("a")), wire.RcodeFormErr, header(0x8181, 0, 0, 0, 0)},
	}
	for _, tt := range tests {
		var q wire.Query
		q.Parse(tt.pkt)
		got := q.AppendEmpty([]byte("x"), tt.rcode, &wire.ReplyOptions{UDPSize: 1232, EDE: wire.EDENone})
		assert.Same(t, tt.name, cat([]byte("x"), tt.want), got)
		if read := unpack(t, got[1:]); read.Rcode != tt.rcode {
			t.Errorf("%s: the oracle reads rcode %d, want %d", tt.name, read.Rcode, tt.rcode)
		}
	}
}

func TestAppendRecord(t *testing.T) {
	t.Parallel()
	pkt := cat(header(0x0100, 1, 0, 0, 1), labels("Version", "bind"), u16(wire.TypeTXT, wire.ClassCH), opt(4096, 0, 0))
	q := parseQuery(t, pkt)
	got := q.AppendRecord([]byte("x"), wire.TypeTXT, 1<<31-1, []byte("\x05hello"), &wire.ReplyOptions{UDPSize: 1232, EDE: wire.EDEOther})
	want := cat([]byte("x"), header(0x8180, 1, 1, 0, 1), q.QuestionSection(), pointer(12), u16(16, 3, 0x7fff, 0xffff, 6), []byte("\x05hello"),
		opt(1232, 0, 0, option(15, 0, 0)))
	assert.Same(t, "result", want, got)
	assert.Same(t, "record", "Version.bind.\t2147483647\tCH\tTXT\t\"hello\"", unpack(t, got[1:]).Answer[0].String())
}

func TestAppendFault(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		pkt   []byte
		rcode byte
		want  []byte
	}{
		{"NOTIMP with its opcode", header(5<<11|0x0100, 1, 2, 3, 4), wire.RcodeNotImp, header(0xa904, 0, 0, 0, 0)},
		{"bits that are not copied", header(0x06ff, 1, 0, 0, 0), wire.RcodeFormErr, header(0x8001, 0, 0, 0, 0)},
		{"rcode has four bits", header(0, 1, 0, 0, 0), 0xf5, header(0x8005, 0, 0, 0, 0)},
	}
	for _, tt := range tests {
		got := wire.AppendFault([]byte("x"), tt.pkt, tt.rcode)
		assert.Same(t, tt.name, cat([]byte("x"), tt.want), got)
	}
}

func TestAppendUpstream(t *testing.T) {
	t.Parallel()
	subnet := option(8, 0, 1, 24, 0, 10, 1, 2)
	cookie := option(10, make([]byte, 8)...)
	name, canonical := labels("WWW", "Example"), labels("www", "example")
	want := func(flags, edns uint16, options ...[]byte) []byte {
		return cat(u16(0, flags, 1, 0, 0, 1), question(canonical, 1), opt(1232, 0, edns, options...))
	}
	tests := []struct {
		name   string
		pkt    []byte
		subnet bool
		want   []byte
	}{
		{"plain", ask(0x0100, name), false, want(0x0120, 0)},
		{"RD is always set", ask(0, name), true, want(0x0120, 0)},
		{"CD", ask(0x0110, name), false, want(0x0130, 0)},
		{"DO", ask(0x0100, name, opt(4096, 0, 0x8000)), false, want(0x0120, 0x8000)},
		{"options stay here", ask(0x0100, name, opt(4096, 0, 0x7fff, cookie, subnet, option(11), option(65001, 1))), false, want(0x0120, 0)},
		{"subnet passed on", ask(0x0100, name, opt(4096, 0, 0, cookie, subnet)), true, want(0x0120, 0, subnet)},
		{"longest subnet", ask(0, name, opt(4096, 0, 0, option(8, append([]byte{0, 2, 128, 0}, make([]byte, 16)...)...))), true, want(0x0120, 0, option(8, append([]byte{0, 2, 128, 0}, make([]byte, 16)...)...))},
	}
	for _, tt := range tests {
		got := parseQuery(t, tt.pkt).AppendUpstream([]byte("x"), tt.subnet)
		assert.Same(t, tt.name, cat([]byte("x"), tt.want), got)
		unpack(t, got[1:])
		if again := parseQuery(t, got[1:]); !bytes.Equal(again.QuestionSection(), question(canonical, 1)) {
			t.Errorf("%s: the question reads %x", tt.name, again.QuestionSection())
		}
	}
}

// TestEDEText has the names of the codes as miekg/dns has them from the registry.
func TestEDEText(t *testing.T) {
	t.Parallel()
	for _, code := range []int{
		wire.EDEOther, wire.EDEStaleAnswer, wire.EDECachedError, wire.EDENotReady, wire.EDEBlocked, wire.EDEStaleNXDomain, wire.EDENotAuthoritative,
		wire.EDENoReachableAuthority, wire.EDENetworkError, wire.EDEInvalidData,
	} {
		assert.Equal(t, strconv.Itoa(code), dns.ExtendedErrorCodeToString[uint16(code)], wire.EDEText(code)) //nolint:gosec // constants
	}
}
