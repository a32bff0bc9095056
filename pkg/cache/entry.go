// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"math"
	"math/bits"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// An entry is one stored answer in a log: a header, the part of the key that the question does not
// hold, the offsets of its TTLs, and the answer. Entries are aligned to eight bytes.
type entry []byte

// Header fields by offset, little-endian on all hosts.
const (
	offHash        = 0  // uint64
	offStored      = 8  // int64, ns since the cache's epoch
	offLifetime    = 16 // uint32, seconds
	offSize        = 20 // uint32, bytes of the whole entry, padding included
	offMsgLen      = 24 // uint16
	offTTLs        = 26 // uint16, count
	offRotateFirst = 28 // uint16, index into the TTLs
	offRotateCount = 30 // uint16
	offHits        = 32 // uint16, since it was stored
	offRotation    = 34 // uint16, the address that comes first next time
	offTail        = 36 // uint8, bytes of the key after name and type
	offFreq        = 37 // uint8, use count of the eviction policy
	offFlags       = 38 // uint8
	offName        = 39 // uint8, length of the question's name minus one

	// The remaining fields serve stale answers and answers with an owner.
	offBackoff  = 40 // uint32, time from expiry to the end of the refresh backoff, in backoffUnit; 0: no backoff
	offOwner    = 44 // uint16, owner's tag; 0: none
	offQueryAge = 46 // uint8, in queryAgeUnit: time from the upstream query to storing
	offFailures = 47 // uint8, failed refreshes since it was stored
	headerLen   = 48
)

// Flags of an entry.
const (
	flagDead       = 1 << iota // replaced or removed; its bytes are freed once it is at its log's tail
	flagFailure                // a cached failure
	flagPrefetched             // Lookup has returned PrefetchDue for it
	flagDenial                 // denies its name for all types
	flagStaleUsed              // was used after it expired
	flagKept                   // see Answer.Kept
	flagPinned                 // see pinned.go
)

// maxFreq caps the use count, as in S3-FIFO.
const maxFreq = 3

// maxTail bounds the bytes of a key after name and type.
const maxTail = 1<<8 - 1

func entrySize(tail, ttls, msg int) int {
	return (headerLen + tail + 2*ttls + msg + 7) &^ 7
}

// encode writes the whole entry, for storing at the time at. Its key is k, with rrtype in place of k's
// type.
func (e entry) encode(k *key, rrtype uint16, a *Answer, flags byte, at int64) {
	clear(e[:headerLen])
	binary.LittleEndian.PutUint64(e[offHash:], k.hash(rrtype))
	binary.LittleEndian.PutUint64(e[offStored:], uint64(at))
	binary.LittleEndian.PutUint32(e[offLifetime:], uint32(a.Lifetime/time.Second))
	binary.LittleEndian.PutUint32(e[offSize:], uint32(len(e)))
	binary.LittleEndian.PutUint16(e[offMsgLen:], uint16(len(a.Msg)))
	binary.LittleEndian.PutUint16(e[offTTLs:], uint16(len(a.TTLs)))
	binary.LittleEndian.PutUint16(e[offRotateFirst:], uint16(a.RotateFirst))
	binary.LittleEndian.PutUint16(e[offRotateCount:], uint16(a.RotateCount))
	e[offTail] = byte(len(k.tail()))
	e[offFlags] = flags
	e[offName] = byte(k.nameLen - 1)
	off := headerLen + copy(e[headerLen:], k.tail())
	for _, ttl := range a.TTLs {
		binary.LittleEndian.PutUint16(e[off:], ttl)
		off += 2
	}
	copy(e[off:], a.Msg)
	binary.BigEndian.PutUint16(e[off+wire.HeaderLen+k.nameLen:], rrtype)
}

func (e entry) hash() uint64 { return binary.LittleEndian.Uint64(e[offHash:]) }
func (e entry) size() int    { return int(binary.LittleEndian.Uint32(e[offSize:])) }
func (e entry) dead() bool   { return e[offFlags]&flagDead != 0 }
func (e entry) hits() uint16 { return binary.LittleEndian.Uint16(e[offHits:]) }

func (e entry) setHits(n uint16) { binary.LittleEndian.PutUint16(e[offHits:], n) }

// lifetime returns the time from storing to expiry, in ns.
func (e entry) lifetime() int64 {
	return int64(binary.LittleEndian.Uint32(e[offLifetime:])) * int64(time.Second)
}

func (e entry) stored() int64 { return int64(binary.LittleEndian.Uint64(e[offStored:])) }

// end returns the expiry time, in ns since the epoch.
func (e entry) end() int64 { return e.stored() + e.lifetime() }

// backoffEnd returns the end of the refresh backoff, in ns since the epoch.
func (e entry) backoffEnd() int64 {
	return e.end() + int64(binary.LittleEndian.Uint32(e[offBackoff:]))*int64(backoffUnit)
}

