// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"encoding/binary"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A reply is one answer in the making.
//
// It begins as the header and the question; records follow. The owner of every
// record is a pointer into the question or, behind an alias, into the alias's
// RDATA, with the label of an endpoint before it where need be. So the client's
// spelling of the question, which is written over ours later, is in all of them,
// and no pointer reaches behind the first 3,000 octets.
type reply struct {
	z              *Zone
	q              *wire.Query
	rotation       uint32
	now            time.Time
	fallbackFailed bool // nobody else has an answer: a stale view denies
	dst            []byte

	start   int // where the message begins in dst
	maxSize int // octets the message may have
	answer  int // records by section
	extra   int

	// The name that is being answered: the question's, or an alias's target.
	name    []byte // canonical wire form
	at      int    // offset of the name in the message
	labels  int    // labels left of the zone's domain
	offsets [wire.MaxName / 2]uint8
	apex    int  // offset in the message of the domain, or of the reverse tree
	reverse bool // the name is one of the reverse tree

	ttl uint32
	ede int

	dedup   *dedupTable // records of the set that is being appended; nil: none of them occurs twice
	steps   int         // what may be done to find records
	limited bool        // records are left out, and not for want of room
}

// leastSteps and the octets of room are the steps that an answer may take to find its
// records, see cursor: some 10 microseconds for 1,232 bytes, 0.2 ms for 64 KiB. That many
// entries are there without being given where most are not ready, occur again or are of
// another topology zone.
const minSteps = 1 << 11

// newReply begins the answer to q.
func (z *Zone) newReply(q *wire.Query, c Client, now time.Time, dst []byte, last bool) reply {
	room := min(c.MaxSize, maxReply)
	return reply{
		z: z, q: q, rotation: c.Rotation, now: now, fallbackFailed: last, dst: dst, start: len(dst), maxSize: room, steps: minSteps + room,
		ede: wire.EDENone, ttl: z.ttl,
	}
}

// maxReply is the octets a message may have before the OPT record is appended.
const maxReply = wire.MaxMessage - 128

// Bits and codes of the header.
const (
	bitsAnswer    = 0x84 // third octet: QR, AA
	bitTruncated  = 0x02
	offsetAnswer  = 6
	offsetExtra   = 10
	offsetServers = 8
)

// begin appends header and question.
func (r *reply) begin() {
	r.dst = append(r.dst, 0, 0, bitsAnswer, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	r.dst = r.q.AppendQuestion(r.dst)
}

// questionEnd is the offset in the answer to q after its question.
func questionEnd(q *wire.Query) int { return wire.HeaderLen + len(q.Name()) + 4 }

// finish writes what only the end knows.
func (r *reply) finish(rcode byte, servers int) Result {
	h := r.dst[r.start:]
	h[3] = rcode
	binary.BigEndian.PutUint16(h[offsetAnswer:], uint16(r.answer))
	binary.BigEndian.PutUint16(h[offsetServers:], uint16(servers))
	binary.BigEndian.PutUint16(h[offsetExtra:], uint16(r.extra))
	return Result{Verdict: Answered, EDE: r.ede, Limited: r.limited}
}

// none takes everything back: there is no answer here.
func (r *reply) abandon(v Verdict, ede int) Result {
	r.dst = r.dst[:r.start]
	return Result{Verdict: v, EDE: ede}
}

// full tells whether the message cannot take octets more, and marks it as
// truncated then.
func (r *reply) full(octets int) bool {
	if len(r.dst)-r.start+octets <= r.maxSize {
		return false
	}
	r.dst[r.start+2] |= bitTruncated
	return true
}

// truncated reports whether the answer lacks records.
func (r *reply) truncated() bool { return r.dst[r.start+2]&bitTruncated != 0 }

// endWalk marks the answer as truncated if a walk left fewer steps than none.
func (r *reply) endWalk(left int) {
	if left < 0 {
		r.dst[r.start+2] |= bitTruncated
		r.limited = true
	}
}

// fullExtra is full for what is no part of the answer.
func (r *reply) fullExtra(octets int) bool { return len(r.dst)-r.start+octets > r.maxSize }

// appendOwner appends a pointer to the offset in the message.
func (r *reply) appendOwner(at int) { r.dst = append(r.dst, 0xc0|byte(at>>8), byte(at)) }

// appendFixed appends what stands between owner and RDATA.
func (r *reply) appendFixed(rrtype uint16, ttl uint32, size int) {
	r.dst = append(r.dst, byte(rrtype>>8), byte(rrtype), 0, byte(wire.ClassIN),
		byte(ttl>>24), byte(ttl>>16), byte(ttl>>8), byte(ttl), byte(size>>8), byte(size))
}

// addressLen is the octets of an address record owned by a pointer.
func addressRecordLen(octets int) int { return 2 + fixedLen + octets }

// appendAddress appends an address record owned by what the offset points to.
func (r *reply) appendAddress(at int, addr string, ttl uint32) {
	rrtype := wire.TypeA
	if len(addr) == 16 {
		rrtype = wire.TypeAAAA
	}
	r.appendOwner(at)
	r.appendFixed(rrtype, ttl, len(addr))
	r.dst = append(r.dst, addr...)
}

// octetsOf is the length of an address that the question's type asks for, or 0.
func addrLenOf(rrtype uint16) int {
	switch rrtype {
	case wire.TypeA:
		return 4
	case wire.TypeAAAA:
		return 16
	}
	return 0
}

// rotate moves the n address records that begin at the offset in dst round by the
// turn, so that every one is first as often as the others. They have one owner, so it
// is the RDATA that moves.
func (r *reply) rotate(at, n, octets int) {
	if n < 2 {
		return
	}
	by := int(r.rotation % uint32(n))
	if by == 0 {
		return
	}
	size := addressRecordLen(octets)
	data := r.dst[at+2+fixedLen:]
	reverseAddrs(data, 0, by-1, size, octets)
	reverseAddrs(data, by, n-1, size, octets)
	reverseAddrs(data, 0, n-1, size, octets)
}

// reverseAddrs turns round the order of the addresses first to last, which stand
// size octets apart.
func reverseAddrs(data []byte, first, last, size, octets int) {
	var keep [16]byte
	for ; first < last; first, last = first+1, last-1 {
		a, b := data[first*size:first*size+octets], data[last*size:last*size+octets]
		copy(keep[:], a)
		copy(a, b)
		copy(b, keep[:octets])
	}
}
