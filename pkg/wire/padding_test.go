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