// setBackoff sets the end of the refresh backoff. A time before expiry clears it.
func (e entry) setBackoff(at int64) {
	units := (at - e.end() + int64(backoffUnit) - 1) / int64(backoffUnit)
	binary.LittleEndian.PutUint32(e[offBackoff:], uint32(min(math.MaxUint32, max(0, units))))
}

// setOwner sets the tag of the entry's owner and the time from the upstream query to storing, in
// queryAgeUnit.
func (e entry) setOwner(tag uint16, queryAge uint8) {
	binary.LittleEndian.PutUint16(e[offOwner:], tag)
	e[offQueryAge] = queryAge
}

// owner returns the owner's tag, 0 for none.
func (e entry) owner() uint16 { return binary.LittleEndian.Uint16(e[offOwner:]) }

// queriedAt returns when upstream was queried, in ns since the epoch.
func (e entry) queriedAt() int64 { return e.stored() - int64(e[offQueryAge])*int64(queryAgeUnit) }

// name and rrtype return the question that the entry answers or denies; type 0 stands for all types.
func (e entry) name() []byte { return e.msg()[wire.HeaderLen:][:int(e[offName])+1] }

func (e entry) rrtype() uint16 {
	return binary.BigEndian.Uint16(e.msg()[wire.HeaderLen+int(e[offName])+1:])
}

// tail returns the part of the key after name and type.
func (e entry) tail() []byte { return e[headerLen : headerLen+int(e[offTail])] }

// ttls returns the offsets of the TTLs in the message; msg returns the message.
func (e entry) ttls() []byte {
	off := headerLen + int(e[offTail])
	return e[off : off+2*int(binary.LittleEndian.Uint16(e[offTTLs:]))]
}

func (e entry) msg() []byte {
	off := headerLen + int(e[offTail]) + 2*int(binary.LittleEndian.Uint16(e[offTTLs:]))
	return e[off : off+int(binary.LittleEndian.Uint16(e[offMsgLen:]))]
}

// matches reports whether the entry is stored under k with rrtype in place of k's type. It compares
// lengths first, because a key's tail may spell the bytes that follow the question.
func (e entry) matches(k *key, rrtype uint16) bool {
	n, tail := int(e[offName])+1, int(e[offTail])
	if k.nameLen != n || len(k.raw) != n+2+tail {
		return false
	}
	question := e.msg()[wire.HeaderLen:]
	return binary.BigEndian.Uint16(question[n:]) == rrtype && string(k.raw[:n]) == string(question[:n]) &&
		string(k.raw[n+2:]) == string(e[headerLen:headerLen+tail])
}

// kept reports whether the answer is kept, see kept.go.
func (e entry) kept() bool { return e[offFlags]&flagKept != 0 }

// age returns the age in ns by which the TTLs of e are counted down.
func (s *shard) age(e entry, at int64) int64 {
	if e.kept() {
		return s.keptAge(e, at)
	}
	return at - e.stored()
}

// appendAnswer appends the answer with its TTLs counted down by age, in ns. A clock that is behind the time of
// storing, and so has a negative age, gets the original TTLs.
func (e entry) appendAnswer(dst []byte, age int64) []byte {
	start := len(dst)
	dst = append(dst, e.msg()...)
	msg, ttls := dst[start:], e.ttls()
	if seconds := age / int64(time.Second); seconds > 0 {
		for ; len(ttls) >= 2; ttls = ttls[2:] {
			field := msg[binary.LittleEndian.Uint16(ttls):]
			ttl := binary.BigEndian.Uint32(field)
			binary.BigEndian.PutUint32(field, ttl-min(uint32(seconds), ttl))
		}
	}
	if n := int(binary.LittleEndian.Uint16(e[offRotateCount:])); n > 1 {
		e.rotate(msg, n)
	}
	return dst
}

// appendStale appends the answer with ttl seconds as the TTL of all records (RFC 8767 section 4).
func (e entry) appendStale(dst []byte, ttl uint32) []byte {
	start := len(dst)
	dst = e.appendAnswer(dst, 0)
	msg := dst[start:]
	for ttls := e.ttls(); len(ttls) >= 2; ttls = ttls[2:] {
		binary.BigEndian.PutUint32(msg[binary.LittleEndian.Uint16(ttls):], ttl)
	}
	return dst
}

// setQuestionType sets the question's type in msg to that of k, because a denial is stored once for
// all types.
func (e entry) setQuestionType(msg []byte, k *key) {
	if e[offFlags]&flagDenial != 0 {
		binary.BigEndian.PutUint16(msg[wire.HeaderLen+k.nameLen:], k.rrtype)
	}
}

