// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// fromPrefix answers for the names that are about the prefix itself, or leads on from
// one.
func (l *Worker) fromPrefix(x *extras, from *wire.Peer, now time.Time, dst []byte) ([]byte, bool) {
	q, start := &l.q, len(dst)
	if q.DO && q.CD {
		return dst, false
	}
	if q.Type == wire.TypePTR && !l.detour.led() {
		out, target := x.six.appendReverse(q, dst)
		if dst = out[:start]; target > 0 && l.follow(out, start, target) && x.static != nil {
			var done bool
			if dst, done = l.fromStatic(from, now, dst); done {
				return dst, true
			}
		}
	}
	out, ok := x.six.wellKnown(q, l.detour.taken && l.detour.six != nil, dst)
	if !ok {
		return dst, false
	}
	if out, done := l.deliver(SourceLocal, from, now, out, start); done {
		return out, true
	}
	return l.fromPrefix(x, from, now, out[:start])
}

const (
	nameWellKnown  = "\x08ipv4only\x04arpa\x00"
	nameReverse170 = "\x03170\x010\x010\x03192\x07in-addr\x04arpa\x00"
	nameReverse171 = "\x03171\x010\x010\x03192\x07in-addr\x04arpa\x00"

	wellKnownTTL = 3600 // seconds
	reverseTTL   = 600  // seconds, of the CNAME record that leads on from an address of the prefix
)

// wellKnown appends the answer to q if it is for the name by which clients find the
// prefix, or for what leads back to that: nobody else is to be asked (RFC 8880 section
// 7). No name is below these. made says whether the client gets addresses that are made.
func (s *DNS64) wellKnown(q *wire.Query, made bool, dst []byte) ([]byte, bool) {
	start, name := len(dst), q.Name()
	switch {
	case !bytes.HasSuffix(name, []byte("\x04arpa\x00")): // nearly every name
		return dst, false
	case string(name) == nameWellKnown:
		dst = appendAnswer(dst, q)
		for _, last := range []byte{170, 171} {
			v4 := [4]byte{192, 0, 0, last}
			switch {
			case q.Type == wire.TypeA:
				dst = appendOwn(dst, start, wire.TypeA, wellKnownTTL, v4[:])
			case q.Type == wire.TypeAAAA && made:
				var v6 [16]byte
				s.embed(&v6, &v4)
				dst = appendOwn(dst, start, wire.TypeAAAA, wellKnownTTL, v6[:])
			}
		}
	case string(name) == nameReverse170, string(name) == nameReverse171:
		dst = appendAnswer(dst, q)
		if q.Type == wire.TypePTR {
			dst = appendOwn(dst, start, wire.TypePTR, wellKnownTTL, []byte(nameWellKnown))
		}
	case isBelow(name, nameWellKnown), isBelow(name, nameReverse170), isBelow(name, nameReverse171):
		dst = appendAnswer(dst, q)
		dst[start+3] |= wire.RcodeNXDomain
	default:
		return dst, false
	}
	return dst, true
}

// isBelow tells whether a canonical name is below another.
func isBelow(name []byte, other string) bool {
	kept := len(name) - len(other)
	return kept > 0 && string(name[kept:]) == other && isLabelAt(name, kept)
}

// appendReverse appends the answer to q, for the name of an address of the prefix: the
// alias of the name of its IPv4 address, which has target octets; 0: it is none.
func (s *DNS64) appendReverse(q *wire.Query, dst []byte) (out []byte, target int) {
	var addr [16]byte
	if v6, _ := wire.ReverseAddr(q.Name(), &addr); len(v6) != len(addr) || !s.prefix.Contains(netip.AddrFrom16(addr)) {
		return dst, 0
	}
	var room [32]byte
	v4 := s.extract(&addr)
	name := wire.AppendReverse(room[:0], v4[:])
	start := len(dst)
	return appendOwn(appendAnswer(dst, q), start, wire.TypeCNAME, reverseTTL, name), len(name)
}

// appendAnswer appends the beginning of an answer to q: header and question.
func appendAnswer(dst []byte, q *wire.Query) []byte {
	const bitsAnswer = 0x84 // QR, AA
	return q.AppendQuestion(append(dst, 0, 0, bitsAnswer, 0, 0, 1, 0, 0, 0, 0, 0, 0))
}

// appendOwn appends a record of the name that is asked for to the answer section of
// dst[start:], which has nothing behind that.
func appendOwn(dst []byte, start int, rrtype uint16, ttl uint32, data []byte) []byte {
	dst = append(dst, 0xc0, wire.HeaderLen)
	dst = binary.BigEndian.AppendUint16(dst, rrtype)
	dst = binary.BigEndian.AppendUint16(dst, wire.ClassIN)
	dst = binary.BigEndian.AppendUint32(dst, ttl)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(data)))
	dst = append(dst, data...)
	count := dst[start+6 : start+8]
	binary.BigEndian.PutUint16(count, binary.BigEndian.Uint16(count)+1)
	return dst
}
