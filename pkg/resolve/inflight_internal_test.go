// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// TestQueryTableSharedHash adds, finds and removes queries whose keys share a few hashes, and
// compares with a map.
func TestQueryTableSharedHash(t *testing.T) {
	t.Parallel()
	var fs queryTable
	fs.init()
	addr, plan := clientKey{addr: netip.MustParseAddr("192.0.2.1")}, &Plan{Inflight: 1 << 20, Waiting: 1 << 20}
	model := map[string]*inFlight{}
	random := rand.New(rand.NewPCG(5, 6))
	for range 20_000 {
		n := random.IntN(40)
		key := fmt.Sprint("key", n)
		hash := uint64(n % 7)
		got := fs.findLocked(hash, []byte(key))
		if got != model[key] {
			t.Fatalf("found %p under %s, want %p", got, key, model[key])
		}
		if got != nil {
			if random.IntN(2) == 0 {
				c, _ := fs.admitLocked(addr, false, plan)
				got.joined = append(got.joined, waiter{client: c})
				continue
			}
			delete(model, key)
			if joined := len(got.joined); len(fs.remove(got)) != joined {
				t.Fatalf("%s: not all %d who joined were given", key, joined)
			}
		} else {
			f := &inFlight{key: []byte(key), hash: hash, refresh: random.IntN(4) == 0}
			if !f.refresh {
				f.client, _ = fs.admitLocked(addr, true, plan)
				f.first.client = f.client
			}
			model[key] = f
			fs.addLocked(f)
		}
		waiting, refreshes := 0, 0
		for _, f := range model {
			waiting += len(f.joined)
			if f.refresh {
				refreshes++
			} else {
				waiting++
			}
		}
		if fs.count != len(model) || fs.waiting != waiting || fs.refreshes != refreshes {
			t.Fatalf("%d in-flight queries, %d waiting, %d refreshes, want %d, %d, %d", fs.count, fs.waiting, fs.refreshes, len(model), waiting, refreshes)
		}
	}
	for _, f := range model {
		fs.remove(f)
	}
	if len(fs.byHash) != 0 || fs.count != 0 || fs.waiting != 0 {
		t.Errorf("%d hashes, %d in-flight queries, %d waiting are left", len(fs.byHash), fs.count, fs.waiting)
	}
}
