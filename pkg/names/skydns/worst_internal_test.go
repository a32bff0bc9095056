// SPDX-License-Identifier: Apache-2.0

package skydns

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// worstSource has zones with sets of the most expensive kinds.
func worstSource(tb testing.TB) *Source {
	tb.Helper()
	s, err := New(Config{Prefix: "/skydns/", Zones: []string{"sky.test.", "wide.test."}})
	assert.NoError(tb, err)
	r := s.NewRecords()
	put := func(path, format string, n int, args func(i int) []any) {
		for i := range n {
			r.Put(fmt.Sprintf("/skydns/test/%s%04d", path, i), fmt.Appendf(nil, format, args(i)...), false)
		}
	}
	address := func(i int) []any { return []any{i / 250, i%250 + 1} }
	put("sky/n", `{"host": "10.0.%d.%d", "port": 80}`, 600, address)
	put("wide/all/n", `{"host": "10.0.%d.%d", "port": 80, "mail": true, "text": "some text"}`, maxRead, address)
	put("wide/same/n", `{"host": "10.0.0.1", "port": 80, "targetstrip": 1}`, maxRead, func(int) []any { return nil })
	put("wide/ranks/n", `{"host": "n%04d.all.wide.test", "port": 80, "priority": %d}`, maxRead/2-1, func(i int) []any { return []any{i, i + 1} })
	put("wide/gone/n", `{"host": "none%04d.wide.test", "port": 80}`, maxRead/2-1, func(i int) []any { return []any{i} })
	put("wide/many/n", `{"host": "10.0.%d.%d"}`, 3000, address)
	put("wide/below/n", `{"host": "n%04d.below.wide.test"}`, maxRead, func(i int) []any { return []any{i} })
	s.Use(r)
	return s
}

// TestWorst counts what the most expensive answers take: records that are read, and bytes that are written. Neither depends on what
// the zone has.
func TestWorst(t *testing.T) {
	t.Parallel()
	s := worstSource(t)
	for _, tt := range []struct {
		name  string
		qtype uint16
		want  Verdict
		isCut bool // over UDP
	}{
		{"sky.test.", dns.TypeSRV, Answered, true},
		{"sky.test.", dns.TypeA, Answered, true},
		{"x7.*.sky.test.", dns.TypeA, Answered, false},
		{"x7.any.sky.test.", dns.TypeSRV, Answered, false},
		{"all.wide.test.", dns.TypeA, Answered, true},
		{"all.wide.test.", dns.TypeSRV, Answered, true},
		{"all.wide.test.", dns.TypeMX, Answered, true},
		{"all.wide.test.", dns.TypeTXT, Answered, false}, // they are one text
		{"same.wide.test.", dns.TypeSRV, Answered, false},
		{"ranks.wide.test.", dns.TypeSRV, Answered, true},
		{"gone.wide.test.", dns.TypeSRV, Answered, true},
		{"below.wide.test.", dns.TypeA, Answered, false},
		{"many.wide.test.", dns.TypeA, Failed, false},
		{"x.*.wide.test.", dns.TypeA, Failed, false},
	} {
		pkt, err := new(dns.Msg).SetQuestion(tt.name, tt.qtype).Pack()
		assert.NoError(t, err)
		var q wire.Query
		q.Parse(pkt)
		for _, limit := range []int{wire.SafeUDP, wire.MaxMessage} {
			a := newAnswer()
			a.source, a.records, a.zone, a.budget = s, s.Records(), s.zoneOf(q.Name()), maxRead
			verdict := a.build(&q, min(limit, maxAnswer), make([]byte, 0, limit))
			what := fmt.Sprintf("%s %s in %d bytes: ", tt.name, dns.TypeToString[tt.qtype], limit)
			assert.Equal(t, what+"verdict", tt.want, verdict)
			assert.Equal(t, what+"truncated", tt.isCut && limit == wire.SafeUDP, a.isCut)
			if read := maxRead - a.budget; read > maxRead+1 || len(a.dst) > limit {
				t.Errorf("%s%d records read, %d bytes", what, read, len(a.dst))
			}
			if a.isCut && binary.BigEndian.Uint16(a.dst[6:]) == 0 {
				t.Errorf("%sno record", what)
			}
			var m dns.Msg
			if verdict == Answered {
				assert.NoError(t, m.Unpack(a.dst))
			}
		}
	}
}

// TestTruncatedSetsRotate gives clients that accept a part of a set all of it over time.
func TestTruncatedSetsRotate(t *testing.T) {
	t.Parallel()
	s := worstSource(t)
	for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV} {
		pkt, err := new(dns.Msg).SetQuestion("sky.test.", qtype).Pack()
		assert.NoError(t, err)
		var q wire.Query
		q.Parse(pkt)
		seen := map[string]bool{}
		for range 1000 {
			dst, _, _ := s.Answer(&q, wire.SafeUDP, nil)
			var m dns.Msg
			assert.NoError(t, m.Unpack(dst))
			for _, rr := range m.Answer {
				seen[rr.String()] = true
			}
			if !m.Truncated || len(dst) > wire.SafeUDP || len(m.Ns)+len(m.Extra) > 0 {
				t.Fatalf("%d bytes, TC %t, %d records after the answer", len(dst), m.Truncated, len(m.Ns)+len(m.Extra))
			}
		}
		assert.Equal(t, "records seen", 600, len(seen))
	}
}

// TestLargeIsRecent keeps the largest answers whole: they are copied until a record changes.
func TestLargeIsRecent(t *testing.T) {
	s := worstSource(t)
	pkt, err := new(dns.Msg).SetQuestion("all.wide.test.", dns.TypeSRV).Pack()
	assert.NoError(t, err)
	var q wire.Query
	q.Parse(pkt)
	dst := make([]byte, 0, wire.MaxMessage)
	first, _, _ := s.Answer(&q, wire.MaxMessage, dst)
	var m dns.Msg
	assert.NoError(t, m.Unpack(first))
	assert.Equal(t, "SRV records", maxRead, len(m.Answer))
	if n := testing.AllocsPerRun(10, func() { s.Answer(&q, wire.MaxMessage, dst) }); n > 0 {
		t.Errorf("%v allocations of a recent answer, want none", n)
	}
	s.Records().Delete("/skydns/test/wide/all/n0000")
	changed, _, _ := s.Answer(&q, wire.MaxMessage, dst)
	assert.NoError(t, m.Unpack(changed))
	assert.Equal(t, "SRV records after one is deleted", maxRead-1, len(m.Answer))
}
