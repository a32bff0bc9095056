// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"encoding/binary"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A pinned answer is one to a question for an address of a name that the configuration lists in cache.keep. It is not evicted, it is
// the first in a dump, and it may be served stale for a window of its own. It expires as any other.
//
// A kept answer (see kept.go) is something else: a server that reports its changes vouches for it, so it does not expire.

// MaxPinnedNames bounds the names of a call of [Cache.SetPinned].
const MaxPinnedNames = 64

// maxPinnedSize bounds an entry that is pinned, in bytes. All together, two for each name, take at most half of [MinSize], even if they
// are in one shard. So there is always another entry to evict.
const maxPinnedSize = MinSize / 2 / MaxPinnedNames / 2

// pins are the names whose answers are pinned, in canonical wire form.
type pins map[string]struct{}

// SetPinned pins the answers, present and future ones, to queries for A and AAAA records of names, which are in canonical wire form,
// and releases all others. Queries have neither DO nor CD set. A pinned answer may be served stale for window after it has expired,
// MaxStaleWindow at most, if that is more than [ServeStale] allows. A denial of a name, and an answer of more than 4 KiB in the cache,
// is not pinned.
func (c *Cache) SetPinned(names [][]byte, window time.Duration) {
	c.pinnedWindow.Store(int64(min(MaxStaleWindow, max(0, window))))
	var next *pins
	if len(names) > 0 {
		next = &pins{}
	}
	for _, name := range names[:min(len(names), MaxPinnedNames)] {
		(*next)[string(name)] = struct{}{}
	}
	before := c.pinned.Swap(next)
	for _, set := range []*pins{before, next} {
		if set == nil {
			continue
		}
		for name := range *set {
			k := c.denialKey([]byte(name), []byte{0})
			s := c.lockShard(k.shardBits)
			for _, rrtype := range [...]uint16{wire.TypeA, wire.TypeAAAA} {
				if e, _, ok := s.find(&k, rrtype); ok {
					s.pin(e)
				}
			}
			s.mu.Unlock()
		}
	}
}

// pin sets or clears the flag of e.
func (s *shard) pin(e entry) {
	e[offFlags] &^= flagPinned
	names := s.pinned.Load()
	if names == nil {
		return
	}
	rrtype, tail := e.rrtype(), e.tail()
	switch {
	case rrtype != wire.TypeA && rrtype != wire.TypeAAAA, len(tail) != 1 || tail[0] != 0, e.size() > maxPinnedSize,
		e[offFlags]&flagFailure != 0, e.msg()[3]&0x0f != wire.RcodeSuccess:
		return
	}
	if _, ok := (*names)[string(e.name())]; ok {
		e[offFlags] |= flagPinned
	}
}

// isPinned reports whether the answer is pinned.
func isPinned(e entry) bool { return e[offFlags]&flagPinned != 0 }

// staleFor returns how long e may be served after it has expired, in ns.
func (s *shard) staleFor(e entry) int64 {
	window := s.staleWindow.Load()
	if isPinned(e) {
		window = max(window, s.pinnedWindow.Load())
	}
	return window
}

// Supersede removes the answers to the question of key, because upstream has given one that must not be stored. A pinned one expires
// instead: it is served once upstream fails.
func (c *Cache) Supersede(key []byte, now time.Time) {
	if !c.expirePinned(key, now) {
		c.Remove(key)
	}
}

func (c *Cache) expirePinned(key []byte, now time.Time) bool {
	k, at := c.key(key), c.nanos(now)
	s := c.lockShard(k.shardBits)
	defer s.mu.Unlock()
	e, _, ok := s.find(&k, k.rrtype)
	if !ok || !isPinned(e) {
		return false
	}
	c.notify(k.raw[:k.nameLen])
	defer c.notify(k.raw[:k.nameLen])
	s.expire(e, at)
	return true
}

// expire ends the lifetime of e at the time at, if it has not ended.
func (s *shard) expire(e entry, at int64) {
	s.unkeep(e)
	if at < e.end() {
		binary.LittleEndian.PutUint32(e[offLifetime:], uint32(max(0, at-e.stored())/int64(time.Second)))
	}
	e.setBackoff(0)
}
