// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/hex"

// A loop name is a name that only the resolver that made it can know:
//
//	0123456789abcdef0123456789abcdef.loop.node-cache.ZONE
//
// If the resolver receives a query for its own loop name, an upstream forwards queries back to it.
// The name ends in the zone that the upstream serves, because resolvers in between route by the
// zone. It is not below invalid.: unbound and systemd-resolved answer that zone themselves (RFC
// 6761 section 6.4), which would hide the loop.
const loopLabels = "\x04loop\x0anode-cache"

// LoopNonce is the number of random bytes in a loop name: 128 bits.
const LoopNonce = 16

// loopHead is the length in bytes of a loop name before its zone.
const loopHead = 1 + 2*LoopNonce + len(loopLabels)

// maxName is the bytes of the longest name (RFC 1035 section 2.3.4).
const maxName = 255

// AppendLoopName appends the loop name for a nonce and a canonical zone name. It appends nothing if
// the result would be too long for a name.
func AppendLoopName(dst []byte, nonce [LoopNonce]byte, zone []byte) []byte {
	if loopHead+len(zone) > maxName {
		return dst
	}
	dst = append(dst, 2*LoopNonce)
	dst = hex.AppendEncode(dst, nonce[:])
	dst = append(dst, loopLabels...)
	return append(dst, zone...)
}

// IsLoopName reports whether a canonical name has the form that AppendLoopName makes, from any
// resolver.
func IsLoopName(name []byte) bool {
	return len(name) > loopHead && name[0] == 2*LoopNonce && string(name[1+2*LoopNonce:loopHead]) == loopLabels
}
