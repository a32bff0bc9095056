// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"sync"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A message is the message of an answer under construction.
type message struct {
	q        *wire.Query
	rotation uint32
	dst      []byte
	start    int // offset of the message in dst
	maxSize  int // largest size of the message, in bytes
	answer   int // number of records in the answer section
	near     int // see Result.Near
	extra    int // number of records in the additional section
	ede      int // Extended DNS Error code, or wire.EDENone
	denial   Denial

	dedup   *dedupTable // finds duplicates in the current set of records; nil: there can be none
	steps   int         // remaining budget for finding records; negative: spent
	limited bool        // records are missing because of a bound of the zone, not of maxSize
}

// Bits and offsets of the header.
const (
	bitsAnswer    = 0x84 // third byte: QR, AA
	bitTruncated  = 0x02 // third byte: TC
	offsetAnswer  = 6    // ANCOUNT
	offsetExtra   = 10   // ARCOUNT
	offsetServers = 8    // NSCOUNT
)

// maxReply is the largest message before the OPT record, in bytes.
const maxReply = wire.MaxMessage - 128

// fixedLen is the size of a record between owner and RDATA, in bytes.
const fixedLen = 10

// questionEnd returns the offset after the question.
func (m *message) questionEnd() int { return wire.HeaderLen + len(m.q.Name()) + 4 }

