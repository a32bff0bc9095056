// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// cutFilterSlots is the number of slots in a cutFilter. While fewer names are denied, few misses look up
// a denial in vain.
const cutFilterSlots = 1 << 13

// A cutFilter avoids lookups of denials that are not cached. It holds, by hash of the name, the time until
// which a denial of the name may be cached. Denials that were never added, such as those restored from a
// snapshot, are not used.
type cutFilter struct {
	seed   maphash.Seed
	latest atomic.Int64 // maximum of until, in ns since the resolver was made; 0: empty
	until  [cutFilterSlots]atomic.Int64
}

// mayHold reports whether the denial of name may be cached.
func (c *cutFilter) mayHold(name []byte, at time.Duration) bool {
	return c.slot(name).Load() > int64(at)
}

// add records that the denial of name is cached until the given time.
func (c *cutFilter) add(name []byte, until time.Duration) {
	raise(&c.latest, int64(until))
	raise(c.slot(name), int64(until))
}

func (c *cutFilter) slot(name []byte) *atomic.Int64 {
	return &c.until[maphash.Bytes(c.seed, name)%cutFilterSlots]
}

// raise sets a time to until if that is later.
func raise(moment *atomic.Int64, until int64) {
	for {
		was := moment.Load()
		if was >= until || moment.CompareAndSwap(was, until) {
			return
		}
	}
}
