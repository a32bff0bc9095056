// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"encoding/binary"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// load is what the budgets and the benchmarks run on: a query as a stub
// resolver sends it, and answers of a usual and of a large size.
type load struct {
	pkt, small, large []byte
	opts              wire.ReplyOptions
}

func newLoad(tb testing.TB) load {
	tb.Helper()
	query := new(dns.Msg).SetQuestion("WWW.example.", dns.TypeA).SetEdns0(1232, true)
	o := query.IsEdns0()
	o.Option = append(o.Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"},
		&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: []byte{10, 1, 2, 0}})
	small := answer(tb, "www.example.", dns.TypeA, records(tb, "www.example. 300 IN CNAME web.example.", "web.example. 60 IN A 192.0.2.1"), nil, nil)
	return load{
		pkt: pack(tb, query), small: pack(tb, small), large: pack(tb, big(tb)["SRV"]),
		opts: wire.ReplyOptions{Limit: wire.SafeUDP, UDPSize: wire.SafeUDP, Cookie: make([]byte, 24), Keepalive: 100, EDE: wire.EDENotReady},
	}
}

// TestAllocations cannot run beside other tests: the count is the process's.
func TestAllocations(t *testing.T) {
	l := newLoad(t)
	q, m := parseQuery(t, l.pkt), parseMessage(t, l.large)
	edns := pack(t, unpack(t, l.large).SetEdns0(1232, true))
	buf := make([]byte, 0, wire.MaxMessage)
	tests := []struct {
		name string
		run  func()
	}{
		{"reading a query", func() { q.Parse(l.pkt) }},
		{"its key with the subnet", func() { q.AddSubnetToKey() }},
		{"asking upstream", func() { buf = q.AppendUpstream(buf[:0], true) }},
		{"walking an answer", func() { _ = m.Parse(l.large) }},
		{"walking an answer and its OPT", func() {
			buf = append(buf[:0], edns...)
			_ = m.Parse(buf)
			_ = m.StripOPT()
		}},
		{"replying", func() { buf = q.Reply(append(buf[:0], l.small...), 0, &l.opts) }},
		{"replying with a part", func() { buf = q.Reply(append(buf[:0], l.large...), 0, &l.opts) }},
		{"replying with an rcode", func() { buf = q.AppendEmpty(buf[:0], wire.RcodeServFail, &l.opts) }},
		{"replying with a record", func() { buf = q.AppendRecord(buf[:0], wire.TypeTXT, 0, l.small[:9], &l.opts) }},
		{"replying to a fault", func() { buf = wire.AppendFault(buf[:0], l.pkt, wire.RcodeNotImp) }},
		{"comparing a question", func() { wire.Match(l.pkt, l.small) }},
		{"mixing the case of a question", func() { wire.RandomCase(l.pkt, 0x5a5a5a5a5a5a5a5a) }},
		{"the question as it is stored", func() {
			copy(buf[:len(l.small)], l.small)
			wire.RandomCase(buf[:len(l.small)], 0x5a5a5a5a5a5a5a5a)
			_ = m.Parse(buf[:len(l.small)])
			m.CanonicalizeQuestion()
		}},
	}
	for _, tt := range tests {
		assert.Same(t, tt.name, 0, testing.AllocsPerRun(100, tt.run))
	}
}

// hops is how many labels and pointers a reader meets in the name at off.
func hops(msg []byte, off int) int {
	for n := 1; ; n++ {
		switch c := msg[off]; {
		case c == 0:
			return n
		case c >= 0xc0:
			off = int(c&0x3f)<<8 | int(msg[off+1])
		default:
			off += int(c) + 1
		}
	}
}

// most is the longest message that Parse takes of those that begin with head, which
// has n records, and go on with one record as often as 64 KiB allow. The rest of
// it stays behind as rubbish.
func most(tb testing.TB, head []byte, n int, next []byte) []byte {
	tb.Helper()
	msg := slices.Clone(head)
	all := n
	for ; len(msg)+len(next) <= wire.MaxMessage; all++ {
		msg = append(msg, next...)
	}
	count := func(n int) []byte {
		binary.BigEndian.PutUint16(msg[6:], uint16(n))
		return msg
	}
	more := sort.Search(all-n, func(more int) bool { return new(wire.Message).Parse(count(n+more+1)) != nil })
	return count(n + more)
}

