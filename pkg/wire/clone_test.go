// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// TestAskClone spoils the packet and the first query after the copy.
func TestAskClone(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		pkt  []byte
	}{
		{"plain", ask(flagsQuery, labels("Www", "Example"))},
		{"cookie", ask(flagsQuery, labels("a"), opt(1232, 0, 0, option(10, 1, 2, 3, 4, 5, 6, 7, 8)))},
		{"subnet", ask(flagsQuery, labels("a"), opt(1232, 0, 0, option(8, 0, 1, 8, 0, 10)))},
		{"both", ask(flagsQuery|0x10, labels("a"), opt(1232, 0, 0x8000,
			option(8, 0, 1, 8, 0, 10), option(11), option(10, bytes.Repeat([]byte{9}, 40)...)))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			opts := &wire.ReplyOptions{UDPSize: 1232, EDE: wire.EDENone}
			q := parseQuery(t, tt.pkt)
			want := askedBy(q)
			wantQuestion, wantReply := bytes.Clone(q.QuestionSection()), q.AppendEmpty(nil, wire.RcodeRefused, opts)
			clone, _ := q.CloneTo(nil)
			for i := range tt.pkt {
				tt.pkt[i] = 0xff
			}
			if fault := q.Parse(ask(0, labels("other"))); fault != wire.RcodeSuccess {
				t.Fatalf("fault %d", fault)
			}
			assert.Same(t, "result", want, askedBy(&wire.Query{Question: clone}), cmp.FilterPath(isQuery, cmp.Ignore()))
			assert.Same(t, "question", wantQuestion, clone.QuestionSection())
			assert.Same(t, "reply", wantReply, clone.AppendEmpty(nil, wire.RcodeRefused, opts))
		})
	}
}

// isQuery picks what an asked says of the query beyond its Ask.
func isQuery(p cmp.Path) bool {
	return slices.Contains([]string{".Name", ".Cookie", ".Subnet"}, p.Last().String())
}

// TestAskCloneWithoutQuestion copies a query that was refused before its
// question was read: the error reply must not promise one.
func TestAskCloneWithoutQuestion(t *testing.T) {
	t.Parallel()
	var q wire.Query
	if fault := q.Parse(header(flagsQuery, 0, 0, 0, 0)); fault != wire.RcodeFormErr {
		t.Fatalf("fault %d", fault)
	}
	clone, _ := q.CloneTo(nil)
	got := clone.AppendEmpty(nil, wire.RcodeFormErr, &wire.ReplyOptions{EDE: wire.EDENone})
	assert.Same(t, "result", header(0x8181, 0, 0, 0, 0), got)
}

// TestAskCloneTo copies into room that is too small, just right and too large:
// what was there stays, and the copy does not change with what comes behind it.
func TestAskCloneTo(t *testing.T) {
	t.Parallel()
	pkt := ask(flagsQuery, labels("a"), opt(1232, 0, 0, option(8, 0, 1, 8, 0, 10), option(10, 1, 2, 3, 4, 5, 6, 7, 8)))
	q := parseQuery(t, pkt)
	const before = "before"
	size := len(before) + len(q.QuestionSection())
	for room := len(before); room < size+8; room++ {
		clone, grown := q.CloneTo(append(make([]byte, 0, room), before...))
		want := append([]byte(before), q.QuestionSection()...)
		if diff := cmp.Diff(want, grown); diff != "" {
			t.Fatalf("room for %d: grown (-want +got):\n%s", room, diff)
		}
		_ = append(grown, "behind"...)
		_ = append(clone.QuestionSection(), "behind"...)
		if diff := cmp.Diff(askedBy(q), askedBy(&wire.Query{Question: clone}), cmp.FilterPath(isQuery, cmp.Ignore())); diff != "" {
			t.Errorf("room for %d (-want +got)\n%s", room, diff)
		}
	}
}

// TestResume takes up queries again by what was kept of them, after another name and type were looked for.
func TestResume(t *testing.T) {
	t.Parallel()
	for i, pkt := range seedQueries(t) {
		var q, again wire.Query
		if q.Parse(pkt) != wire.RcodeSuccess {
			continue
		}
		key, asked := string(q.Key()), q.Type
		q.SetName([]byte("\x05other\x04test\x00"))
		q.SetType(wire.TypeA)
		want := "\x05other\x04test\x00\x00\x01\x00" + string(byte(q.Class))
		if got := string(q.AppendQuestion(nil)); q.Class < 0x80 && got != want {
			t.Errorf("query %d: looks for %x, want %x", i, got, want)
		}
		kept, _ := q.CloneTo(nil)
		assert.Equal(t, fmt.Sprintf("query %d: type", i), asked, kept.OriginalType())
		if again.SetQuestion(&kept); string(again.Key()) != key || again.Type != asked || again.DO != q.DO || again.ID != q.ID {
			t.Errorf("query %d: key %x, want %x", i, again.Key(), key)
		}
	}
}
