// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"encoding/binary"
	"errors"
	"iter"
	"math"
	"math/bits"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// DumpVersion is the version of the record format of Dump.
const DumpVersion = 1

// The flags byte of a dump record.
const (
	dumpFreq      = maxFreq // mask of the use count
	dumpInMain    = 1 << 2  // was in the main log
	dumpStaleUsed = 1 << 3  // was used after it expired
)

// dumpBytes is the number of bytes after which Dump stops copying and unlocks the shard.
const dumpBytes = 32 << 10

// Dump passes the usable answers, fresh or stale, to emit as records for [Cache.Restore]. If they
// would exceed maxBytes it emits the most used ones. A kept answer becomes an ordinary one, stored when it was vouched for. Each record counts with its length prefix, an
// encoding/binary Uvarint. Cached failures are left out. Dump returns the number of records. It ends
// with the first error of emit, which must not keep the record.
//
// Dump holds a shard's lock for about 20 µs at a time: for some index slots and 32 KiB of answers. So
// the records are not of one instant, and answers stored during the call may be missing.
func (c *Cache) Dump(maxBytes int64, now time.Time, emit func(record []byte) error) (n int, err error) {
	c = c.current()
	d := dumper{at: c.nanos(now), room: maxBytes}
	d.selectRanks(c)
	err = c.eachUsable(d.at, d.copy, func() error {
		from := 0
		for _, to := range d.ends {
			if err := emit(d.buf[from:to]); err != nil {
				return err
			}
			from = to
			n++
		}
		d.buf, d.ends = d.buf[:0], d.ends[:0]
		return nil
	})
	return n, err
}

// eachUsable calls f for the usable entries, cached failures excepted. It visits the shards in turns, some
// entries at a time under the lock, fewer if f returns false, and calls after without the lock. So other
// goroutines get a shard while f visits the others. An entry that moves in its index may be missed.
func (c *Cache) eachUsable(at int64, f func(e entry, rank int, inMain bool, age int64) bool, after func() error) error {
	next := make([]int, len(c.shards))
	for left := len(c.shards); left > 0; {
		for i, s := range c.shards {
			if next[i] < 0 {
				continue
			}
			s.mu.Lock()
			next[i] = s.walk(next[i], func(off int, e entry) bool {
				state, inMain := s.state(e, at), off >= s.main.base
				return state == Absent || state == Failed ||
					f(e, e.worthClass(state, inMain)*dumpHits+bits.Len16(e.hits()), inMain, at-s.confirmed(e))
			})
			s.mu.Unlock()
			if err := after(); err != nil {
				return err
			}
			if next[i] < 0 {
				left--
			}
		}
	}
	return nil
}

// current returns the last successor of c. It waits while c is being resized.
func (c *Cache) current() *Cache {
	for {
		c.resizing.Lock()
		next := c.successor
		c.resizing.Unlock()
		if next == nil {
			return c
		}
		c = next
	}
}

// ranks is the number of ranks by which Dump selects entries: by worth class, then by hit class.
const ranks = worthClasses * dumpHits

// dumpHits is the number of hit classes: an entry with n hits is in class bits.Len(n).
const dumpHits = 17

// A dumper creates records.
type dumper struct {
	at         int64  // time of the dump, ns since the epoch
	room       int64  // bytes left for records
	cutoffRank int    // the rank of which only a part fits
	cutoffRoom int64  // bytes left for records of cutoffRank
	pinnedRoom int64  // of room, what records of pinned entries may take: recordLen is only an estimate
	buf        []byte // records not yet passed to emit
	ends       []int  // end of each record in buf
}

// selectRanks determines which ranks fit.
func (d *dumper) selectRanks(c *Cache) {
	var bytes [ranks]int64
	_ = c.eachUsable(d.at, func(e entry, rank int, _ bool, _ int64) bool {
		bytes[rank] += recordLen(e)
		if isPinned(e) {
			d.pinnedRoom += maxRecordLen(e)
		}
		return true
	}, func() error { return nil })
	d.cutoffRank, d.cutoffRoom = ranks-1, d.room
	for d.cutoffRank > 0 && bytes[d.cutoffRank] <= d.cutoffRoom {
		d.cutoffRoom -= bytes[d.cutoffRank]
		d.cutoffRank--
	}
}

