// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"encoding/binary"
	"errors"
	"iter"
	"math"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

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
				c.Flush([]byte{0})
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
	at      int64
	passed  time.Duration
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
	r.put(tail, origin{queryAge: queryAge}, flags, uint16(numbers[2]), r.at-int64(age)-int64(r.passed))
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
	r.answer.NXDomain = m.QuestionType() == denialType
	denies := m.Rcode() == wire.RcodeNXDomain
	switch {
	case m.Rcode() != wire.RcodeSuccess && !denies,
		r.answer.NXDomain && (!denies || m.Records[0].Section == wire.Answer),
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
	for _, c := range name {
		if c >= 'A' && c <= 'Z' { // label lengths are smaller
			return false
		}
	}
	class := binary.BigEndian.Uint16(msg[wire.HeaderLen+len(name)+2:])
	return msg[2]&response != 0 && msg[2]&opcode == 0 && class == wire.ClassIN
}

// nameOf returns the name in the question of a parsed message.
func nameOf(msg []byte) []byte {
	end := wire.HeaderLen
	for msg[end] != 0 {
		end += int(msg[end]) + 1
	}
	return msg[wire.HeaderLen : end+1]
}

// put stores r.answer with the given storing time, if it is usable and fits.
func (r *restorer) put(tail []byte, b origin, recordFlags byte, hits uint16, stored int64) {
	c := r.cache
	name := nameOf(r.answer.Msg)
	k := c.denialKey(name, tail)
	k.rrtype = r.m.QuestionType()
	if r.owner != nil {
		if owner := r.owner(name); owner != nil {
			b.tag = c.tag(owner)
		}
	}
	if b.tag == 0 {
		b.queryAge = 0
	}
	flags := byte(0)
	if r.answer.NXDomain {
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
	e.encode(&k, k.rrtype, &r.answer, flags, b, stored)
	e[offFreq] = recordFlags & dumpFreq
	e.setHits(hits)

	s := c.lockShard(k.shardBits)
	defer s.mu.Unlock()
	if state := s.state(e, r.at); state == Absent {
		return
	}
	if _, _, ok := s.find(&k, k.rrtype); !ok && s.insert(e, recordFlags&(dumpInMain|dumpFreq) != 0) {
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
	copy(s.arena[off:], e)
	s.index.add(e.hash(), off)
	s.liveBytes += size
	return true
}
