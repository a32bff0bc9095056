// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"hash/maphash"
	"math"
	"sync/atomic"
	"time"
)

// ownerSlots is the size of the owner table. Owners that share a slot invalidate each other's answers,
// which costs an upstream query.
const ownerSlots = 4096

// propagationDelay is how long after a change upstream may still answer from before it, because its
// own watch can lag behind ours.
const propagationDelay = time.Second

// queryAgeUnit is the precision of an entry's query age, rounded up.
const queryAgeUnit = 100 * time.Millisecond

// owners holds the time of each owner's last change, in ns since the epoch, by the hash of its name.
// Readers take no lock.
type owners [ownerSlots]atomic.Int64

// ownersLen is the size of the table in bytes. It counts against the budget.
const ownersLen = 8 * ownerSlots

func (o *owners) init() {
	for i := range o {
		o[i].Store(math.MinInt64)
	}
}

// outdated reports whether an answer queried at asked may predate the last change of the owner.
func (o *owners) outdated(tag uint16, asked int64) bool {
	return asked < o[tag-1].Load()+int64(propagationDelay)
}

// tag returns the owner's slot plus one.
func (sh *shared) tag(owner []byte) uint16 {
	return uint16(maphash.Bytes(sh.seed, owner)%ownerSlots) + 1
}

// OwnerChanged invalidates all answers of owner. It also keeps Put from storing answers that were
// queried before now, or within propagationDelay after it.
func (c *Cache) OwnerChanged(owner []byte, now time.Time) {
	moment, at := &c.owners[c.tag(owner)-1], c.nanos(now)
	for {
		last := moment.Load()
		if at <= last || moment.CompareAndSwap(last, at) {
			return
		}
	}
}

// ChangedSince reports whether owner changed after since.
func (c *Cache) ChangedSince(owner []byte, since time.Time) bool {
	return c.owners[c.tag(owner)-1].Load() > c.nanos(since)
}

// An origin says whom an entry belongs to and when it was queried.
type origin struct {
	tag      uint16 // of the owner; 0: none
	queryAge uint8  // time from the upstream query to storing, in queryAgeUnit
}

// origin returns the origin of an entry for a, stored at the time at. It returns false if the answer
// may predate its owner's last change.
func (sh *shared) origin(a *Answer, at int64) (origin, bool) {
	if a.Owner == nil {
		return origin{}, true
	}
	b := origin{tag: sh.tag(a.Owner)}
	if !a.QueriedAt.IsZero() {
		took := (at - sh.nanos(a.QueriedAt) + int64(queryAgeUnit) - 1) / int64(queryAgeUnit)
		if took > math.MaxUint8 {
			return b, false // longer than any upstream query takes
		}
		b.queryAge = uint8(max(0, took))
	}
	return b, !sh.owners.outdated(b.tag, at-int64(b.queryAge)*int64(queryAgeUnit))
}