// copy creates the record of an entry, if it is to be dumped. It returns false once the buffer is full.
func (d *dumper) copy(e entry, rank int, inMain bool, age int64) bool {
	if rank < d.cutoffRank {
		return true
	}
	from := len(d.buf)
	d.buf = e.appendRecord(d.buf, inMain, age)
	size, room := framedSize(len(d.buf)-from), d.room
	if isPinned(e) {
		d.pinnedRoom = max(0, d.pinnedRoom-maxRecordLen(e))
	} else {
		room -= d.pinnedRoom
	}
	if size > room || rank == d.cutoffRank && size > d.cutoffRoom {
		d.buf = d.buf[:from]
		return true
	}
	if d.room -= size; rank == d.cutoffRank {
		d.cutoffRoom -= size
	}
	d.ends = append(d.ends, len(d.buf))
	return len(d.buf) < dumpBytes
}

// recordLen estimates the bytes of the entry's record.
func recordLen(e entry) int64 {
	const fixed = 4 + 2 + 1 + 3 // usual lengths of age, lifetime and hits, and three fields of one byte
	return framedSize(fixed + len(e.tail()) + len(e.msg()))
}

// maxRecordLen returns the most bytes that the record of e may take.
func maxRecordLen(e entry) int64 {
	const fixed = 6 + 5 + 3 + 3 // an age of maxAge, the other two numbers at their highest, and three fields of one byte
	return framedSize(fixed + len(e.tail()) + len(e.msg()))
}

// framedSize returns the size of a record with its length prefix.
func framedSize(size int) int64 {
	var length [binary.MaxVarintLen64]byte
	return int64(size + binary.PutUvarint(length[:], uint64(size)))
}

// appendRecord appends the entry as a record: age, given in ns, in ms, lifetime in seconds and hits as Uvarints,
// then the flags byte, the query age in queryAgeUnit, the length of the key's tail, the tail and the
// message. Name and type are in the message.
func (e entry) appendRecord(dst []byte, inMain bool, age int64) []byte {
	age = max(0, age)
	flags := e[offFreq] & dumpFreq
	if isPinned(e) { // Restore begins with entries that have been used
		flags = max(flags, 1)
	}
	if inMain {
		flags |= dumpInMain
	}
	if e[offFlags]&flagStaleUsed != 0 {
		flags |= dumpStaleUsed
	}
	dst = binary.AppendUvarint(dst, uint64((age+int64(time.Millisecond)-1)/int64(time.Millisecond)))
	dst = binary.AppendUvarint(dst, uint64(e.lifetime()/int64(time.Second)))
	dst = binary.AppendUvarint(dst, uint64(e.hits()))
	dst = append(dst, flags, e[offQueryAge], e[offTail])
	dst = append(dst, e.tail()...)
	return append(dst, e.msg()...)
}

var errRecord = errors.New("invalid record")

// maxAge bounds the ages that Restore accepts, so that sums do not overflow.
const maxAge = 10 * 365 * 24 * time.Hour

// Restore stores the records of [Cache.Dump] in an unused cache, aged by the time passed since the
// dump. It parses each message as if it came from the network and derives all metadata again. owner,
// if not nil, returns the owner of a name. Answers that are no longer usable are left out, and so are
// the less used ones if not all fit. Restore returns the number of entries. If a record is malformed
// it leaves the cache empty.
func (c *Cache) Restore(records iter.Seq[[]byte], passed time.Duration, now time.Time, owner func(name []byte) []byte) (n int, err error) {
	r := restorer{cache: c, at: c.nanos(now), passed: min(maxAge, max(0, passed)), owner: owner}
	for class := range restoreClasses {
		for record := range records {
			if err := r.read(record, class); err != nil {
				c.Flush([]byte{0}, true)
				return 0, err
			}
		}
	}
	return r.entries, nil
}

// restoreClasses is the number of passes over the records: entries used since they were stored, others
// from the main log, the rest.
const restoreClasses = 3

func restoreClass(flags byte, hits uint64) int {
	switch {
	case flags&dumpFreq != 0, hits > 0:
		return 0
	case flags&dumpInMain != 0:
		return 1
	}
	return 2
}

// A restorer is reused for all records.
type restorer struct {
	cache   *Cache
	at      int64         // time of Restore, ns since the epoch
	passed  time.Duration // since the dump
	owner   func(name []byte) []byte
	entries int

	m      wire.Message
	answer Answer
	entry  entry
}

