// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

// TestObserveSurroundsChanges copies the answer when the cache reports a change, as the kernel's table may: the last copy is of the
// new answer.
func TestObserveSurroundsChanges(t *testing.T) {
	t.Parallel()
	c, key := newCache(t, cache.Prefetch{}), keyOf("www.example.", wire.TypeTXT, 0)
	var seen []int
	c.Observe(func([]byte) {
		msg, found := c.Lookup(key, epoch, nil)
		if found != cache.Fresh {
			msg = nil
		}
		seen = append(seen, len(msg))
	})
	sizes := []int{0}
	for _, n := range []int{10, 20} {
		a := plain(key, time.Hour, n)
		c.Put(key, a, epoch)
		sizes = append(sizes, len(a.Msg))
	}
	c.Remove(key)
	want := []int{sizes[0], sizes[1], sizes[1], sizes[2], sizes[2], 0}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("sizes of the answer when it changes (-want +got):\n%s", diff)
	}
}
