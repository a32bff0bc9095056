// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// An entry is one stored answer as bytes of a log: a header, the part of the
// key that the answer's question does not hold, the offsets of its TTLs, and the
// answer. Entries begin at multiples of eight.
type entry []byte

// The header's fields by offset, in host-independent little endian.
const (
	offHash        = 0  // uint64
	offStored      = 8  // int64, ns since the cache's epoch
	offLife        = 16 // uint32, seconds
	offSize        = 20 // uint32, octets of the whole entry, padding included
	offMsgLen      = 24 // uint16
	offTTLs        = 26 // uint16, how many
	offRotateFirst = 28 // uint16, index into the TTLs
	offRotateCount = 30 // uint16
	offHits        = 32 // uint16, since it was stored
	offTurn        = 34 // uint16, which address is first the next time
	offTail        = 36 // uint8, octets of the key behind name and type
	offFreq        = 37 // uint8, of the eviction policy
	offFlags       = 38 // uint8
	offName        = 39 // uint8, octets of the question's name less one

	// The rest is for answers that are given past their time, and for those that
	// change with an owner.
	offRest     = 40 // uint32, in restUnit after the entry's end; 0: it does not rest
	offOwner    = 44 // uint16, tag; 0: none
	offAsked    = 46 // uint8, in askedUnit: how long before it was stored upstream was asked
	offFailures = 47 // uint8, refreshes that failed since it was stored
	headerLen   = 48
)

// Flags of an entry.
const (
	flagDead    = 1 << iota // replaced or removed; its bytes wait for the tail
	flagFailure             // remembers a failure
	flagDue                 // its refresh was asked for
	flagDenied              // denies its name, whatever the type
	flagAsked               // was asked for past its time
)

// maxFreq caps an entry's count, as S3-FIFO does: two bits tell hot from warm.
const maxFreq = 3

// maxTail is the most octets a key may have behind name and type.
const maxTail = 1<<8 - 1

func entrySize(tail, ttls, msg int) int {
	return (headerLen + tail + 2*ttls + msg + 7) &^ 7
}

// fill writes the whole entry, as one that is stored at the moment at under k with rrtype
// in place of its own type.
func (e entry) fill(k *key, rrtype uint16, a *Answer, flags byte, b birth, at int64) {
	clear(e[:headerLen])
	binary.LittleEndian.PutUint64(e[offHash:], k.hash(rrtype))
	binary.LittleEndian.PutUint64(e[offStored:], uint64(at))
	binary.LittleEndian.PutUint32(e[offLife:], uint32(a.Life/time.Second))
	binary.LittleEndian.PutUint32(e[offSize:], uint32(len(e)))
	binary.LittleEndian.PutUint16(e[offMsgLen:], uint16(len(a.Msg)))
	binary.LittleEndian.PutUint16(e[offTTLs:], uint16(len(a.TTLs)))
	binary.LittleEndian.PutUint16(e[offRotateFirst:], uint16(a.RotateFirst))
	binary.LittleEndian.PutUint16(e[offRotateCount:], uint16(a.RotateCount))
	binary.LittleEndian.PutUint16(e[offOwner:], b.tag)
	e[offAsked] = b.tenth
	e[offTail] = byte(len(k.tail()))
	e[offFlags] = flags
	e[offName] = byte(k.n - 1)
	off := headerLen + copy(e[headerLen:], k.tail())
	for _, ttl := range a.TTLs {
		binary.LittleEndian.PutUint16(e[off:], ttl)
		off += 2
	}
	copy(e[off:], a.Msg)
	binary.BigEndian.PutUint16(e[off+wire.HeaderLen+k.n:], rrtype)
}

func (e entry) hash() uint64 { return binary.LittleEndian.Uint64(e[offHash:]) }
func (e entry) size() int    { return int(binary.LittleEndian.Uint32(e[offSize:])) }
func (e entry) dead() bool   { return e[offFlags]&flagDead != 0 }
func (e entry) hits() uint16 { return binary.LittleEndian.Uint16(e[offHits:]) }

func (e entry) setHits(n uint16) { binary.LittleEndian.PutUint16(e[offHits:], n) }

// life is how long the entry may be used, in ns.
func (e entry) life() int64 {
	return int64(binary.LittleEndian.Uint32(e[offLife:])) * int64(time.Second)
}

func (e entry) stored() int64 { return int64(binary.LittleEndian.Uint64(e[offStored:])) }

// end is the moment from which the entry may not be used, in ns since the epoch.
func (e entry) end() int64 { return e.stored() + e.life() }

