// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"bytes"
	"testing"

	"github.com/nodecache/node-cache/pkg/cache"
)

// TestFlushReusesSpace fills and flushes a cache repeatedly.
// TestPurge removes the names that match, of all shards, and notifies the observer.
func TestPurge(t *testing.T) {
	t.Parallel()
	c := newCache(t, cache.Prefetch{})
	fill(c, "n", 1000, epoch)
	notified := 0
	c.Observe(func(name []byte) {
		if name == nil {
			notified++
		}
	})
	before := c.Stats().Entries
	removed := int64(c.Purge(func(name, _ []byte) bool { return bytes.Contains(name, []byte("7")) }))
	if got := c.Stats(); removed == 0 || removed >= before || got.Entries != before-removed || got.Removed != uint64(removed) || notified != 1 {
		t.Errorf("%d of %d removed, %+v, notified %d times", removed, before, got, notified)
	}
	check(t, c)
}

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
