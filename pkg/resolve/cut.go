// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// cutFilterSlots is the number of slots in a cutFilter. While fewer names than that are denied, few cache misses look
// up a denial in vain.
const cutFilterSlots = 1 << 13

// A cutFilter avoids lookups of denials that are not cached. It holds, by hash of the name, the time until
// which the cache may have a denial of the name. Denials that were never added, such as those restored from
// a snapshot, are not used.
type cutFilter struct {
	seed   maphash.Seed
	latest atomic.Int64 // maximum of until, in ns since the resolver was made; 0: empty
	until  [cutFilterSlots]atomic.Int64
}

// mayHold returns false if the cache certainly has no denial of name that was added.
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

// raise sets moment to until, unless moment is that late already.
func raise(moment *atomic.Int64, until int64) {
	for {
		was := moment.Load()
		if was >= until || moment.CompareAndSwap(was, until) {
			return
		}
	}
}
