// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// TestChoose says which server the next session is opened to. Servers 1 and 2 are of this zone, 3 and 4 are not.
func TestChoose(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tests := []struct {
		name    string
		servers []int
		last    int
		avoid   map[int]time.Duration // how long each is left alone from now on
		want    int                   // 0: none
	}{
		{name: "this zone before others", servers: []int{3, 1, 4}, want: 1},
		{name: "another one than the last", servers: []int{1, 2}, last: 1, want: 2},
		{name: "the last one of this zone before others", servers: []int{1, 3}, last: 1, want: 1},
		{name: "another one than the last elsewhere", servers: []int{3, 4}, last: 4, want: 3},
		{name: "the only one again", servers: []int{3}, last: 3, want: 3},
		{name: "one to be left alone", servers: []int{1, 3}, avoid: map[int]time.Duration{1: time.Second}, want: 3},
		{name: "no longer", servers: []int{1, 3}, avoid: map[int]time.Duration{1: 0}, want: 1},
		{name: "all are to be left alone", servers: []int{1}, avoid: map[int]time.Duration{1: time.Second}},
		{name: "there is none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := New(Config{Now: func() time.Time { return now }, Servers: func() (list []upstream.Server) {
				for _, n := range tt.servers {
					list = append(list, upstream.Server{Addr: modelAddr(n), Far: n > 2})
				}
				return list
			}})
			avoid := map[netip.AddrPort]time.Time{}
			for n, d := range tt.avoid {
				avoid[modelAddr(n)] = now.Add(d)
			}
			want := netip.AddrPort{}
			if tt.want != 0 {
				want = modelAddr(tt.want)
			}
			for range 20 { // equal ones are chosen at random
				assert.Same(t, "server", want.String(), c.choose(avoid, modelAddr(tt.last)).String())
			}
			if why := c.Stats().Why; (why == NoServer) != (tt.servers == nil) {
				t.Errorf("why there is none: %q", why)
			}
		})
	}
}
