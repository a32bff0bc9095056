// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"encoding/binary"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Timers of the SOA record in seconds, as CoreDNS has them. Nobody but a
// secondary server minds the first three.
const (
	soaRefresh = 7200
	soaRetry   = 1800
	soaExpire  = 86400
	soaMaxTTL  = 300 // longest TTL of the record itself
)

// Labels below the zone that the SOA and NS records name.
const (
	labelsNS         = "\x02ns\x03dns"
	labelsHostmaster = "\x0ahostmaster"
)

// soaTail is the octets of a SOA record from its serial number on.
const soaTail = 20

// prepareSOA makes the zone's two SOA records, ready but for the owner and the
// serial number. In that of the zone pointers stand for the domain, too; they are
// filled in when it is used.
func (z *Zone) prepareSOA() {
	const pointer = "\xc0\x00"
	z.soa = z.appendSOA(nil, labelsNS+pointer, labelsHostmaster+pointer)
	z.soaReverse = z.appendSOA(nil, labelsNS+string(z.domain), labelsHostmaster+string(z.domain))
}

// Where the pointers to the domain stand in a zone's soa.
const (
	soaNSPointer         = fixedLen + len(labelsNS)
	soaHostmasterPointer = soaNSPointer + 2 + len(labelsHostmaster)
)

// fixedLen is the octets of a record between owner and RDATA.
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

// appendSOA appends the SOA record of the zone that the current name is in.
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
