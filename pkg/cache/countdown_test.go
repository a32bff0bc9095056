// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/cache"
)

// TestClockBehind looks up with a time read before the answer was stored, as a worker with a long batch does.
func TestClockBehind(t *testing.T) {
	t.Parallel()
	c := newCache(t, cache.Prefetch{Hits: 1, Remaining: 1})
	key := keyOf("a.", 1, 0)
	a := plain(key, 300*time.Second, 4)
	c.Put(key, a, epoch)
	for _, behind := range []time.Duration{1, time.Second - 1, time.Second, time.Hour} {
		msg, found := c.Lookup(key, after(-behind), nil)
		if found != cache.Fresh {
			t.Errorf("%v behind: %d, want fresh", behind, found)
		}
		if diff := cmp.Diff([]uint32{300}, ttlsOf(a, msg)); diff != "" {
			t.Errorf("%v behind: TTLs (-want +got)\n%s", behind, diff)
		}
	}
}

// TestCountdown checks the TTLs of one answer; one of them is shorter than its lifetime.
func TestCountdown(t *testing.T) {
	t.Parallel()
	c := newCache(t, cache.Prefetch{})
	key := keyOf("a.", 1, 0)
	a := answerTo(key, 100*time.Second, rr{rrtype: 1, ttl: 100, rdata: []byte("1234")}, rr{rrtype: 1, ttl: 5, rdata: []byte("5678")}, rr{rrtype: 1, ttl: 1 << 31, rdata: []byte("9abc")})
	c.Put(key, a, epoch)
	tests := []struct {
		at   time.Duration
		want []uint32
	}{
		{0, []uint32{100, 5, 1 << 31}},
		{time.Second - 1, []uint32{100, 5, 1 << 31}},
		{time.Second, []uint32{99, 4, 1<<31 - 1}},
		{5 * time.Second, []uint32{95, 0, 1<<31 - 5}},
		{6 * time.Second, []uint32{94, 0, 1<<31 - 6}},
		{100*time.Second - 1, []uint32{1, 0, 1<<31 - 99}},
		{100 * time.Second, nil},
	}
	for _, tt := range tests {
		msg, found := c.Lookup(key, after(tt.at), nil)
		var got []uint32
		if found != cache.Absent {
			got = ttlsOf(a, msg)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("at %v (-want +got)\n%s", tt.at, diff)
		}
	}
}
