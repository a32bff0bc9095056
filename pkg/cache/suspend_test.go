// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
)

// TestSlept has the machine suspended while an answer is held: its TTL goes on, to its end and past it.
func TestSlept(t *testing.T) {
	t.Parallel()
	const s = time.Second
	c, key := newStale(t, hourly), keyOf("www.example.", 1)
	c.Put(key, plain(key, 10*s, 4), after(0))
	for _, step := range []struct {
		slept, at time.Duration
		want      cache.Freshness
	}{
		{0, s, cache.Fresh},
		{8 * s, s, cache.Fresh},
		{0, 2*s - 1, cache.Fresh},
		{0, 2 * s, cache.Stale},
		{59 * time.Minute, 3 * s, cache.Stale},
		{time.Minute, 4 * s, cache.Absent},
	} {
		if step.slept > 0 {
			c.AddSuspend(step.slept)
		}
		assert.Equal(t, fmt.Sprintf("slept %s more, %s later", step.slept, step.at), step.want, freshness(c, key, after(step.at)))
	}
}

// TestSleptOwners has an event, a suspend, and then an answer that upstream was asked for before the event: it is not
// kept. One asked for after it is.
func TestSleptOwners(t *testing.T) {
	t.Parallel()
	const s = time.Second
	c, key, owner := newStale(t, hourly), keyOf("www.example.", 1), []byte("owner")
	c.OwnerChanged(owner, after(10*s))
	c.AddSuspend(time.Hour)
	for asked, want := range map[time.Duration]bool{9 * s: true, 12 * s: false} {
		assert.Equal(t, fmt.Sprintf("asked at %s: outdated", asked), want, c.ChangedSince(owner, after(asked)))
	}
	a := plain(key, 10*s, 4)
	a.Owner, a.QueriedAt = owner, after(9*s)
	c.Put(key, a, after(11*s))
	assert.Same(t, "asked for before the event", cache.Absent, freshness(c, key, after(11*s)))
}
