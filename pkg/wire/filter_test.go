// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// sections are the records of m that the oracle reads, of each section those that
// order lists, in this order.
func sections(tb testing.TB, m *wire.Message, order []uint16) [4][]string {
	tb.Helper()
	all := view(tb, m)
	list := [4][]string{all[0]}
	flat := slices.Concat(all[1], all[2], all[3])
	for _, i := range order {
		at := m.Records[i].Section + 1
		list[at] = append(list[at], flat[i])
	}
	return list
}

// TestKeep leaves of an answer of every kind of name each subset of its records.
func TestKeep(t *testing.T) {
	t.Parallel()
	var s wire.Rewriter
	for n, msg := range seedAnswers(t) {
		var full wire.Message
		if full.Parse(slices.Clone(msg)) != nil {
			continue
		}
		for subset := range 1 << min(len(full.Records), 10) {
			var order []uint16
			for i := range full.Records {
				if i >= 10 || subset&(1<<i) != 0 {
					order = append(order, uint16(i))
				}
			}
			m := parseMessage(t, slices.Clone(msg))
			want := sections(t, m, order)
			raw := &m.Raw[0]
			if err := s.Keep(m, order); err != nil {
				t.Fatalf("answer %d, records %v: %v", n, order, err)
			}
			if diff := cmp.Diff(want, view(t, m)); diff != "" {
				t.Fatalf("answer %d, records %v (-want +got)\n%s", n, order, diff)
			}
			if len(m.Raw) > len(msg) != (raw != &m.Raw[0]) {
				t.Errorf("answer %d, records %v: %d bytes of %d, in place %t", n, order, len(m.Raw), len(msg), raw == &m.Raw[0])
			}
			if m.HasOPT() {
				t.Error("the OPT record is still there")
			}
		}
	}
}

// TestKeepOrder puts an alias before its target.
func TestKeepOrder(t *testing.T) {
	t.Parallel()
	target := cat(labels("www"), nil)
	a := record(target, wire.TypeA, []byte{10, 0, 0, 1})
	alias := record(pointer(12), wire.TypeCNAME, pointer(firstRecord))
	m := parseMessage(t, reply(2, 0, 0, a, alias))
	var s wire.Rewriter
	assert.NoError(t, s.Keep(m, []uint16{1, 0}))
	want := reply(2, 0, 0, record(pointer(12), wire.TypeCNAME, target), record(pointer(firstRecord+12), wire.TypeA, []byte{10, 0, 0, 1}))
	assert.Same(t, "result", want, m.Raw)
}

// TestKeepTooLong takes out the one record that spells a long name, behind so
// much that the others, of which each then has to spell it, cannot point at one
// another.
func TestKeepTooLong(t *testing.T) {
	t.Parallel()
	name := longName(250)
	filler := record(pointer(12), wire.TypeTXT, make([]byte, 16_200))
	head := reply(2, 0, 0, record(name, wire.TypeTXT, nil), filler, filler[:0])
	for range 400 {
		head = append(head, record(pointer(firstRecord), wire.TypeTXT, nil)...)
	}
	copy(head[6:], u16(402))
	m := parseMessage(t, head)
	order := make([]uint16, 401)
	for i := range order {
		order[i] = uint16(i + 1)
	}
	var s wire.Rewriter
	assert.NoError(t, s.Keep(m, order))
	if len(m.Raw) > len(head)+len(name) {
		t.Fatalf("%d bytes became %d: the name is spelled more than once", len(head), len(m.Raw))
	}
	filler = record(pointer(12), wire.TypeTXT, make([]byte, 16_383))
	head = reply(402, 0, 0, record(name, wire.TypeTXT, nil), filler)
	for range 400 {
		head = append(head, record(pointer(firstRecord), wire.TypeTXT, nil)...)
	}
	m = parseMessage(t, slices.Clone(head))
	want := sections(t, m, order[:10])
	assert.NoError(t, s.Keep(m, order[:10]))
	assert.Same(t, "result", want, view(t, m))
	m = parseMessage(t, head)
	if err := s.Keep(m, order); !errors.Is(err, wire.ErrMalformed) {
		t.Errorf("error %v with %d bytes, want %v", err, len(m.Raw), wire.ErrMalformed)
	}
}

// FuzzSifter takes any records out of any answer, and reads with the oracle that
// the others are what they were.
func FuzzSifter(f *testing.F) {
	for i, msg := range seedAnswers(f) {
		f.Add(msg, uint64(0x5a5a5a5a)>>i)
	}
	f.Fuzz(func(t *testing.T, msg []byte, keep uint64) {
		var m wire.Message
		if m.Parse(slices.Clone(msg)) != nil {
			return
		}
		var order []uint16
		for i := range m.Records {
			if keep>>(i%64)&1 != 0 {
				order = append(order, uint16(i))
			}
		}
		want := sections(t, &m, order)
		var s wire.Rewriter
		if s.Keep(&m, order) != nil {
			return // names that fit compressed only
		}
		if diff := cmp.Diff(want, view(t, &m)); diff != "" {
			t.Fatalf("(-want +got)\n%s", diff)
		}
		if diff := cmp.Diff(parseMessage(t, m.Raw).Records, m.Records, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("records (-want +got)\n%s", diff)
		}
	})
}
