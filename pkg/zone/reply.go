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
	message
	z              *Zone
	now            time.Time
	fallbackFailed bool // the fallback has no answer: stale data denies names
	ttl            uint32

	// The current name: the question's, or an alias's target.
	name    []byte // canonical wire form
	at      int    // offset of the name in the message
	labels  int    // labels left of the zone's domain
	offsets [wire.MaxName / 2]uint8
	apex    int  // offset in the message of the domain, or of the reverse tree
	reverse bool // the name is a reverse name
}

// minSteps, plus the bytes of the message's size, is the budget of steps for finding an answer's records, see
// selection.walk: about 10 microseconds for 1,232 bytes, 0.2 ms for 64 KiB. The budget allows for as many entries that are not given:
// unready, duplicate, or of another topology zone.
const minSteps = 1 << 11

// newReply returns an empty reply to q.
func (z *Zone) newReply(q *wire.Query, c Client, now time.Time, dst []byte, last bool) reply {
	room := min(c.MaxSize, maxReply)
	return reply{
		message: message{q: q, rotation: c.Rotation, dst: dst, start: len(dst), maxSize: room, steps: minSteps + room, ede: wire.EDENone},
		z:       z, now: now, fallbackFailed: last, ttl: z.ttl,
	}
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
	binary.BigEndian.PutUint32(r.dst[at+len(soa)-soaTail:], r.z.cfg.Store.Serial())
}
