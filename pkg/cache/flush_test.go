// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"testing"

	"github.com/nodecache/node-cache/pkg/cache"
)

// TestFlushReusesSpace fills and flushes a cache repeatedly.
func TestFlushReusesSpace(t *testing.T) {
	t.Parallel()
	c := newCache(t, cache.Prefetch{})
	for range 5 {
		fill(c, "n", 20_000, epoch)
		if got, want := c.Flush([]byte{0}, true), 20_000; got == 0 || got > want {
			t.Errorf("%d flushed", got)
		}
		if s := c.Stats(); s.Entries != 0 || s.Bytes != 0 {
			t.Errorf("%+v", s)
		}
		check(t, c)
	}
	fill(c, "n", 20_000, epoch)
	if s := c.Stats(); s.Bytes < cache.MinSize*7/10 {
		t.Errorf("%+v", s)
	}
}