// begin appends the header and the question.
func (m *message) begin() {
	m.dst = append(m.dst, 0, 0, bitsAnswer, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	m.dst = m.q.AppendQuestion(m.dst)
}

// finish writes the rcode and the counts of records: servers is that of the authority section.
func (m *message) finish(rcode byte, servers int) Result {
	h := m.dst[m.start:]
	h[3] = rcode
	binary.BigEndian.PutUint16(h[offsetAnswer:], uint16(m.answer))
	binary.BigEndian.PutUint16(h[offsetServers:], uint16(servers))
	binary.BigEndian.PutUint16(h[offsetExtra:], uint16(m.extra))
	return Result{Verdict: Answered, Denial: m.denial, EDE: m.ede, Limited: m.limited, Near: m.near}
}

// abandon removes the message: the zone gives no answer.
func (m *message) abandon(v Verdict, ede int) Result {
	m.dst = m.dst[:m.start]
	return Result{Verdict: v, EDE: ede}
}

// clear removes all records, and TC.
func (m *message) clear() {
	m.dst = m.dst[:m.start+m.questionEnd()]
	m.dst[m.start+2] &^= bitTruncated
	m.answer = 0
}

// full reports whether the message has no room for addrLen more bytes, and then marks it as truncated.
func (m *message) full(addrLen int) bool {
	if len(m.dst)-m.start+addrLen <= m.maxSize {
		return false
	}
	m.truncate()
	return true
}

// truncated reports whether the message has TC: records of the answer are missing.
func (m *message) truncated() bool { return m.dst[m.start+2]&bitTruncated != 0 }

// spend takes steps from the answer's budget. It reports false once the budget is exceeded.
func (m *message) spend(steps int) bool {
	m.steps -= steps
	return m.steps >= 0
}

// endWalk marks the answer as truncated if a walk overran the budget.
func (m *message) endWalk() {
	if m.steps < 0 {
		m.truncate()
		m.limited = true
	}
}

// appendOwner appends the owner of a record: a compression pointer to the name at that offset in the message.
func (m *message) appendOwner(at int) { m.dst = append(m.dst, 0xc0|byte(at>>8), byte(at)) }

// appendFixed appends the fields between owner and RDATA.
func (m *message) appendFixed(rrtype uint16, ttl uint32, size int) {
	m.dst = append(m.dst, byte(rrtype>>8), byte(rrtype), 0, byte(wire.ClassIN),
		byte(ttl>>24), byte(ttl>>16), byte(ttl>>8), byte(ttl), byte(size>>8), byte(size))
}

// addressRecordLen returns the size of an address record whose owner is a pointer, in bytes.
func addressRecordLen(addrLen int) int { return 2 + fixedLen + addrLen }

// appendAddress appends an address record whose owner is a pointer to the offset.
func (m *message) appendAddress(at int, addr string, ttl uint32) {
	rrtype := wire.TypeA
	if len(addr) == 16 {
		rrtype = wire.TypeAAAA
	}
	m.appendOwner(at)
	m.appendFixed(rrtype, ttl, len(addr))
	m.dst = append(m.dst, addr...)
}

// appendAddrs appends the records of packed addresses of addrLen bytes each, whose owner is at the offset, and returns
// their number.
func (m *message) appendAddrs(at int, list string, addrLen int, ttl uint32) (n int) {
	for ; list != "" && !m.full(addressRecordLen(addrLen)); list = list[addrLen:] {
		m.appendAddress(at, list[:addrLen], ttl)
		n++
	}
	return n
}

// rotate rotates the n address records at the offset in dst, so that each comes first equally often. They have one owner,
// so only the RDATA moves.
func (m *message) rotate(at, n, addrLen int) {
	if n < 2 {
		return
	}
	by := int(m.rotation % uint32(n))
	if by == 0 {
		return
	}
	size := addressRecordLen(addrLen)
	data := m.dst[at+2+fixedLen:]
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

// tooLong reports whether the last record, from the offset in dst on, exceeds the message's size, and then removes it. Unlike full it
// is called after the record is appended, so that a duplicate, which is dropped, needs no room.
func (m *message) tooLong(at int) bool {
	if len(m.dst)-m.start <= m.maxSize {
		return false
	}
	m.dst = m.dst[:at]
	return true
}

// A dedupTable finds duplicate records in a message. It is a hash table of their offsets, by the hash of their bytes.
type dedupTable struct {
	seed  maphash.Seed
	slots []uint32 // offset in the message; 0: free
	buf   [maxDedupSlots]uint32
}

const (
	// minRecordLen is the size of the smallest record, in bytes.
	minRecordLen      = 2 + fixedLen + 4
	maxMessageRecords = maxReply / minRecordLen
	// maxDedupSlots is at least twice the records of the largest message.
	maxDedupSlots = 1 << 13
	// stepsDuplicate is the cost of a duplicate record in steps.
	stepsDuplicate = 16
)

// dedupTables holds the unused tables: an answer uses one while it is built, so there are about as many as CPUs.
//
//nolint:gochecknoglobals // a pool is shared by design and holds no state
var dedupTables = sync.Pool{New: func() any { return &dedupTable{seed: maphash.MakeSeed()} }}

// dropDuplicate reports whether the record from the offset to the end of dst is a duplicate, and then removes it.
func (m *message) dropDuplicate(at int) bool {
	if m.dedup == nil {
		return false
	}
	record, slots := m.dst[at:], m.dedup.slots
	mask := len(slots) - 1
	i := int(maphash.Bytes(m.dedup.seed, record)) & mask
	for ; slots[i] != 0; i = (i + 1) & mask {
		if bytes.HasPrefix(m.dst[m.start+int(slots[i]):at], record) {
			m.dst = m.dst[:at]
			m.spend(stepsDuplicate)
			return true
		}
	}
	slots[i] = uint32(at - m.start)
	return false
}

// endDedup ends the detection of duplicates.
func (m *message) endDedup() {
	if m.dedup != nil {
		m.dedup.slots = nil
		dedupTables.Put(m.dedup)
		m.dedup = nil
	}
}

// hasPTR reports whether the message has a PTR record to the name. It reads all records: there are at most maxPTRs.
func (m *message) hasPTR(label []byte, key string) bool {
	records := m.dst[m.start+m.questionEnd():]
	for len(records) > 0 {
		data := records[2+fixedLen:]
		size := int(records[fixedLen])<<8 | int(records[fixedLen+1])
		if size >= len(label)+len(key) && string(data[:len(label)]) == string(label) && string(data[len(label):len(label)+len(key)]) == key {
			return true
		}
		records = data[size:]
		m.steps--
	}
	return false
}

// truncate marks the message as truncated.
func (m *message) truncate() { m.dst[m.start+2] |= bitTruncated }

// srvFixed is the size of SRV RDATA before the target (RFC 2782), in bytes.
const srvFixed = 6

// appendSRV appends an SRV record up to the target, whose size is in bytes. The owner is a pointer to the offset.
func (m *message) appendSRV(at int, ttl uint32, weight, port uint16, target int) {
	m.appendOwner(at)
	m.appendFixed(wire.TypeSRV, ttl, srvFixed+target)
	m.dst = append(m.dst, 0, 0, byte(weight>>8), byte(weight), byte(port>>8), byte(port))
}

// appendRotated appends the records of packed addresses to the answer, rotated, and returns their number. See appendAddrs.
func (m *message) appendRotated(at int, list string, addrLen int, ttl uint32) int {
	begin := len(m.dst)
	n := m.appendAddrs(at, list, addrLen, ttl)
	m.rotate(begin, n, addrLen)
	m.answer += n
	return n
}
