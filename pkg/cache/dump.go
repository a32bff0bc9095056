// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"encoding/binary"
	"math/bits"
	"time"
)

// DumpVersion is the version of the records that Dump makes.
const DumpVersion = 1

// The octet of a record that says what its entry was like.
const (
	dumpFreq   = maxFreq // mask
	dumpProven = 1 << 2  // it was in the main log
	dumpAsked  = 1 << 3  // it was asked for past its time
)

const (
	dumpSlots = 256      // slots of an index that are looked at under one hold of the lock
	dumpBytes = 32 << 10 // of answers that are copied under one, or one answer
)

// Dump gives the answers that may still be given, fresh or late, as records for [Cache.Restore]: those that are asked
// for most, if they would be more than most octets, each counted with its length before it as encoding/binary's Uvarint.
// Remembered failures are left out. It gives how many there were, and ends with the first error of emit, which must not keep the record.
//
// A lookup waits for as long as it takes to look at some slots of an index and to copy 32 KiB, some 20 µs.
// So all records are not of one moment, and what is stored anew meanwhile may be missing.
func (c *Cache) Dump(most int64, now time.Time, emit func(record []byte) error) (n int, err error) {
	c = c.newest()
	d := dumper{at: c.at(now), room: most}
	d.weigh(c)
	err = c.turns(func(s *shard, pos int) (int, error) {
		pos = d.copySome(s, pos)
		for _, r := range d.records {
			if err := emit(d.octets[r.from:r.to]); err != nil {
				return pos, err
			}
			n++
		}
		return pos, nil
	})
	return n, err
}

// turns calls f for each shard in turn with a slot to go on from, until f has given -1 for all. Who waits for a shard
// gets it while f is at the others.
func (c *Cache) turns(f func(s *shard, pos int) (int, error)) error {
	next := make([]int, len(c.shards))
	for left := len(c.shards); left > 0; {
		for i, s := range c.shards {
			if next[i] < 0 {
				continue
			}
			var err error
			if next[i], err = f(s, next[i]); err != nil {
				return err
			}
			if next[i] < 0 {
				left--
			}
		}
	}
	return nil
}

// newest is the cache that c has become. It waits while c is being resized.
func (c *Cache) newest() *Cache {
	for {
		c.resizing.Lock()
		next := c.next
		c.resizing.Unlock()
		if next == nil {
			return c
		}
		c = next
	}
}

// ranks is how many ranks there are.
const ranks = worths * dumpHits

// dumpHits is how many classes of hits there are: by powers of two.
const dumpHits = 17

// A dumper makes records.
type dumper struct {
	at      int64
	room    int64 // octets that records may still take
	least   int   // the rank of which not all fit
	spare   int64 // octets for records of this rank
	octets  []byte
	records []span // in octets
}

type span struct{ from, to int }

// weigh finds out which ranks there is room for.
func (d *dumper) weigh(c *Cache) {
	var have [ranks]int64
	_ = c.turns(func(s *shard, pos int) (int, error) {
		return d.walk(s, pos, func(e entry, rank int, _ bool) bool {
			have[rank] += recordLen(e)
			return true
		}), nil
	})
	d.least, d.spare = ranks-1, d.room
	for d.least > 0 && have[d.least] <= d.spare {
		d.spare -= have[d.least]
		d.least--
	}
}

// copySome makes records of some entries from a slot on, and gives the slot to go on from, -1 at the end.
func (d *dumper) copySome(s *shard, pos int) int {
	d.octets, d.records = d.octets[:0], d.records[:0]
	return d.walk(s, pos, func(e entry, rank int, proven bool) bool {
		room := &d.room
		switch {
		case rank < d.least:
			return true
		case rank == d.least:
			room = &d.spare
		}
		from := len(d.octets)
		d.octets = e.appendRecord(d.octets, proven, d.at)
		took := framed(len(d.octets) - from)
		if took > *room || took > d.room {
			d.octets = d.octets[:from]
			return true
		}
		if d.room -= took; rank == d.least {
			d.spare -= took
		}
		d.records = append(d.records, span{from, len(d.octets)})
		return len(d.octets) < dumpBytes
	})
}

// walk calls f for the entries of use in some slots from pos on, until it returns false, and gives the slot to go on
// from, -1 at the end. An index never grows, and an entry leaves its slot only when another before it goes: one may be
// missed for that.
func (d *dumper) walk(s *shard, pos int, f func(e entry, rank int, proven bool) bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for end := pos + dumpSlots; pos < end; pos++ {
		if pos >= len(s.index.slots) { // the shard was emptied, or this is its end
			return -1
		}
		slot := s.index.slots[pos]
		if slot == 0 {
			continue
		}
		off := int(slot&0xffffffff-1) << 3
		e, proven := s.at(off), off >= s.main.base
		state := s.state(e, d.at)
		if state == Absent || state == Failed {
			continue
		}
		if !f(e, e.worth(state, proven)*dumpHits+bits.Len16(e.hits()), proven) {
			return pos + 1
		}
	}
	return pos
}

// recordLen is about what the entry's record takes.
func recordLen(e entry) int64 {
	const fixed = 4 + 2 + 1 + 3 // age, life and hits, as they mostly are, and three octets
	return framed(fixed + len(e.tail()) + len(e.msg()))
}

// framed is what a record of so many octets takes with its length.
func framed(octets int) int64 {
	var length [binary.MaxVarintLen64]byte
	return int64(octets + binary.PutUvarint(length[:], uint64(octets)))
}

// appendRecord appends the entry as it is at a moment: its age in ms, its life in seconds and its hits as Uvarint, an octet
// of what it was like, how long it took to get it in askedUnit, the length of its key's tail, the tail, the message. That
// tells name and type.
func (e entry) appendRecord(dst []byte, proven bool, at int64) []byte {
	age := max(0, at-e.stored())
	like := e[offFreq] & dumpFreq
	if proven {
		like |= dumpProven
	}
	if e[offFlags]&flagAsked != 0 {
		like |= dumpAsked
	}
	dst = binary.AppendUvarint(dst, uint64((age+int64(time.Millisecond)-1)/int64(time.Millisecond)))
	dst = binary.AppendUvarint(dst, uint64(e.life()/int64(time.Second)))
	dst = binary.AppendUvarint(dst, uint64(e.hits()))
	dst = append(dst, like, e[offAsked], e[offTail])
	dst = append(dst, e.tail()...)
	return append(dst, e.msg()...)
}
