// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestStaleQueue adds and removes queries of many times in the stale queue, and compares with a
// plain list.
func TestStaleQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &Resolver{now: time.Now, epoch: time.Now()}
		r.queries.init()
		random := rand.New(rand.NewPCG(7, 8))
		var model []*inFlight
		for n := range 5000 {
			now := time.Now()
			switch {
			case random.IntN(2) == 0:
				f := &inFlight{r: r, key: []byte{byte(n), byte(n >> 8)}, plan: &Plan{StaleAfter: time.Duration(1+random.IntN(50)) * time.Hour}, begunAt: now.Sub(r.epoch)}
				f.hash = uint64(n % 5)
				r.queries.mu.Lock()
				r.queries.addLocked(f)
				f.holdStaleLocked(now)
				f.holdStaleLocked(now) // the second who finds it late
				r.queries.mu.Unlock()
				at := len(model)
				for at > 0 && model[at-1].staleAt() > f.staleAt() {
					at--
				}
				model = slices.Insert(model, at, f)
			case len(model) > 0 && random.IntN(2) == 0:
				at := random.IntN(len(model))
				r.queries.remove(model[at])
				model = slices.Delete(model, at, at+1)
			default:
				r.queries.mu.Lock()
				if f := r.queries.stale.nextStale; f != &r.queries.stale {
					r.queries.removeStaleLocked(f)
					if f != model[0] {
						t.Errorf("the first is due at %s, want %s", f.staleAt(), model[0].staleAt())
					}
					model = model[1:]
				}
				r.queries.mu.Unlock()
			}
			var got []*inFlight
			for f := r.queries.stale.nextStale; f != &r.queries.stale; f = f.nextStale {
				if f.nextStale.prevStale != f {
					t.Fatal("the next does not point back")
				}
				got = append(got, f)
			}
			if !slices.Equal(got, model) {
				t.Fatalf("step %d: %d are listed, want %d, or in another order", n, len(got), len(model))
			}
		}
		r.queries.staleTimer.Stop()
	})
}
