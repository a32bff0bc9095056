// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"encoding/binary"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A reply is an answer under construction.
//
// It begins with the header and the question; records follow. The owner of every record is a pointer into the question
// or, after an alias, into the alias's RDATA, with an endpoint's label before it if needed. So all owners have the
// client's case of the question, which is written over ours later, and no pointer exceeds the first 3,000 bytes.
type reply struct {
	z              *Zone
	q              *wire.Query
	rotation       uint32
	now            time.Time
	fallbackFailed bool // the fallback has no answer: stale data denies names
	dst            []byte

	start   int // offset of the message in dst
	maxSize int // of the message, in bytes
	answer  int // records by section
	extra   int

	// The current name: the question's, or an alias's target.
	name    []byte // canonical wire form
	at      int    // offset of the name in the message
	labels  int    // labels left of the zone's domain
	offsets [wire.MaxName / 2]uint8
	apex    int  // offset in the message of the domain, or of the reverse tree
	reverse bool // the name is a reverse name

	ttl uint32
	ede int

	dedup   *dedupTable // records of the current set; nil: it has no duplicates
	steps   int         // rest of the budget for finding records
	limited bool        // records are missing for another reason than the size
}

// minSteps, plus the bytes of the message's size, is the budget of steps for finding an answer's records, see cursor:
// about 10 microseconds for 1,232 bytes, 0.2 ms for 64 KiB. The budget allows for as many entries that are not given:
// unready, duplicate, or of another topology zone.
const minSteps = 1 << 11

// newReply returns an empty reply to q.
func (z *Zone) newReply(q *wire.Query, c Client, now time.Time, dst []byte, last bool) reply {
	room := min(c.MaxSize, maxReply)
	return reply{
		z: z, q: q, rotation: c.Rotation, now: now, fallbackFailed: last, dst: dst, start: len(dst), maxSize: room, steps: minSteps + room,
		ede: wire.EDENone, ttl: z.ttl,
	}
}

// maxReply is the largest message before the OPT record, in bytes.
const maxReply = wire.MaxMessage - 128

// Bits and offsets of the header.
const (
	bitsAnswer    = 0x84 // third byte: QR, AA
	bitTruncated  = 0x02
	offsetAnswer  = 6
	offsetExtra   = 10
	offsetServers = 8
)