// read restores a record if it is of the class.
func (r *restorer) read(record []byte, class int) error {
	var numbers [3]uint64 // age, life, hits
	for i, most := range [...]uint64{uint64(maxAge / time.Millisecond), math.MaxUint32, maxHits} {
		n, length := binary.Uvarint(record)
		if length <= 0 || n > most {
			return errRecord
		}
		numbers[i], record = n, record[length:]
	}
	if len(record) < 3 || len(record)-3 < int(record[2]) {
		return errRecord
	}
	end := 3 + int(record[2])
	flags, queryAge, tail, msg := record[0], record[1], record[3:end], record[end:]
	if flags&^(dumpFreq|dumpInMain|dumpStaleUsed) != 0 {
		return errRecord
	}
	if restoreClass(flags, numbers[2]) != class {
		return nil
	}
	r.answer.Lifetime = time.Duration(numbers[1]) * time.Second
	if err := r.validate(msg); err != nil {
		return err
	}
	age := time.Duration(numbers[0]) * time.Millisecond
	r.put(tail, queryAge, flags, uint16(numbers[2]), r.at-int64(age)-int64(r.passed))
	return nil
}

// validate parses a message into r.answer. It rejects messages that a cache would not store.
func (r *restorer) validate(msg []byte) error {
	m := &r.m
	if m.Parse(msg) != nil || len(m.Raw) != len(msg) || m.HasOPT() || m.Truncated() || len(m.Records) == 0 || !isStoredForm(msg) {
		return errRecord
	}
	r.answer.Msg, r.answer.TTLs = msg, r.answer.TTLs[:0]
	shortest := uint32(math.MaxUint32)
	for _, rr := range m.Records {
		r.answer.TTLs = append(r.answer.TTLs, rr.TTL)
		shortest = min(shortest, m.RecordTTL(rr))
	}
	r.answer.AllTypes = m.QuestionType() == denialType
	denies := m.Rcode() == wire.RcodeNXDomain
	switch {
	case m.Rcode() != wire.RcodeSuccess && !denies,
		r.answer.AllTypes && (!denies || m.Records[0].Section == wire.Answer),
		r.answer.Lifetime < time.Second, r.answer.Lifetime > time.Duration(shortest)*time.Second:
		return errRecord
	}
	r.answer.RotateFirst, r.answer.RotateCount = r.m.AddressRun()
	return nil
}

// isStoredForm reports whether a parsed message is a response to a standard query of class IN with the
// question in canonical case.
func isStoredForm(msg []byte) bool {
	const response, opcode = 0x80, 0x78
	name := nameOf(msg)
	class := binary.BigEndian.Uint16(msg[wire.HeaderLen+len(name)+2:])
	return msg[2]&response != 0 && msg[2]&opcode == 0 && class == wire.ClassIN && wire.IsCanonical(name)
}

// nameOf returns the name in the question of a parsed message.
func nameOf(msg []byte) []byte {
	end := wire.HeaderLen
	for msg[end] != 0 {
		end += int(msg[end]) + 1
	}
	return msg[wire.HeaderLen : end+1]
}

// put stores r.answer with the given storing time, if it is usable, fits, and its key has no entry yet.
func (r *restorer) put(tail []byte, queryAge, recordFlags byte, hits uint16, stored int64) {
	c := r.cache
	name := nameOf(r.answer.Msg)
	k := c.denialKey(name, tail)
	k.rrtype = r.m.QuestionType()
	flags := byte(0)
	if r.answer.AllTypes {
		flags |= flagDenial
	}
	if recordFlags&dumpStaleUsed != 0 {
		flags |= flagStaleUsed
	}
	size := entrySize(len(tail), len(r.answer.TTLs), len(r.answer.Msg))
	if cap(r.entry) < size {
		r.entry = make(entry, size)
	}
	e := r.entry[:size]
	clear(e)
	e.encode(&k, k.rrtype, &r.answer, flags, stored)
	if r.owner != nil {
		if owner := r.owner(name); owner != nil {
			e.setOwner(c.tag(owner), queryAge)
		}
	}
	e[offFreq] = recordFlags & dumpFreq
	e.setHits(hits)

	s := c.lockShard(k.shardBits)
	defer s.mu.Unlock()
	s.pin(e)
	if _, _, found := s.find(&k, k.rrtype); found || s.state(e, r.at) == Absent {
		return
	}
	switch {
	case s.insert(e, recordFlags&(dumpInMain|dumpFreq) != 0):
		r.entries++
	case isPinned(e):
		s.now = r.at
		s.addMoved(e, true)
		r.entries++
	}
}

// insert stores a copy of e if it fits without evicting another entry.
func (s *shard) insert(e entry, toMain bool) bool {
	size := e.size()
	if s.index.count >= s.index.maxCount || size > s.main.size/4 {
		return false
	}
	first, then := &s.small, &s.main
	if toMain || size > s.small.size/2 {
		first, then = then, first
	}
	off, ok := first.reserve(size)
	if !ok && size <= then.size/2 {
		off, ok = then.reserve(size)
	}
	if !ok {
		return false
	}
	s.place(e, off)
	return true
}
