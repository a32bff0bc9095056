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

// maxAge bounds the ages that are read, so that no sum of them overflows.
const maxAge = 10 * 365 * 24 * time.Hour

// Restore puts back what [Cache.Dump] gave, after the time passed since then, for a cache that is not used yet. Each
// message is read as if it came from the network, and all that is known of it is found out anew; owner, if it is not
// nil, tells whose changes it depends on. What may not be given any more is left out, and so is what does not fit,
// of the less worthy first. It gives how many entries are back. If a record cannot be read the cache is left empty.
func (c *Cache) Restore(records iter.Seq[[]byte], passed time.Duration, now time.Time, owner func(name []byte) []byte) (n int, err error) {
	r := restorer{cache: c, at: c.at(now), passed: min(maxAge, max(0, passed)), owner: owner}
	for class := range classes {
		for record := range records {
			if err := r.read(record, class); err != nil {
				c.Flush([]byte{0})
				return 0, err
			}
		}
	}
	return r.entries, nil
}

// The classes of records, in the order in which they find room: those of entries that were asked for since they were
// stored, those of others from a main log, and the rest.
const classes = 3

func classOf(like byte, hits uint64) int {
	switch {
	case like&dumpFreq != 0, hits > 0:
		return 0
	case like&dumpProven != 0:
		return 1
	}
	return 2
}

// A restorer is reused from record to record.
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

// read takes a record, if it is of the class.
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
	like, tenth, tail, msg := record[0], record[1], record[3:end], record[end:]
	if like&^(dumpFreq|dumpProven|dumpAsked) != 0 {
		return errRecord
	}
	if classOf(like, numbers[2]) != class {
		return nil
	}
	r.answer.Life = time.Duration(numbers[1]) * time.Second
	if err := r.judge(msg); err != nil {
		return err
	}
	age := time.Duration(numbers[0]) * time.Millisecond
	r.put(tail, birth{tenth: tenth}, like, uint16(numbers[2]), r.at-int64(age)-int64(r.passed))
	return nil
}

// judge reads a message and makes it r.answer. What is no answer that a cache keeps is no record.
func (r *restorer) judge(msg []byte) error {
	m := &r.m
	if m.Parse(msg) != nil || len(m.Raw) != len(msg) || m.HasOPT() || m.Truncated() || len(m.Records) == 0 || !isStored(msg) {
		return errRecord
	}
	r.answer.Msg, r.answer.TTLs = msg, r.answer.TTLs[:0]
	shortest := uint32(math.MaxUint32)
	for _, rr := range m.Records {
		r.answer.TTLs = append(r.answer.TTLs, rr.TTL)
		shortest = min(shortest, m.RecordTTL(rr))
	}
	r.answer.NXDomain = m.QuestionType() == denied
	denies := m.Rcode() == wire.RcodeNXDomain
	switch {
	case m.Rcode() != wire.RcodeSuccess && !denies,
		r.answer.NXDomain && (!denies || m.Records[0].Section == wire.Answer),
		r.answer.Life < time.Second, r.answer.Life > time.Duration(shortest)*time.Second:
		return errRecord
	}
	r.answer.RotateFirst, r.answer.RotateCount = r.m.AddressRun()
	return nil
}

// isStored tells whether a message that was parsed is a response to a standard query of class IN with the question in
// canonical spelling.
func isStored(msg []byte) bool {
	const response, opcode = 0x80, 0x78
	name := nameOf(msg)
	for _, c := range name {
		if c >= 'A' && c <= 'Z' { // the lengths of labels are below these
			return false
		}
	}
	class := binary.BigEndian.Uint16(msg[wire.HeaderLen+len(name)+2:])
	return msg[2]&response != 0 && msg[2]&opcode == 0 && class == wire.ClassIN
}

// nameOf is the name in the question of a message that was parsed.
func nameOf(msg []byte) []byte {
	end := wire.HeaderLen
	for msg[end] != 0 {
		end += int(msg[end]) + 1
	}
	return msg[wire.HeaderLen : end+1]
}

// put puts r.answer into the cache as one that was stored at a moment, if it may still be given and fits.
func (r *restorer) put(tail []byte, b birth, like byte, hits uint16, stored int64) {
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
		b.tenth = 0
	}
	flags := byte(0)
	if r.answer.NXDomain {
		flags |= flagDenied
	}
	if like&dumpAsked != 0 {
		flags |= flagAsked
	}
	size := entrySize(len(tail), len(r.answer.TTLs), len(r.answer.Msg))
	if cap(r.entry) < size {
		r.entry = make(entry, size)
	}
	e := r.entry[:size]
	clear(e)
	e.fill(&k, k.rrtype, &r.answer, flags, b, stored)
	e[offFreq] = like & dumpFreq
	e.setHits(hits)

	s := c.lock(k.low)
	defer s.mu.Unlock()
	if state := s.state(e, r.at); state == Absent {
		return
	}
	if _, _, ok := s.find(&k, k.rrtype); !ok && s.insert(e, like&(dumpProven|dumpFreq) != 0) {
		r.entries++
	}
}

// insert puts a copy of e in, where it finds room without pushing another out.
func (s *shard) insert(e entry, worthy bool) bool {
	size := e.size()
	if s.index.count >= s.index.most || size > s.main.size/4 {
		return false
	}
	first, then := &s.small, &s.main
	if worthy || size > s.small.size/2 {
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
	s.live += size
	return true
}
