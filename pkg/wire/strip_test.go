// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"errors"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// view is what the oracle reads in a walked message, OPT record left out.
func view(tb testing.TB, m *wire.Message) [4][]string {
	tb.Helper()
	read := unpack(tb, blur(m))
	list := [4][]string{{read.Question[0].String()}}
	for i, section := range [][]dns.RR{read.Answer, read.Ns, read.Extra} {
		for _, rr := range section {
			if rr.Header().Rrtype != 65281 {
				list[i+1] = append(list[i+1], rr.String())
			}
		}
	}
	return list
}

func TestMessageStripOPT(t *testing.T) {
	t.Parallel()
	self := pointer(12)
	a := record(self, wire.TypeA, []byte{10, 0, 0, 1})
	edns := opt(1232, 0, 0x8000, option(65001, 1, 2, 3, 4, 5)) // 20 bytes
	behind := firstRecord + len(edns)                          // of the first record behind such an OPT
	named := record(cat([]byte{2, 'n', 's'}, self), wire.TypeA, []byte{10, 0, 0, 2})
	next := behind + len(named)
	tests := []struct {
		name      string
		msg, want []byte
	}{
		{"no OPT", reply(1, 0, 0, a), reply(1, 0, 0, a)},
		{"OPT alone", reply(0, 0, 1, edns), reply(0, 0, 0)},
		{"OPT last", reply(1, 0, 2, a, a, edns), reply(1, 0, 1, a, a)},
		{"OPT and rubbish behind", reply(1, 0, 1, a, edns, []byte("rubbish")), reply(1, 0, 0, a)},
		{"pointers before it stay", reply(0, 0, 2, edns, a), reply(0, 0, 1, a)},
		{
			"an owner that points beyond it", reply(0, 0, 3, edns, named, record(pointer(behind), wire.TypeTXT, []byte{0})),
			reply(0, 0, 2, named, record(pointer(firstRecord), wire.TypeTXT, []byte{0})),
		},
		{
			"a pointer to a pointer beyond it",
			reply(0, 0, 4, edns, named, record(cat([]byte{1, 'x'}, pointer(behind)), 16, nil), record(pointer(next), 16, nil)),
			reply(0, 0, 3, named, record(cat([]byte{1, 'x'}, pointer(firstRecord)), 16, nil), record(pointer(next-20), 16, nil)),
		},
		{
			"RDATA that points beyond it", reply(0, 0, 3, edns, named, record(self, wire.TypeSRV, cat(make([]byte, 6), pointer(behind)))),
			reply(0, 0, 2, named, record(self, wire.TypeSRV, cat(make([]byte, 6), pointer(firstRecord)))),
		},
		{
			"both names of an SOA", reply(0, 0, 3, edns, named, record(self, wire.TypeSOA, cat(pointer(behind), pointer(behind), make([]byte, 20)))),
			reply(0, 0, 2, named, record(self, wire.TypeSOA, cat(pointer(firstRecord), pointer(firstRecord), make([]byte, 20)))),
		},
		{
			"a signer beyond it",
			reply(0, 0, 3, edns, record(self, wire.TypeRRSIG, cat(make([]byte, 18), labels("s"))), record(pointer(behind+12+18), 16, nil)),
			reply(0, 0, 2, record(self, wire.TypeRRSIG, cat(make([]byte, 18), labels("s"))), record(pointer(firstRecord+12+18), 16, nil)),
		},
		{
			"bytes like pointers in other RDATA stay", reply(0, 0, 3, edns, named, record(self, 65280, pointer(behind))),
			reply(0, 0, 2, named, record(self, 65280, pointer(behind))),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := parseMessage(t, tt.msg)
			assert.NoError(t, stripOPT(t, m))
			assert.Same(t, "result", tt.want, m.Raw)
		})
	}
}

func TestMessageStripOPTPointedAt(t *testing.T) {
	t.Parallel()
	edns := opt(1232, 0, 0)
	tests := []struct {
		name string
		msg  []byte
	}{
		{"by an owner", reply(0, 0, 2, edns, record(pointer(firstRecord), wire.TypeA, make([]byte, 4)))},
		{"behind a label", reply(0, 0, 2, edns, record(cat([]byte{1, 'a'}, pointer(firstRecord)), wire.TypeA, make([]byte, 4)))},
		{"by RDATA", reply(0, 0, 2, edns, record(pointer(12), wire.TypeNS, pointer(firstRecord)))},
		{"by the second name of RDATA", reply(0, 0, 2, edns, record(pointer(12), dns.TypeMINFO, cat(labels("a"), pointer(firstRecord))))},
	}
	for _, tt := range tests {
		m := parseMessage(t, tt.msg)
		if err := m.StripOPT(); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s: error %v, want %v", tt.name, err, wire.ErrMalformed)
		}
	}
}