// rest is the moment until which the entry rests, in ns since the epoch.
func (e entry) rest() int64 {
	return e.end() + int64(binary.LittleEndian.Uint32(e[offRest:]))*int64(restUnit)
}

// restUntil makes the entry rest until a moment, if that is past its end.
func (e entry) restUntil(at int64) {
	units := (at - e.end() + int64(restUnit) - 1) / int64(restUnit)
	binary.LittleEndian.PutUint32(e[offRest:], uint32(min(math.MaxUint32, max(0, units))))
}

// owner is the tag of what the entry changes with, 0 for none.
func (e entry) owner() uint16 { return binary.LittleEndian.Uint16(e[offOwner:]) }

// asked is when upstream was asked for the entry, in ns since the epoch.
func (e entry) asked() int64 { return e.stored() - int64(e[offAsked])*int64(askedUnit) }

// name and rrtype are those of the question that the entry answers, or denies.
func (e entry) name() []byte { return e.msg()[wire.HeaderLen:][:int(e[offName])+1] }

func (e entry) rrtype() uint16 {
	return binary.BigEndian.Uint16(e.msg()[wire.HeaderLen+int(e[offName])+1:])
}

// tail is the part of the key behind name and type.
func (e entry) tail() []byte { return e[headerLen : headerLen+int(e[offTail])] }

// ttls and msg are the entry's two variable parts.
func (e entry) ttls() []byte {
	off := headerLen + int(e[offTail])
	return e[off : off+2*int(binary.LittleEndian.Uint16(e[offTTLs:]))]
}

func (e entry) msg() []byte {
	off := headerLen + int(e[offTail]) + 2*int(binary.LittleEndian.Uint16(e[offTTLs:]))
	return e[off : off+int(binary.LittleEndian.Uint16(e[offMsgLen:]))]
}

// holds tells whether the entry is stored under k with rrtype in place of its own
// type. The lengths must agree: class and records behind the question are no part of a
// key, though a key's tail may spell them.
func (e entry) holds(k *key, rrtype uint16) bool {
	n, tail := int(e[offName])+1, int(e[offTail])
	if k.n != n || len(k.raw) != n+2+tail {
		return false
	}
	question := e.msg()[wire.HeaderLen:]
	return binary.BigEndian.Uint16(question[n:]) == rrtype && string(k.raw[:n]) == string(question[:n]) &&
		string(k.raw[n+2:]) == string(e[headerLen:headerLen+tail])
}

// appendAnswer appends the answer as it is at the moment at. A clock that was read
// before the answer was stored finds it as it was then.
func (e entry) appendAnswer(dst []byte, at int64) []byte {
	start := len(dst)
	dst = append(dst, e.msg()...)
	msg, ttls := dst[start:], e.ttls()
	if age := (at - e.stored()) / int64(time.Second); age > 0 {
		for ; len(ttls) >= 2; ttls = ttls[2:] {
			field := msg[binary.LittleEndian.Uint16(ttls):]
			ttl := binary.BigEndian.Uint32(field)
			binary.BigEndian.PutUint32(field, ttl-min(uint32(age), ttl))
		}
	}
	if n := int(binary.LittleEndian.Uint16(e[offRotateCount:])); n > 1 {
		e.rotate(msg, n)
	}
	return dst
}

// appendStale appends the answer as one past its time, with ttl seconds for all its
// records (RFC 8767 section 4).
func (e entry) appendStale(dst []byte, ttl uint32) []byte {
	start := len(dst)
	dst = e.appendAnswer(dst, e.stored())
	msg := dst[start:]
	for ttls := e.ttls(); len(ttls) >= 2; ttls = ttls[2:] {
		binary.BigEndian.PutUint32(msg[binary.LittleEndian.Uint16(ttls):], ttl)
	}
	return dst
}

// answer makes msg, the entry's answer, one to the question of k: what denies a name is
// stored for every type.
func (e entry) answer(msg []byte, k *key) {
	if e[offFlags]&flagDenied != 0 {
		binary.BigEndian.PutUint16(msg[wire.HeaderLen+k.n:], k.rrtype)
	}
}

// rotate writes the RDATA of the address set in msg one place further on than
// the last time, so that every address is first in turn.
func (e entry) rotate(msg []byte, n int) {
	source := int(binary.LittleEndian.Uint16(e[offTurn:]))
	binary.LittleEndian.PutUint16(e[offTurn:], uint16((source+1)%n))
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
