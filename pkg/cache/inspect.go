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

// Bounds on what a look inside holds up and takes.
const (
	walkStep    = 512     // places of an index that are looked at under one lock: some 50 µs
	maxInspect  = 256     // entries of one name: more than clients' subnets make there are not
	maxMessages = 1 << 20 // bytes of their messages
)

// A State says what an entry is good for, in a word for operators.
type State uint8

// The states. What is of no use waits for its turn to be overwritten.
const (
	StateFresh    State = iota // an answer within its time
	StateDue                   // a fresh answer whose refresh was asked for
	StateStale                 // an answer past its time that is given if nothing better comes
	StateResting               // a stale answer that is given at once: its refresh failed or was late a moment ago
	StateFailed                // a remembered failure
	StateExpired               // of no use: past its time for too long
	StateOutdated              // of no use: older than the last event of its owner
)

// String is the state's word.
func (s State) String() string {
	return [...]string{"fresh", "due", "stale", "resting", "failed", "expired", "outdated"}[s]
}

// Usable tells whether an entry of the state may be a reply.
func (s State) Usable() bool { return s < StateExpired }

// An Entry is what is held under one key, as it was at a moment.
type Entry struct {
	Name   []byte // canonical wire form
	Type   uint16 // 0: every type, because the name does not exist
	DO, CD bool   // flags of the questions that it answers
	Subnet []byte // RFC 7871 option data; nil: none
	State  State
	Rcode  int
	Age    time.Duration // since it was stored
	Left   time.Duration // until its time is over; negative: since it was
	Hits   int           // since it was stored; 65535: that many or more
	Size   int           // bytes of its log
	Msg    []byte        // whole message with the TTLs of the moment; nil from Peek and Top
}

// A Rank is what Top sorts by.
type Rank uint8

// The ranks.
const (
	ByHits Rank = iota
	BySize
)

// of is how high an entry ranks.
func (r Rank) of(e entry) int {
	if r == BySize {
		return e.size()
	}
	return int(e.hits())
}

// Inspect gives what is held of a name, which is canonical and in wire form, by type
// and flags: up to 256 entries, and up to 1 MiB of messages. It counts no hit.
func (c *Cache) Inspect(name []byte, now time.Time) []Entry {
	var list []Entry
	at, room := c.at(now), maxMessages
	c.walk(c.denialKey(name, nil).low, func(s *shard, e entry) {
		if len(list) == maxInspect || !bytes.Equal(e.name(), name) {
			return
		}
		seen := s.view(e, at)
		if slices.ContainsFunc(list, func(other Entry) bool { return seen.compare(&other) == 0 }) {
			return
		}
		if room -= len(e.msg()); room >= 0 {
			seen.Msg = e.counted(at)
		}
		list = append(list, seen)
	})
	slices.SortFunc(list, func(a, b Entry) int { return a.compare(&b) })
	return list
}

// Peek gives what Lookup would find, and perhaps not use, for the question of key. It
// counts no hit.
func (c *Cache) Peek(key []byte, now time.Time) (Entry, bool) {
	k, at := c.key(key), c.at(now)
	s := c.lock(k.low)
	defer s.mu.Unlock()
	e, _ := s.choose(&k, at)
	if e == nil {
		return Entry{}, false
	}
	return s.view(e, at), true
}

// Top gives the n entries that rank highest, the highest first. What comes and goes
// meanwhile may be missing. It counts no hit.
func (c *Cache) Top(n int, by Rank, now time.Time) []Entry {
	at := c.at(now)
	for {
		c = c.newest()
		t := top{limit: n, by: by}
		for i := range c.shards {
			c.walk(uint64(i), func(s *shard, e entry) { t.take(s, e, at) })
		}
		if c.newest() == c {
			return t.sorted()
		}
	}
}

// walk calls f for the entries of the shard with the low bits of a name's hash, some at
// a time under its lock. What stays is met, now and then twice.
func (c *Cache) walk(low uint64, f func(s *shard, e entry)) {
	var in *shard
	for pos, done := 0, false; !done; {
		s := c.lock(low)
		if s != in { // the entries have moved, and are all ahead again
			in, pos = s, 0
		}
		pos, done = s.walk(pos, f)
		s.mu.Unlock()
	}
}

// walk calls f for the entries of some places of the index from pos on, and gives the
// place to go on from. It stops at a free place only: what is behind one belongs there,
// and gets in front of it by no removal.
func (s *shard) walk(pos int, f func(s *shard, e entry)) (next int, done bool) {
	for least := pos + walkStep; pos < len(s.index.slots); pos++ {
		slot := s.index.slots[pos]
		if slot != 0 {
			f(s, s.at(int(slot&0xffffffff-1)<<3))
		} else if pos >= least {
			return pos, false
		}
	}
	return pos, true
}

// view is e in public, without its message.
func (s *shard) view(e entry, at int64) Entry {
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

// stateOf is what e is good for, in an operator's words.
func (s *shard) stateOf(e entry, at int64) State {
	switch s.state(e, at) {
	case Fresh, Due:
		if e[offFlags]&flagDue != 0 {
			return StateDue
		}
		return StateFresh
	case Failed:
		return StateFailed
	case Late:
		return StateStale
	case Resting:
		return StateResting
	case Absent:
	}
	if s.outdated(e) {
		return StateOutdated
	}
	return StateExpired
}

// counted is the answer at the moment at, as the next one who asks would get it: he
// still does.
func (e entry) counted(at int64) []byte {
	turn := binary.LittleEndian.Uint16(e[offTurn:])
	msg := e.appendAnswer(nil, at)
	binary.LittleEndian.PutUint16(e[offTurn:], turn)
	return msg
}

// compare orders entries by what tells their questions apart. It is 0 for one key.
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

// A top collects the entries that rank highest: a heap, the lowest of them first.
type top struct {
	limit int
	by    Rank
	heap  []ranked
}

// A ranked is an entry and how high it ranks.
type ranked struct {
	Entry

	rank int
	hash uint64
}

// below tells whether heap place i ranks lower than place j.
func (t *top) below(i, j int) bool { return t.heap[i].rank < t.heap[j].rank }

// take takes e in if it ranks high enough.
func (t *top) take(s *shard, e entry, at int64) {
	rank := t.by.of(e)
	if len(t.heap) == t.limit && (t.limit == 0 || rank <= t.heap[0].rank) {
		return
	}
	r := ranked{Entry: s.view(e, at), rank: rank, hash: e.hash()}
	for i := range t.heap {
		if t.heap[i].hash == r.hash && t.heap[i].compare(&r.Entry) == 0 {
			return
		}
	}
	if len(t.heap) < t.limit {
		t.heap = append(t.heap, r)
		t.rise(len(t.heap) - 1)
		return
	}
	t.heap[0] = r
	t.sink(0)
}

// rise moves place i of the heap up to where it belongs.
func (t *top) rise(i int) {
	for ; i > 0 && t.below(i, (i-1)/2); i = (i - 1) / 2 {
		t.swap(i, (i-1)/2)
	}
}

// sink moves place i of the heap down to where it belongs.
func (t *top) sink(i int) {
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

func (t *top) swap(i, j int) { t.heap[i], t.heap[j] = t.heap[j], t.heap[i] }

// sorted gives the entries, the highest first, those of one rank by name.
func (t *top) sorted() []Entry {
	slices.SortFunc(t.heap, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(b.rank, a.rank), a.compare(&b.Entry))
	})
	list := make([]Entry, len(t.heap))
	for i := range t.heap {
		list[i] = t.heap[i].Entry
	}
	return list
}
