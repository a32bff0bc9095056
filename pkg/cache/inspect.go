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
	walkStep    = 512     // index positions visited under one lock: about 50 µs
	maxInspect  = 256     // entries of one name; client subnets may create many
	maxMessages = 1 << 20 // bytes of their messages
)

// A State is the state of an entry, as operators see it.
type State uint8

// The states. Unusable entries stay until they are overwritten.
const (
	StateFresh    State = iota // not expired
	StateDue                   // fresh, and its prefetch was requested
	StateStale                 // expired; used if upstream does not answer
	StateBackoff               // stale and used at once: a refresh failed or timed out recently
	StateFailed                // a cached failure
	StateExpired               // unusable: expired for too long
	StateOutdated              // unusable: older than its owner's last change
)

// String returns the word for the state in status pages and explanations.
func (s State) String() string {
	return [...]string{"fresh", "due", "stale", "resting", "failed", "expired", "outdated"}[s]
}

// Usable reports whether an entry in this state may be returned to clients.
func (s State) Usable() bool { return s < StateExpired }

// An Entry describes what is stored under one key, at one time.
type Entry struct {
	Name   []byte // canonical wire form
	Type   uint16 // 0: all types, because the name does not exist
	DO, CD bool   // flags of the questions it answers
	Subnet []byte // RFC 7871 option data; nil: none
	State  State
	Rcode  int
	Age    time.Duration // since it was stored
	Left   time.Duration // until expiry; negative: since expiry
	Hits   int           // since it was stored, 65535 at most
	Size   int           // bytes in its log
	Msg    []byte        // whole message with current TTLs; nil from Peek and Top
}

// A Rank is the sort order of Top.
type Rank uint8

// The ranks.
const (
	ByHits Rank = iota
	BySize
)

// value returns the sort value of an entry.
func (r Rank) value(e entry) int {
	if r == BySize {
		return e.size()
	}
	return int(e.hits())
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
			seen.Msg = e.currentAnswer(at)
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

// Top returns the n highest-ranking entries in descending order. Entries stored or evicted during the
// call may be missing. It counts no hit.
func (c *Cache) Top(n int, by Rank, now time.Time) []Entry {
	at := c.nanos(now)
	for {
		c = c.current()
		t := topHeap{limit: n, by: by}
		for i := range c.shards {
			c.walk(uint64(i), func(s *shard, e entry) { t.add(s, e, at) })
		}
		if c.current() == c {
			return t.sorted()
		}
	}
}

// walk calls f for the entries of the shard of a name's hash bits, some at a time under its lock. It
// visits every entry that stays, occasionally twice.
func (c *Cache) walk(low uint64, f func(s *shard, e entry)) {
	var in *shard
	for pos, done := 0, false; !done; {
		s := c.lockShard(low)
		if s != in { // the entries moved: start over
			in, pos = s, 0
		}
		pos, done = s.walk(pos, f)
		s.mu.Unlock()
	}
}

// walk calls f for the entries of some index positions from pos on, and returns the position to
// continue from. It stops only at a free position: no removal moves an entry across one.
func (s *shard) walk(pos int, f func(s *shard, e entry)) (next int, done bool) {
	for least := pos + walkStep; pos < len(s.index.slots); pos++ {
		slot := s.index.slots[pos]
		if slot != 0 {
			f(s, s.entryAt(int(slot&0xffffffff-1)<<3))
		} else if pos >= least {
			return pos, false
		}
	}
	return pos, true
}

// publicEntry describes e, without its message.
func (s *shard) publicEntry(e entry, at int64) Entry {
	v := Entry{
		Name: bytes.Clone(e.name()), Type: e.rrtype(), State: s.stateOf(e, at), Rcode: int(e.msg()[3] & 0x0f),
		Age: time.Duration(max(0, at-e.stored())), Left: time.Duration(e.end() - at), Hits: int(e.hits()), Size: e.size(),
	}
	if tail := e.tail(); len(tail) > 0 {
		v.DO, v.CD = wire.KeyFlags(tail[0])
		if len(tail) > 1 {
			v.Subnet = bytes.Clone(tail[1:])
		}
	}
	return v
}

// stateOf returns the state of e for operators.
func (s *shard) stateOf(e entry, at int64) State {
	switch s.state(e, at) {
	case Fresh, PrefetchDue:
		if e[offFlags]&flagPrefetched != 0 {
			return StateDue
		}
		return StateFresh
	case Failed:
		return StateFailed
	case Stale:
		return StateStale
	case StaleBackoff:
		return StateBackoff
	case Absent:
	}
	if s.outdated(e) {
		return StateOutdated
	}
	return StateExpired
}

// currentAnswer returns the answer as the next client would get it, without rotating its addresses.
func (e entry) currentAnswer(at int64) []byte {
	turn := binary.LittleEndian.Uint16(e[offRotation:])
	msg := e.appendAnswer(nil, at)
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
		flag(e.DO)-flag(o.DO), flag(e.CD)-flag(o.CD), bytes.Compare(e.Subnet, o.Subnet),
	)
}

// A topHeap collects the highest-ranking entries: a heap with the lowest of them first.
type topHeap struct {
	limit int
	by    Rank
	heap  []ranked
}

// A ranked is an entry and its sort value.
type ranked struct {
	Entry

	rank int
	hash uint64
}

// below reports whether heap element i ranks lower than element j.
func (t *topHeap) below(i, j int) bool { return t.heap[i].rank < t.heap[j].rank }

// add adds e if it ranks high enough.
func (t *topHeap) add(s *shard, e entry, at int64) {
	rank := t.by.value(e)
	if len(t.heap) == t.limit && (t.limit == 0 || rank <= t.heap[0].rank) {
		return
	}
	r := ranked{Entry: s.publicEntry(e, at), rank: rank, hash: e.hash()}
	for i := range t.heap {
		if t.heap[i].hash == r.hash && t.heap[i].compare(&r.Entry) == 0 {
			return
		}
	}
	if len(t.heap) < t.limit {
		t.heap = append(t.heap, r)
		t.siftUp(len(t.heap) - 1)
		return
	}
	t.heap[0] = r
	t.siftDown(0)
}

// siftUp restores the heap order upwards from element i.
func (t *topHeap) siftUp(i int) {
	for ; i > 0 && t.below(i, (i-1)/2); i = (i - 1) / 2 {
		t.swap(i, (i-1)/2)
	}
}

// siftDown restores the heap order downwards from element i.
func (t *topHeap) siftDown(i int) {
	for {
		least := i
		for _, child := range [...]int{2*i + 1, 2*i + 2} {
			if child < len(t.heap) && t.below(child, least) {
				least = child
			}
		}
		if least == i {
			return
		}
		t.swap(i, least)
		i = least
	}
}

func (t *topHeap) swap(i, j int) { t.heap[i], t.heap[j] = t.heap[j], t.heap[i] }

// sorted returns the entries in descending order, those of equal rank by key.
func (t *topHeap) sorted() []Entry {
	slices.SortFunc(t.heap, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(b.rank, a.rank), a.compare(&b.Entry))
	})
	list := make([]Entry, len(t.heap))
	for i := range t.heap {
		list[i] = t.heap[i].Entry
	}
	return list
}
