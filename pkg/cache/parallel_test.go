// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"bytes"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
)

// TestParallel lets many goroutines at few keys while the cache is resized, read
// and reconfigured. An answer is always its key's, whole and not from the future.
func TestParallel(t *testing.T) {
	t.Parallel()
	const workers, rounds, names = 8, 3000, 24
	var current atomic.Pointer[cache.Cache]
	current.Store(newStale(t, hourly))
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			dst := make([]byte, 0, 4096)
			for i := range rounds {
				key := nth("n", (i*7+w)%names)
				now := after(time.Duration(i) * 10 * time.Millisecond)
				switch i % 16 {
				case 3:
					if i%160 == 3 {
						current.Load().OwnerChanged(key, now)
					}
				case 4:
					denial := answerTo(key, 5*time.Second, rr{rrtype: 6, ttl: 5, rdata: key})
					denial.AllTypes, denial.Owner, denial.QueriedAt = true, key, now
					current.Load().Put(key, denial, now)
				case 5:
					current.Load().DelayRefresh(key, now.Add(time.Second), now)
				case 6:
					var found bool
					if dst, found = current.Load().LookupStale(key, now, dst[:0]); found && !isAnswerTo(key, dst, cache.Stale) {
						t.Errorf("%q: %q", key, dst)
						return
					}
				case 7:
					if dst, found := current.Load().LookupNXDomainCut(append([]byte("\x01x"), key[:len(key)-3]...), 1, 0, now, dst[:0]); found &&
						!isAnswerTo(denialKeyOf(key), dst, cache.Failed) {
						t.Errorf("below %q: %q", key, dst)
						return
					}
				case 10:
					current.Load().Remove(key)
				case 11:
					if i%512 == 11 {
						current.Load().Flush(key[:len(key)-3], true)
						current.Load().Flush(key[:len(key)-3], false)
					}
				case 0, 8:
					a := answerTo(key, 5*time.Second, append(set(1, 2+i%3, 4), rr{rrtype: 16, ttl: 5, rdata: key})...)
					a.RotateCount = 2 + i%3
					current.Load().Put(key, a, now)
				case 1, 9:
					current.Load().PutFailure(key, answerTo(key, 0).Msg, time.Second, 5*time.Second, now)
				default:
					var found cache.Freshness
					dst, found = current.Load().Lookup(key, now, dst[:0])
					if !isAnswerTo(key, dst, found) {
						t.Errorf("%q: %d, %q", key, found, dst)
						return
					}
				}
			}
		})
	}
	group.Go(func() {
		for i := range 40 {
			c := current.Load()
			d, err := c.Resize(cache.MinSize<<(i%3), epoch)
			if err != nil {
				t.Error(err)
				return
			}
			current.Store(d)
			runtime.GC() // so that logs of unused caches are released
		}
	})
	group.Go(func() {
		for i := range 1000 {
			c := current.Load()
			c.SetPrefetch(cache.Prefetch{Hits: i % 4, Remaining: 0.25})
			if s := c.Stats(); s.Bytes+s.Fixed > s.Capacity || s.Entries > 2*names {
				t.Errorf("%+v", s)
				return
			}
			for _, e := range c.Top(5, false, epoch) {
				if len(c.Inspect(e.Name, epoch)) > 4 {
					t.Errorf("%q has many entries", e.Name)
					return
				}
			}
		}
	})
	group.Wait()
	check(t, current.Load())
}

// isAnswerTo reports whether msg is what TestParallel puts under key.
func isAnswerTo(key, msg []byte, found cache.Freshness) bool {
	if found == cache.Absent || found == cache.Stale && len(msg) == 0 {
		return len(msg) == 0
	}
	n := questionLen(key)
	if len(msg) < 12+n+2 || !bytes.Equal(msg[12:12+n], key[:n]) {
		return false
	}
	return found == cache.Failed || bytes.HasSuffix(msg, key)
}
