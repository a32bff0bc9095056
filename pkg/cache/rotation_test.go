// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"bytes"
	"testing"
	"time"

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
