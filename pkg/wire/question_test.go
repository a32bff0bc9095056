// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

func TestWithUDPSize(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		edns bool
		want uint16 // 0: no OPT record
	}{
		{name: "with EDNS", edns: true, want: 512},
		{name: "without"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := new(dns.Msg).SetQuestion("www.example.", dns.TypeSRV)
			if tt.edns {
				m.SetEdns0(1232, true)
			}
			q, err := m.Pack()
			assert.NoError(t, err)
			assert.Same(t, "type", dns.TypeSRV, wire.QueryType(q))
			before := string(q)
			var sized dns.Msg
			assert.NoError(t, sized.Unpack(wire.WithUDPSize(q, 512)))
			if string(q) != before {
				t.Error("the query itself was changed")
			}
			switch opt := sized.IsEdns0(); {
			case opt == nil && tt.want != 0:
				t.Error("the OPT record is gone")
			case opt != nil && (opt.UDPSize() != tt.want || !opt.Do()):
				t.Errorf("OPT record %v, want %d bytes and DO", opt, tt.want)
			}
		})
	}
}

// Any bytes will do.
func TestQueryTypeOfGarbage(t *testing.T) {
	t.Parallel()
	for _, q := range []string{"", "0123456789ab", "0123456789ab\x03www", "0123456789ab\x03www\x00\x00"} {
		assert.Equal(t, fmt.Sprintf("type of %q", q), 0, wire.QueryType([]byte(q)))
		if got := wire.WithUDPSize([]byte(q), 512); string(got) != q {
			t.Errorf("%q became %q", q, got)
		}
	}
}
