// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Bounds on the lock time and size of an inspection.
const (
	walkStep    = 256     // index positions visited under one lock: about 20 µs
	maxInspect  = 256     // entries of one name; client subnets may create many
	maxMessages = 1 << 20 // bytes of their messages
)

// An Entry describes what is stored under one key, at one time.
type Entry struct {
	Name    []byte    // canonical wire form
	Type    uint16    // 0: all types, because the name does not exist
	DO, CD  bool      // flags of the questions it answers
	Outside bool      // it is of the outside view, see resolve.Resolver.NewOutsideWorker
	Subnet  []byte    // RFC 7871 option data; nil: none
	Kept    bool      // the answer is kept, see Answer.Kept
	Vouched bool      // Kept, and a call of Vouch keeps it now
	Pinned  bool      // see Cache.SetPinned
	State   Freshness // PrefetchDue: Lookup has returned that for it; never Absent
	Rcode   int
	Age     time.Duration // since it was stored
	Left    time.Duration // until expiry, for a kept answer without further calls of Vouch; negative: since expiry
	Hits    int           // since it was stored, 65535 at most
	Size    int           // bytes in its log
	Msg     []byte        // whole message with current TTLs; nil from Peek and Top
}

// Inspect returns the entries of name, which is canonical and in wire form, sorted by type and flags:
// at most 256 entries with at most 1 MiB of messages. It counts no hit.
func (c *Cache) Inspect(name []byte, now time.Time) []Entry {
	var list []Entry
	at, room := c.nanos(now), maxMessages
	c.walk(c.denialKey(name, nil).shardBits, func(s *shard, e entry) {
		if len(list) == maxInspect || !bytes.Equal(e.name(), name) {
			return
		}
		seen := s.publicEntry(e, at)
		if slices.ContainsFunc(list, func(other Entry) bool { return seen.compare(&other) == 0 }) {
			return
		}
		if room -= len(e.msg()); room >= 0 {
			seen.Msg = e.currentAnswer(s.age(e, at))
		}
		list = append(list, seen)
	})
	slices.SortFunc(list, func(a, b Entry) int { return a.compare(&b) })
	return list
}

// Peek returns the entry that Lookup would select for key, even if it is not usable. It counts no hit.
func (c *Cache) Peek(key []byte, now time.Time) (Entry, bool) {
	k, at := c.key(key), c.nanos(now)
	s := c.lockShard(k.shardBits)
	defer s.mu.Unlock()
	e, _ := s.selectEntry(&k, at)
	if e == nil {
		return Entry{}, false
	}
	return s.publicEntry(e, at), true
}

// PeekNXDomainCut returns the entry that LookupNXDomainCut would use to deny the names below name, which is canonical and
// in wire form. flags are the key flags of the question. It counts no hit.
func (c *Cache) PeekNXDomainCut(name []byte, flags byte, now time.Time) (Entry, bool) {
	k, at := c.denialKey(name, []byte{flags}), c.nanos(now)
	s := c.lockShard(k.shardBits)
	defer s.mu.Unlock()
	if e := s.denialOfName(&k, at); e != nil {
		return s.publicEntry(e, at), true
	}
	return Entry{}, false
}

// Top returns the n entries with the most hits, or with bySize the most bytes, in descending order,
// equal ones by key. Entries stored or evicted during the call may be missing. It counts no hit.
func (c *Cache) Top(n int, bySize bool, now time.Time) []Entry {
	at := c.nanos(now)
	rank := func(hits, size int) int {
		if bySize {
			return size
		}
		return hits
	}
	for {
		c = c.current()
		if list := c.top(n, rank, at); c.current() == c {
			return list
		}
	}
}

