// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestLates lists flights of many moments and takes them out, by their moment and by
// landing before it, and compares with a plain list.
func TestLates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &Resolver{now: time.Now, epoch: time.Now()}
		r.flights.init()
		random := rand.New(rand.NewPCG(7, 8))
		var model []*flight
		for n := range 5000 {
			now := time.Now()
			switch {
			case random.IntN(2) == 0:
				f := &flight{r: r, key: []byte{byte(n), byte(n >> 8)}, plan: &Plan{StaleAfter: time.Duration(1+random.IntN(50)) * time.Hour}, began: r.age(now)}
				f.hash = uint64(n % 5)
				r.flights.mu.Lock()
				r.flights.addLocked(f)
				r.watchLocked(f, now)
				r.watchLocked(f, now) // the second who finds it late
				r.flights.mu.Unlock()
				at := len(model)
				for at > 0 && model[at-1].overdueAt() > f.overdueAt() {
					at--
				}
				model = slices.Insert(model, at, f)
			case len(model) > 0 && random.IntN(2) == 0:
				at := random.IntN(len(model))
				r.flights.take(model[at])
				model = slices.Delete(model, at, at+1)
			default:
				r.flights.mu.Lock()
				if f := r.flights.lates.first; f != nil {
					r.flights.lates.unlistLocked(f)
					if f != model[0] {
						t.Errorf("the first is due at %s, want %s", f.overdueAt(), model[0].overdueAt())
					}
					model = model[1:]
				}
				r.flights.mu.Unlock()
			}
			var got []*flight
			for f := r.flights.lates.first; f != nil; f = f.behind {
				if f.behind == nil && r.flights.lates.last != f {
					t.Fatal("the last is not the last")
				}
				got = append(got, f)
			}
			if !slices.Equal(got, model) {
				t.Fatalf("step %d: %d are listed, want %d, or in another order", n, len(got), len(model))
			}
		}
		r.flights.lates.timer.Stop()
	})
}
