// SPDX-License-Identifier: Apache-2.0

package localdata

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A Special is a zone of special-use names (RFC 6761), which are answered here, so that no upstream learns or answers them. The cache
// asks it as it asks an upstream, with [Special.Ask], and keeps its answers.
type Special struct {
	Zone []byte // name of the zone, in canonical wire form

	kind specialKind
}

type specialKind uint8

const (
	specialDenied   specialKind = iota // no name exists
	specialEmpty                       // every name exists, and none has data
	specialLoopback                    // every name has the loopback addresses
	specialReverse                     // the reverse name of a loopback address is localhost, and the names above it exist
)

// specialTTL is the TTL of all answers in seconds. specialSOA returns the numbers of the SOA record, from the serial on (RFC 6303
// section 3).
const specialTTL = 10800

func specialSOA() [5]uint32 { return [5]uint32{1, 3600, 1200, 604800, specialTTL} }

// SpecialZones returns the zones for one word of the configuration key specialNames, nil for an unknown word:
//
//	localhost      loopback addresses and their reverse names (RFC 6761 section 6.3, RFC 6303)
//	invalid        no name exists (RFC 6761 section 6.4)
//	onion          no name exists (RFC 7686)
//	resolver.arpa  no name has data: clients would bypass this cache for a resolver designated here (RFC 9462 section 4)
func SpecialZones(word string) []*Special {
	switch word {
	case "localhost":
		return []*Special{
			{[]byte("\x09localhost\x00"), specialLoopback},
			{[]byte("\x03127\x07in-addr\x04arpa\x00"), specialReverse},
			{wire.AppendReverse(nil, netip.IPv6Loopback().AsSlice()), specialReverse},
		}
	case "invalid":
		return []*Special{{[]byte("\x07invalid\x00"), specialDenied}}
	case "onion":
		return []*Special{{[]byte("\x05onion\x00"), specialDenied}}
	case "resolver.arpa":
		return []*Special{{[]byte("\x08resolver\x04arpa\x00"), specialEmpty}}
	}
	return nil
}

// Ask answers q, a query for a name of the zone, at once. It implements the Asker of package resolve.
func (s *Special) Ask(q []byte, _ time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	var query wire.Query
	query.Parse(q)
	msg := []byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0} // QR, RD, RA
	msg = query.AppendQuestion(msg)
	data, exists := s.lookup(query.Name(), query.Type)
	if !exists {
		msg[3] |= wire.RcodeNXDomain
	}
	if data != nil {
		msg[7] = 1
		msg = appendOwn(msg, query.Type, specialTTL, string(data))
	} else {
		msg[9] = 1
		msg = s.appendSOA(msg, query.Name())
	}
	var answer wire.Message
	err := answer.Parse(msg)
	if err != nil {
		to.Answered(nil, err, batch)
		return
	}
	to.Answered(&answer, nil, batch)
}

// lookup returns the RDATA of the record of a type at a name, nil if there is none, and whether the name exists.
func (s *Special) lookup(name []byte, rrtype uint16) (data []byte, exists bool) {
	switch s.kind {
	case specialEmpty:
		return nil, true
	case specialLoopback:
		switch rrtype {
		case wire.TypeA:
			return []byte{127, 0, 0, 1}, true
		case wire.TypeAAAA:
			return netip.IPv6Loopback().AsSlice(), true
		}
		return nil, true
	case specialReverse:
		for _, addr := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
			reverse := wire.AppendReverse(nil, addr.AsSlice())
			switch {
			case string(reverse) == string(name) && rrtype == wire.TypePTR:
				return []byte("\x09localhost\x00"), true
			case isParent(name, reverse):
				return nil, true
			}
		}
	case specialDenied:
	}
	return nil, false
}

// isParent reports whether child is at or below name.
func isParent(name, child []byte) bool {
	for len(child) > len(name) {
		child = child[1+int(child[0]):]
	}
	return string(child) == string(name)
}

// appendSOA appends the SOA record of the zone to the answer for a name in it.
func (s *Special) appendSOA(msg, name []byte) []byte {
	zone := wire.HeaderLen + len(name) - len(s.Zone)
	pointer := []byte{0xc0 | byte(zone>>8), byte(zone)}
	const hostmaster = "\x0ahostmaster"
	msg = append(msg, pointer...)
	msg = binary.BigEndian.AppendUint16(msg, wire.TypeSOA)
	msg = binary.BigEndian.AppendUint16(msg, wire.ClassIN)
	msg = binary.BigEndian.AppendUint32(msg, specialTTL)
	msg = binary.BigEndian.AppendUint16(msg, uint16(2*len(pointer)+len(hostmaster)+20))
	msg = append(append(append(msg, pointer...), hostmaster...), pointer...)
	for _, v := range specialSOA() {
		msg = binary.BigEndian.AppendUint32(msg, v)
	}
	return msg
}
