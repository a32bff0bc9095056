// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Header flags of the hand-made messages.
const (
	flagsQuery  = 0x0100 // RD
	flagsAnswer = 0x8180 // QR RD RA
)

// cat joins bytes.
func cat(parts ...[]byte) []byte {
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// u16 is values in network order.
func u16(values ...uint16) []byte {
	var b []byte
	for _, v := range values {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	return b
}

// header is a header with ID 0x1234.
func header(flags, qd, an, ns, ar uint16) []byte { return u16(0x1234, flags, qd, an, ns, ar) }

// labels is an uncompressed name.
func labels(list ...string) []byte {
	var b []byte
	for _, l := range list {
		b = append(b, byte(len(l)))
		b = append(b, l...)
	}
	return append(b, 0)
}

// question is one question of class IN.
func question(name []byte, rrtype uint16) []byte { return cat(name, u16(rrtype, wire.ClassIN)) }

// pointer is a compression pointer.
func pointer(target int) []byte { return u16(0xc000 | uint16(target)) }

// record is one record of class IN with a TTL of 300 s.
func record(owner []byte, rrtype uint16, data []byte) []byte {
	return cat(owner, u16(rrtype, wire.ClassIN, 0, 300, uint16(len(data))), data)
}

// opt is an OPT record.
func opt(size uint16, version byte, flags uint16, options ...[]byte) []byte {
	data := cat(options...)
	return cat([]byte{0}, u16(wire.TypeOPT, size, uint16(version), flags, uint16(len(data))), data)
}

// soa is the RDATA of a SOA record whose names are the root.
func soa(serial uint32) []byte {
	return cat([]byte{0, 0}, u16(uint16(serial>>16), uint16(serial)), make([]byte, 16))
}

// option is one EDNS option.
func option(code uint16, data ...byte) []byte { return cat(u16(code, uint16(len(data))), data) }

// longName is a name of size bytes in all, 3 to 255, in labels of 63 or less.
func longName(size int) []byte {
	var b []byte
	for size > 1 {
		n := min(64, size-1)
		if size-1-n == 1 { // one byte cannot hold a label
			n--
		}
		b = append(b, byte(n-1))
		b = append(b, strings.Repeat("a", n-1)...)
		size -= n
	}
	return append(b, 0)
}

// pack is m in wire form.
func pack(tb testing.TB, m *dns.Msg) []byte {
	tb.Helper()
	b, err := m.Pack()
	assert.NoError(tb, err)
	return b
}

// unpack is b as the oracle reads it.
func unpack(tb testing.TB, b []byte) *dns.Msg {
	tb.Helper()
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		tb.Fatalf("the oracle cannot read %x: %v", b, err)
	}
	return m
}

// parseQuery is b read, which must be a query.
func parseQuery(tb testing.TB, b []byte) *wire.Query {
	tb.Helper()
	q := new(wire.Query)
	if fault := q.Parse(b); fault != wire.RcodeSuccess {
		tb.Fatalf("fault %d in %x", fault, b)
	}
	return q
}

// parseMessage is b walked, which must be well-formed.
func parseMessage(tb testing.TB, b []byte) *wire.Message {
	tb.Helper()
	m := new(wire.Message)
	if err := m.Parse(b); err != nil {
		tb.Fatalf("walking %x: %v", b, err)
	}
	return m
}

// records are records in presentation form.
func records(tb testing.TB, lines ...string) []dns.RR {
	tb.Helper()
	list := make([]dns.RR, 0, len(lines))
	for _, line := range lines {
		rr, err := dns.NewRR(line)
		if err != nil {
			tb.Fatalf("reading %q: %v", line, err)
		}
		list = append(list, rr)
	}
	return list
}

// answer is a compressed answer without OPT record to a question.
func answer(tb testing.TB, name string, rrtype uint16, an, ns, ar []dns.RR) *dns.Msg {
	tb.Helper()
	m := new(dns.Msg).SetQuestion(name, rrtype)
	m.Id, m.Response, m.RecursionAvailable, m.Compress = 0x4321, true, true, true
	m.Answer, m.Ns, m.Extra = an, ns, ar
	return m
}
