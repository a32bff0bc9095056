// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"hash/maphash"
	"math"
	"sync/atomic"
	"time"
)

// ownerPlaces is how many moments there are. Owners that share one take more answers
// away than they must, which costs a query.
const ownerPlaces = 4096

// settle is how long after an event upstream may still answer as before it: it has its
// own watch, and may hear of the event later.
const settle = time.Second

// askedUnit is the precision of an entry's age at birth, rounded up.
const askedUnit = 100 * time.Millisecond

// An owners table has the moment of each owner's last event, by the hash of its name, in
// ns since the epoch. It is read without a lock.
type owners [ownerPlaces]atomic.Int64

// ownersLen is what the table takes of the budget, in bytes.
const ownersLen = 8 * ownerPlaces

func (o *owners) init() {
	for i := range o {
		o[i].Store(math.MinInt64)
	}
}

// outdated tells whether an answer that upstream was asked for at asked is older than
// the last event of the owner with this tag, or too young to know of it for sure.
func (o *owners) outdated(tag uint16, asked int64) bool {
	return asked < o[tag-1].Load()+int64(settle)
}

// tag is an owner's place in the table, from 1.
func (sh *shared) tag(owner []byte) uint16 {
	return uint16(maphash.Bytes(sh.seed, owner)%ownerPlaces) + 1
}

// Changed says that owner changed: no answer that has it as its owner is given any
// more, and none is kept for which upstream was asked before, or within the second that
// upstream may take to hear of it.
func (c *Cache) Changed(owner []byte, now time.Time) {
	moment, at := &c.owners[c.tag(owner)-1], c.at(now)
	for {
		last := moment.Load()
		if at <= last || moment.CompareAndSwap(last, at) {
			return
		}
	}
}

// Outdated tells whether owner changed after since.
func (c *Cache) Outdated(owner []byte, since time.Time) bool {
	return c.owners[c.tag(owner)-1].Load() > c.at(since)
}

// A birth is what an entry has of its owner.
type birth struct {
	tag   uint16 // 0: none
	tenth uint8  // how long before it was stored upstream was asked, in askedUnit
}

// birth is what an entry for a, stored at the moment at, has of its owner; false if it
// may not be kept.
func (sh *shared) birth(a *Answer, at int64) (birth, bool) {
	if a.Owner == nil {
		return birth{}, true
	}
	b := birth{tag: sh.tag(a.Owner)}
	if !a.Asked.IsZero() {
		took := (at - sh.at(a.Asked) + int64(askedUnit) - 1) / int64(askedUnit)
		if took > math.MaxUint8 {
			return b, false // no flight takes as long
		}
		b.tenth = uint8(max(0, took))
	}
	return b, !sh.owners.outdated(b.tag, at-int64(b.tenth)*int64(askedUnit))
}