// TestMessageParseWorstCase fills 64 KiB with what is dearest to walk. The work is
// counted in labels and pointers, not in time, as a reader of all names meets
// them: there is a bound on what is behind pointers.
func TestMessageParseWorstCase(t *testing.T) {
	t.Parallel()
	deepest := bare(wire.MaxPointers - 1)
	end := pointer(len(deepest) - 13) // the last owner of the chain
	long := chain(60)
	for len(long) < 1100 { // more names upon the longest chain that has labels
		long = chain(int(long[7]) + 1)
	}
	last := pointer(len(long) - 15)
	reverse := reply(1, 0, 0, record(labels(strings.Split(strings.Repeat("x", 32), "")...), wire.TypeTXT, nil))
	tests := []struct {
		name    string
		msg     []byte
		want    int // records at least
		bounded bool
	}{
		{"owners of 126 pointers", most(t, deepest, wire.MaxPointers-1, record(end, 65280, nil)), 2000, true},
		{"RDATA of 126 pointers", most(t, deepest, wire.MaxPointers-1, record(end, dns.TypeMINFO, cat(end, end))), 700, true},
		{"labels and pointers in turn", most(t, long, int(long[7]), record(last, wire.TypeCNAME, last)), 700, true},
		{"small records", most(t, reply(0, 0, 0), 0, record(labels(), 65280, nil)), 5900, false},
		{"4,000 addresses", most(t, reply(0, 0, 0), 0, record(pointer(12), wire.TypeA, make([]byte, 4))), 4000, false},
		{"4,000 addresses of a name of 32 labels", most(t, reverse, 1, record(pointer(firstRecord), wire.TypeA, make([]byte, 4))), 4000, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := parseMessage(t, tt.msg)
			if len(m.Records) < tt.want {
				t.Errorf("%d records, want at least %d", len(m.Records), tt.want)
			}
			work := 0
			for _, r := range m.Records {
				work += hops(m.Raw, int(r.Owner))
				off := r.Data() + namesIn[r.Type][0]
				for range namesIn[r.Type][1] {
					work += hops(m.Raw, off)
					off += 2 // all of them are pointers
				}
			}
			if bound := wire.MaxSteps + len(tt.msg)/2; work > bound || tt.bounded != (work > wire.MaxSteps-1000) {
				t.Errorf("%d labels and pointers, want at most %d, and as many if it is bounded by them: %t", work, bound, tt.bounded)
			}
			why := explain(tt.msg)
			if tt.bounded && why == "" { // and the slow reader finds the bound at the same record
				more := slices.Clone(tt.msg)
				copy(more[6:], u16(uint16(len(m.Records)+1)))
				if why = explain(more); why == badSteps {
					why = ""
				}
			}
			if why != "" {
				t.Errorf("the slow reader says %q", why)
			}
			q := parseQuery(t, ask(0, labels("example"), opt(1232, 0, 0)))
			got := q.Reply(slices.Clone(m.Raw), 0, &wire.ReplyOptions{Limit: wire.MaxMessage - 20, EDE: wire.EDENone})
			parseMessage(t, got)
		})
	}
}

func BenchmarkQueryParse(b *testing.B) {
	l := newLoad(b)
	var q wire.Query
	b.ReportAllocs()
	for b.Loop() {
		q.Parse(l.pkt)
	}
}

func BenchmarkMessageParse(b *testing.B) {
	l := newLoad(b)
	deepest := bare(wire.MaxPointers - 1)
	worst := most(b, deepest, wire.MaxPointers-1, record(pointer(len(deepest)-13), 65280, nil))
	for _, bb := range []struct {
		name string
		msg  []byte
	}{{"small", l.small}, {"large", l.large}, {"worst", worst}} {
		b.Run(bb.name, func(b *testing.B) {
			var m wire.Message
			b.ReportAllocs()
			b.SetBytes(int64(len(bb.msg)))
			for b.Loop() {
				assert.NoError(b, m.Parse(bb.msg))
			}
		})
	}
}

func BenchmarkQueryReply(b *testing.B) {
	l := newLoad(b)
	q := parseQuery(b, l.pkt)
	buf := make([]byte, 0, wire.MaxMessage)
	for _, bb := range []struct {
		name string
		msg  []byte
	}{{"whole", l.small}, {"truncated", l.large}} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buf = q.Reply(append(buf[:0], bb.msg...), 0, &l.opts)
			}
		})
	}
}