// begin appends the header and the question.
func (r *reply) begin() {
	r.dst = append(r.dst, 0, 0, bitsAnswer, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	r.dst = r.q.AppendQuestion(r.dst)
}

// questionEnd returns the offset after the question in the answer to q.
func questionEnd(q *wire.Query) int { return wire.HeaderLen + len(q.Name()) + 4 }

// finish writes the rcode and the counts.
func (r *reply) finish(rcode byte, servers int) Result {
	h := r.dst[r.start:]
	h[3] = rcode
	binary.BigEndian.PutUint16(h[offsetAnswer:], uint16(r.answer))
	binary.BigEndian.PutUint16(h[offsetServers:], uint16(servers))
	binary.BigEndian.PutUint16(h[offsetExtra:], uint16(r.extra))
	return Result{Verdict: Answered, EDE: r.ede, Limited: r.limited}
}

// abandon removes everything: the zone gives no answer.
func (r *reply) abandon(v Verdict, ede int) Result {
	r.dst = r.dst[:r.start]
	return Result{Verdict: v, EDE: ede}
}

// full reports whether the message has no room for size more bytes, and then marks it as truncated.
func (r *reply) full(addrLen int) bool {
	if len(r.dst)-r.start+addrLen <= r.maxSize {
		return false
	}
	r.dst[r.start+2] |= bitTruncated
	return true
}

// truncated reports whether records are missing.
func (r *reply) truncated() bool { return r.dst[r.start+2]&bitTruncated != 0 }

// spend takes steps from the answer's budget. It reports false if that is spent.
func (r *reply) spend(steps int) bool {
	r.steps -= steps
	return r.steps >= 0
}

// endWalk marks the answer as truncated if a walk overran the budget.
func (r *reply) endWalk() {
	if r.steps < 0 {
		r.dst[r.start+2] |= bitTruncated
		r.limited = true
	}
}

// fullExtra is full for the additional section, which needs no TC.
func (r *reply) fullExtra(addrLen int) bool { return len(r.dst)-r.start+addrLen > r.maxSize }

// appendOwner appends a pointer to the offset in the message.
func (r *reply) appendOwner(at int) { r.dst = append(r.dst, 0xc0|byte(at>>8), byte(at)) }

// appendFixed appends the fields between owner and RDATA.
func (r *reply) appendFixed(rrtype uint16, ttl uint32, size int) {
	r.dst = append(r.dst, byte(rrtype>>8), byte(rrtype), 0, byte(wire.ClassIN),
		byte(ttl>>24), byte(ttl>>16), byte(ttl>>8), byte(ttl), byte(size>>8), byte(size))
}

// addressRecordLen returns the size of an address record whose owner is a pointer, in bytes.
func addressRecordLen(addrLen int) int { return 2 + fixedLen + addrLen }

// appendAddress appends an address record whose owner is a pointer to the offset.
func (r *reply) appendAddress(at int, addr string, ttl uint32) {
	rrtype := wire.TypeA
	if len(addr) == 16 {
		rrtype = wire.TypeAAAA
	}
	r.appendOwner(at)
	r.appendFixed(rrtype, ttl, len(addr))
	r.dst = append(r.dst, addr...)
}

// addrLenOf returns the address length for the question's type, or 0.
func addrLenOf(rrtype uint16) int {
	switch rrtype {
	case wire.TypeA:
		return 4
	case wire.TypeAAAA:
		return 16
	}
	return 0
}

// rotate rotates the n address records at the offset in dst, so that each comes first equally often. They have one owner,
// so only the RDATA moves.
func (r *reply) rotate(at, n, addrLen int) {
	if n < 2 {
		return
	}
	by := int(r.rotation % uint32(n))
	if by == 0 {
		return
	}
	size := addressRecordLen(addrLen)
	data := r.dst[at+2+fixedLen:]
	reverseAddrs(data, 0, by-1, size, addrLen)
	reverseAddrs(data, by, n-1, size, addrLen)
	reverseAddrs(data, 0, n-1, size, addrLen)
}

// reverseAddrs reverses the order of the addresses first to last, which are size bytes apart.
func reverseAddrs(data []byte, first, last, size, addrLen int) {
	var keep [16]byte
	for ; first < last; first, last = first+1, last-1 {
		a, b := data[first*size:first*size+addrLen], data[last*size:last*size+addrLen]
		copy(keep[:], a)
		copy(a, b)
		copy(b, keep[:addrLen])
	}
}

// Timers of the SOA record in seconds, as in CoreDNS. Only secondary servers use the first three.
const (
	soaRefresh = 7200
	soaRetry   = 1800
	soaExpire  = 86400
	soaMaxTTL  = 300 // longest TTL of the record itself
)

// Labels below the zone in the SOA and NS records.
const (
	labelsNS         = "\x02ns\x03dns"
	labelsHostmaster = "\x0ahostmaster"
)

// soaTail is the size of a SOA record from its serial number on, in bytes.
const soaTail = 20

// prepareSOA builds the zone's two SOA records without the owner and the serial number. The forward one has pointers to
// the domain, which are filled in on use.
func (z *Zone) prepareSOA() {
	const pointer = "\xc0\x00"
	z.soa = z.appendSOA(nil, labelsNS+pointer, labelsHostmaster+pointer)
	z.soaReverse = z.appendSOA(nil, labelsNS+string(z.domain), labelsHostmaster+string(z.domain))
}

// Offsets of the pointers to the domain in a zone's soa.
const (
	soaNSPointer         = fixedLen + len(labelsNS)
	soaHostmasterPointer = soaNSPointer + 2 + len(labelsHostmaster)
)

// fixedLen is the size of a record between owner and RDATA, in bytes.
const fixedLen = 10

func (z *Zone) appendSOA(dst []byte, mname, rname string) []byte {
	dst = binary.BigEndian.AppendUint16(dst, wire.TypeSOA)
	dst = binary.BigEndian.AppendUint16(dst, wire.ClassIN)
	dst = binary.BigEndian.AppendUint32(dst, min(z.ttl, soaMaxTTL))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(mname)+len(rname)+soaTail))
	dst = append(append(dst, mname...), rname...)
	for _, v := range []uint32{0, soaRefresh, soaRetry, soaExpire, z.ttl} {
		dst = binary.BigEndian.AppendUint32(dst, v)
	}
	return dst
}

// appendSOA appends the SOA record of the zone of the current name.
func (r *reply) appendSOA() {
	soa := r.z.soa
	if r.reverse {
		soa = r.z.soaReverse
	}
	at := len(r.dst) + 2
	r.dst = append(r.dst, 0xc0|byte(r.apex>>8), byte(r.apex))
	r.dst = append(r.dst, soa...)
	if !r.reverse {
		pointer := 0xc000 | uint16(r.apex)
		binary.BigEndian.PutUint16(r.dst[at+soaNSPointer:], pointer)
		binary.BigEndian.PutUint16(r.dst[at+soaHostmasterPointer:], pointer)
	}
	binary.BigEndian.PutUint32(r.dst[at+len(soa)-soaTail:], r.z.store.Serial())
}
