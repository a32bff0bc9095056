// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/cache"
)

// set is n records of rrtype with RDATA of size bytes: aaaa…, bbbb… and so on.
func set(rrtype uint16, n, size int) []rr {
	var records []rr
	for i := range n {
		records = append(records, rr{rrtype: rrtype, ttl: 60, rdata: bytes.Repeat([]byte{byte('a' + i)}, size)})
	}
	return records
}

func TestRotation(t *testing.T) {
	t.Parallel()
	alias := rr{rrtype: 5, ttl: 60, rdata: []byte("\x01z\x00")}
	signature := rr{rrtype: 46, ttl: 60, rdata: []byte("signature")}
	tests := []struct {
		name         string
		records      []rr
		first, count int
		want         []string // the first byte of every record's RDATA, by lookup
	}{
		{name: "none", records: set(1, 3, 4), want: []string{"abc", "abc"}},
		{name: "a count of one is none", records: set(1, 1, 4), count: 1, want: []string{"a", "a"}},
		{name: "two A", records: set(1, 2, 4), count: 2, want: []string{"ab", "ba", "ab"}},
		{name: "three A", records: set(1, 3, 4), count: 3, want: []string{"abc", "bca", "cab", "abc"}},
		{name: "four AAAA", records: set(28, 4, 16), count: 4, want: []string{"abcd", "bcda", "cdab", "dabc", "abcd"}},
		{
			name: "behind an alias", records: append([]rr{alias}, set(1, 3, 4)...),
			first: 1, count: 3, want: []string{"\x01abc", "\x01bca", "\x01cab"},
		},
		{
			name: "in front of a signature", records: append(set(28, 3, 16), signature),
			count: 3, want: []string{"abcs", "bcas", "cabs"},
		},
		{
			name: "a part of the set", records: set(1, 4, 4),
			first: 1, count: 2, want: []string{"abcd", "acbd", "abcd"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCache(t, cache.Prefetch{})
			key := keyOf("a.", 1, 0)
			a := answerTo(key, time.Minute, tt.records...)
			a.RotateFirst, a.RotateCount = tt.first, tt.count
			for range 2 { // an answer stored again begins anew
				c.Put(key, a, epoch)
				var got []string
				for i := range tt.want {
					msg, _ := c.Lookup(key, after(time.Duration(i)*time.Second), nil)
					got = append(got, firsts(a, msg))
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			}
		})
	}
}

// firsts are the first bytes of every record's RDATA in msg, each checked to be
// whole.
func firsts(a *cache.Answer, msg []byte) string {
	var s []byte
	for i, rdata := range rdataOf(a, msg) {
		before := rdataOf(a, a.Msg)[i]
		if len(rdata) != len(before) {
			return fmt.Sprintf("record %d has %d bytes", i, len(rdata))
		}
		if rdata != before && rdata != string(bytes.Repeat([]byte{rdata[0]}, len(rdata))) {
			return fmt.Sprintf("record %d is %q", i, rdata)
		}
		s = append(s, rdata[0])
	}
	return string(s)
}

// TestRotationLong asks more often than a turn of 16 bits can count: no address
// is first twice in a row, and none is left out.
func TestRotationLong(t *testing.T) {
	t.Parallel()
	c := newCache(t, cache.Prefetch{})
	key := keyOf("a.", 1, 0)
	a := answerTo(key, time.Minute, set(1, 3, 4)...)
	a.RotateCount = 3
	c.Put(key, a, epoch)
	var msg []byte
	for i := range 1<<16 + 10 {
		msg, _ = c.Lookup(key, epoch, msg[:0])
		if want, got := byte('a'+i%3), msg[a.TTLs[0]+6]; got != want {
			t.Fatalf("lookup %d: %c is first, want %c", i, got, want)
		}
	}
}
