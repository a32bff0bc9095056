// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// TestAnswers is what an off-path attacker or a broken upstream may send.
func TestAnswers(t *testing.T) {
	t.Parallel()
	name := labels("www", "example")
	q := cat(header(flagsQuery, 1, 0, 0, 1), question(name, wire.TypeA), opt(1232, 0, 0))
	good := cat(header(flagsAnswer, 1, 0, 0, 0), question(name, wire.TypeA))
	with := func(at int, b byte) []byte {
		r := cat(good)
		r[at] = b
		return r
	}
	tests := []struct {
		name string
		r    []byte
		want bool
	}{
		{"the question alone", good, true},
		{"with a record", cat(good, record(pointer(12), wire.TypeA, make([]byte, 4))), true},
		{"with rubbish behind", cat(good, []byte("rubbish")), true},
		{"truncated", with(2, 0x83), true},
		{"SERVFAIL", with(3, 0x82), true},
		{"other letter case", cat(header(flagsAnswer, 1, 0, 0, 0), question(labels("wWw", "EXAMPLE"), wire.TypeA)), true},
		{"nothing", nil, false},
		{"shorter than a header", good[:11], false},
		{"header alone", good[:12], false},
		{"header alone, no question", cat(header(flagsAnswer, 0, 0, 0, 0)), false},
		{"no question by the count", with(5, 0), false},
		{"two questions", cat(with(5, 2), question(name, wire.TypeA)), false},
		{"257 questions", with(4, 1), false},
		{"first byte of the ID", with(0, 0x13), false},
		{"second byte of the ID", with(1, 0x35), false},
		{"a query", with(2, 0x01), false},
		{"opcode NOTIFY", with(2, 0xa1), false},
		{"another name", with(13, 'x'), false},
		{"a byte that is no letter, 0x20 apart", with(16, 0x27), false},
		{"a longer name", cat(header(flagsAnswer, 1, 0, 0, 0), question(labels("www", "example", "com"), wire.TypeA)), false},
		{"a shorter name", cat(header(flagsAnswer, 1, 0, 0, 0), question(labels("www"), wire.TypeA), make([]byte, 30)), false},
		{"a dot in place of a label's end", cat(header(flagsAnswer, 1, 0, 0, 0), question(labels("www.example"), wire.TypeA)), false},
		{"another type", with(len(good)-3, 28), false},
		{"a type 256 above", with(len(good)-4, 1), false},
		{"another class", with(len(good)-1, 3), false},
		{"question cut", good[:len(good)-1], false},
		{"a pointer as the question", cat(header(flagsAnswer, 1, 0, 0, 0), question(pointer(12), wire.TypeA), make([]byte, 30)), false},
	}
	fault := cat(header(flagsAnswer|wire.RcodeFormErr, 0, 0, 0, 0))
	for name, tt := range map[string]struct {
		q, r []byte
		want wire.MatchResult
	}{
		"FORMERR without the question":    {q, fault, wire.NoEDNS},
		"NOTIMP without the question":     {q, cat(header(flagsAnswer|wire.RcodeNotImp, 0, 0, 0, 0)), wire.NoEDNS},
		"SERVFAIL without the question":   {q, cat(header(flagsAnswer|wire.RcodeServFail, 0, 0, 0, 0)), wire.NoMatch},
		"FORMERR with an OPT record":      {q, cat(header(flagsAnswer|wire.RcodeFormErr, 0, 0, 0, 1), opt(1232, 0, 0)), wire.NoMatch},
		"FORMERR with something behind":   {q, cat(fault, []byte{0}), wire.NoMatch},
		"FORMERR for another ID":          {q, cat([]byte{1, 2}, fault[2:]), wire.NoMatch},
		"FORMERR for a query without OPT": {cat(header(flagsQuery, 1, 0, 0, 0), question(name, wire.TypeA)), fault, wire.NoMatch},
		"FORMERR that is a query":         {q, cat(header(wire.RcodeFormErr, 0, 0, 0, 0)), wire.NoMatch},
	} {
		assert.Same(t, name, tt.want, wire.Match(tt.q, tt.r))
	}
	for _, tt := range tests {
		assert.Same(t, tt.name, tt.want, wire.Answers(q, tt.r))
	}
}

func TestID(t *testing.T) {
	t.Parallel()
	msg := header(0, 1, 0, 0, 0)
	assert.Same(t, "result", uint16(0x1234), wire.ID(msg))
	wire.SetID(msg, 0xfedc)
	assert.Same(t, "result", uint16(0xfedc), wire.ID(msg))
}
