// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// asked is what a Query says, in a form that compares.
type asked struct {
	ID, Type, Class, UDPSize uint16
	RD, AD, CD, EDNS, DO     bool
	Keepalive, Explain       bool
	Serial                   uint32
	HasSerial                bool
	Name, Cookie, Subnet     string
}

func askedBy(q *wire.Query) asked {
	return asked{
		ID: q.ID, Type: q.Type, Class: q.Class, UDPSize: q.UDPSize,
		RD: q.RD, AD: q.AD, CD: q.CD, EDNS: q.EDNS, DO: q.DO, Keepalive: q.Keepalive, Explain: q.Explain,
		Serial: q.Serial, HasSerial: q.HasSerial,
		Name: string(q.Name()), Cookie: string(q.Cookie), Subnet: string(q.Subnet),
	}
}

// ask is a query of flags for name A with additional records.
func ask(flags uint16, name []byte, additional ...[]byte) []byte {
	return cat(header(flags, 1, 0, 0, uint16(len(additional))), question(name, wire.TypeA), cat(additional...))
}

// TestQueryParseKeepsWhatCameBefore pins what an error reply is made of.
func TestQueryParseKeepsWhatCameBefore(t *testing.T) {
	t.Parallel()
	var q wire.Query
	if got := q.Parse(ask(flagsQuery|0x10, labels("A"), opt(4096, 1, 0x8000, []byte{1}))); got != wire.RcodeBadVers {
		t.Fatalf("fault %d, want %d", got, wire.RcodeBadVers)
	}
	want := asked{
		ID: 0x1234, Type: wire.TypeA, Class: wire.ClassIN, UDPSize: 4096,
		RD: true, CD: true, EDNS: true, DO: true, Name: "\x01a\x00",
	}
	assert.Same(t, "result", want, askedBy(&q))
	assert.Same(t, "question", question(labels("A"), 1), q.QuestionSection())
}
