// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/hex"

// A loop name is one that nobody but the resolver that made it can know:
//
//	0123456789abcdef0123456789abcdef.loop.node-cache.ZONE
//
// A query for it that comes in shows that whom it was sent to sends queries back. It ends in the zone that the upstream
// is asked for, because that is what decides where a resolver in between sends it. It is not below invalid., which would
// be nobody's too: unbound and systemd-resolved answer all of that themselves (RFC 6761 section 6.4) and would hide the loop.
const loopLabels = "\x04loop\x0anode-cache"

// LoopNonce is how many octets of a loop name are drawn: 128 bits.
const LoopNonce = 16

// loopHead is the octets of a loop name in front of its zone.
const loopHead = 1 + 2*LoopNonce + len(loopLabels)

// maxName is the octets of the longest name (RFC 1035 section 2.3.4).
const maxName = 255

// AppendLoopName appends the loop name of a nonce in a zone, a canonical name. It appends nothing when the zone is too
// long for one.
func AppendLoopName(dst []byte, nonce [LoopNonce]byte, zone []byte) []byte {
	if loopHead+len(zone) > maxName {
		return dst
	}
	dst = append(dst, 2*LoopNonce)
	dst = hex.AppendEncode(dst, nonce[:])
	dst = append(dst, loopLabels...)
	return append(dst, zone...)
}

// IsLoopName tells whether a canonical name is made like one of AppendLoopName, by whomever.
func IsLoopName(name []byte) bool {
	return len(name) > loopHead && name[0] == 2*LoopNonce && string(name[1+2*LoopNonce:loopHead]) == loopLabels
}