// top does the work of Top. Its result is incomplete if c is resized meanwhile.
func (c *Cache) top(n int, rank func(hits, size int) int, at int64) []Entry {
	list := []Entry{}
	collect := func(s *shard, e entry) {
		if len(list) == n && (n == 0 || rank(int(e.hits()), e.size()) <= rank(list[n-1].Hits, list[n-1].Size)) {
			return
		}
		seen := s.publicEntry(e, at)
		if slices.ContainsFunc(list, func(other Entry) bool { return seen.compare(&other) == 0 }) {
			return
		}
		place, _ := slices.BinarySearchFunc(list, &seen, func(a Entry, b *Entry) int {
			return cmp.Or(cmp.Compare(rank(b.Hits, b.Size), rank(a.Hits, a.Size)), a.compare(b))
		})
		list = slices.Insert(list[:min(len(list), n-1)], place, seen)
	}
	for i := range c.shards {
		c.walk(uint64(i), collect)
	}
	return list
}

// walk calls f for the entries of the shard of a name with the hash bits low, some at a time under its
// lock. It visits every entry that stays in the cache, occasionally twice.
func (c *Cache) walk(low uint64, f func(s *shard, e entry)) {
	var in *shard
	for pos := 0; pos >= 0; {
		s := c.lockShard(low)
		if s != in { // the first step, or Resize moved the entries: begin at the first position
			in, pos = s, 0
		}
		pos = s.walk(pos, func(_ int, e entry) bool {
			f(s, e)
			return true
		})
		s.mu.Unlock()
	}
}

// walk calls f for the entries of some index positions from pos on, until f returns false. It returns
// the position to continue from, or -1 at the end. Unless f returns false it stops only at a free
// position: no removal moves an entry across one.
func (s *shard) walk(pos int, f func(off int, e entry) bool) (next int) {
	for least := pos + walkStep; pos < len(s.index.slots); pos++ { // a shard that Resize emptied has no slots
		slot := s.index.slots[pos]
		if slot == 0 {
			if pos >= least {
				return pos
			}
			continue
		}
		if off := int(slot&0xffffffff-1) << 3; !f(off, s.entryAt(off)) {
			return pos + 1
		}
	}
	return -1
}

// publicEntry describes e, without its message.
func (s *shard) publicEntry(e entry, at int64) Entry {
	v := Entry{
		Name: bytes.Clone(e.name()), Type: e.rrtype(), State: s.stateOf(e, at), Rcode: int(e.msg()[3] & 0x0f),
		Pinned: isPinned(e), Kept: e.kept(), Vouched: e.kept() && at-s.vouchedAt(e) < int64(keptFor),
		Age: time.Duration(max(0, at-e.stored())), Left: time.Duration(s.end(e) - at), Hits: int(e.hits()), Size: e.size(),
	}
	if tail := e.tail(); len(tail) > 0 {
		v.DO, v.CD, v.Outside = wire.KeyFlags(tail[0])
		if len(tail) > 1 {
			v.Subnet = bytes.Clone(tail[1:])
		}
	}
	return v
}

// stateOf returns the state of e for operators: also PrefetchDue, and Expired or Outdated in place of Absent.
func (s *shard) stateOf(e entry, at int64) Freshness {
	switch state := s.state(e, at); {
	case state == Fresh && e[offFlags]&flagPrefetched != 0:
		return PrefetchDue
	case state != Absent:
		return state
	case s.outdated(e):
		return Outdated
	}
	return Expired
}

// currentAnswer returns the answer as the next client would get it at its age, without rotating its addresses.
func (e entry) currentAnswer(age int64) []byte {
	turn := binary.LittleEndian.Uint16(e[offRotation:])
	msg := e.appendAnswer(nil, age)
	binary.LittleEndian.PutUint16(e[offRotation:], turn)
	return msg
}

// compare orders entries by their key. It returns 0 for equal keys.
func (e *Entry) compare(o *Entry) int {
	flag := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	return cmp.Or(
		bytes.Compare(e.Name, o.Name), cmp.Compare(e.Type, o.Type),
		flag(e.DO)-flag(o.DO), flag(e.CD)-flag(o.CD), flag(e.Outside)-flag(o.Outside), bytes.Compare(e.Subnet, o.Subnet),
	)
}