// rotate rotates the n addresses in msg by one more place than the last time.
func (e entry) rotate(msg []byte, n int) {
	source := int(binary.LittleEndian.Uint16(e[offRotation:]))
	binary.LittleEndian.PutUint16(e[offRotation:], uint16((source+1)%n))
	first := int(binary.LittleEndian.Uint16(e[offRotateFirst:]))
	ttls := e.ttls()[2*first:]
	from := e.msg()
	size := int(binary.BigEndian.Uint16(from[int(binary.LittleEndian.Uint16(ttls))+4:]))
	for i := range n {
		to := int(binary.LittleEndian.Uint16(ttls[2*i:])) + 6
		of := int(binary.LittleEndian.Uint16(ttls[2*source:])) + 6
		copy(msg[to:to+size], from[of:of+size])
		if source++; source == n {
			source = 0
		}
	}
}

// denialType is the type under which the denial of a name is stored. NXDOMAIN denies all types (RFC
// 2308 section 5), and no query has type 0 (RFC 6895 section 3.1).
const denialType = 0

// A key is a parsed cache key. All keys of a name have the same shardBits.
type key struct {
	raw       []byte // canonical name in wire form, type, tail
	nameLen   int    // bytes
	rrtype    uint16
	shardBits uint64 // lowest bits of the name's hash, which choose the shard
	base      uint64 // hash of everything but the type
}

// shardMask masks the hash bits that choose the shard.
const shardMask = maxShards - 1

// hashMultiplier is an odd number with random-looking bits.
const hashMultiplier = 0x9e3779b97f4a7c15

// plainTailLen is the length after the name in nearly every key: type and flags, no subnet.
const plainTailLen = 3

// owner returns the owner's tag and the query age of an entry for a, stored at the time at. It returns
// false if the answer may predate its owner's last change.
func (sh *shared) owner(a *Answer, at int64) (tag uint16, queryAge uint8, ok bool) {
	if a.Owner == nil {
		return 0, 0, true
	}
	tag = sh.tag(a.Owner)
	if a.Kept {
		return tag, 0, sh.owners[tag-1].Load() < at
	}
	if !a.QueriedAt.IsZero() {
		took := (at - sh.nanos(a.QueriedAt) + int64(queryAgeUnit) - 1) / int64(queryAgeUnit)
		if took > math.MaxUint8 {
			return tag, 0, false // queryAge has no room for it; no upstream query takes so long
		}
		queryAge = uint8(max(0, took))
	}
	return tag, queryAge, !sh.predatesChange(tag, at-int64(queryAge)*int64(queryAgeUnit))
}

// nanos converts now to ns since the epoch, suspended time included.
func (sh *shared) nanos(now time.Time) int64 { return int64(now.Sub(sh.epoch)) + sh.suspended.Load() }

// key parses a key of the public interface, which must be complete.
func (sh *shared) key(raw []byte) key {
	n := 0
	for raw[n] != 0 {
		n += int(raw[n]) + 1
	}
	if n++; n != len(raw)-plainTailLen {
		return sh.longKey(raw, n)
	}
	// The same as raw[:n], but a CPU that predicts the comparison above need not wait for the loop to know this length.
	name := raw[:len(raw)-plainTailLen]
	hash := maphash.Bytes(sh.seed, name)
	return key{
		raw: raw, nameLen: len(name), rrtype: binary.BigEndian.Uint16(raw[len(raw)-plainTailLen:]),
		shardBits: hash & shardMask, base: hash ^ tailMark ^ uint64(raw[len(raw)-1])<<16,
	}
}

// tailMark distinguishes the hash of keys with a tail of one byte.
const tailMark = 1 << 24

// longKey parses a key whose name has n bytes and whose tail is not one byte.
func (sh *shared) longKey(raw []byte, n int) key {
	hash := maphash.Bytes(sh.seed, raw[:n])
	k := key{raw: raw, nameLen: n, rrtype: binary.BigEndian.Uint16(raw[n:]), shardBits: hash & shardMask, base: hash}
	if tail := k.tail(); len(tail) > 0 {
		k.base ^= maphash.Bytes(sh.seed, tail) &^ 0xffff
	}
	return k
}

// denialKey returns the key of the denial of name for questions with this tail.
func (sh *shared) denialKey(name, tail []byte) key {
	return sh.key(append(append(bytes.Clone(name), 0, denialType), tail...))
}

// tail returns the flags and, where answers depend on it, the client subnet.
func (k *key) tail() []byte { return k.raw[k.nameLen+2:] }

// hash returns the hash of the key with rrtype in place of its own type.
func (k *key) hash(rrtype uint16) uint64 {
	high, low := bits.Mul64(k.base^uint64(rrtype), hashMultiplier)
	return (high^low)&^shardMask | k.shardBits
}
