// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/dchest/siphash"
)

// Octets of a cookie as RFC 9018 section 4 lays it out: the client's part,
// version, reserved, time, hash.
const (
	clientCookieLen = 8
	cookieLen       = clientCookieLen + 16
	cookieVersion   = 1
	cookieLife      = 3600 // seconds for which a cookie is valid
	cookieAhead     = 300  // seconds by which it may be ahead of the clock
)

// A cookieJar makes server cookies (RFC 7873, RFC 9018). They let a client that
// checks them tell our replies from forged ones. None is required in
// return, but a query with a valid one has a proven source address, see clientKey.
type cookieSecret struct {
	k0, k1 uint64
}

func (j *cookieSecret) init(random io.Reader) error {
	var key [16]byte
	if _, err := io.ReadFull(random, key[:]); err != nil {
		return fmt.Errorf("drawing the cookie secret: %w", err)
	}
	j.k0 = binary.LittleEndian.Uint64(key[:])
	j.k1 = binary.LittleEndian.Uint64(key[8:])
	return nil
}

// bake writes the whole cookie for a client that sent received, of at least
// eight octets, from addr, to dst, and returns it.
func (j *cookieSecret) makeCookie(dst *[cookieLen]byte, received []byte, addr netip.Addr, now time.Time) []byte {
	copy(dst[:], received[:clientCookieLen])
	copy(dst[clientCookieLen:], []byte{cookieVersion, 0, 0, 0}) // three reserved bytes
	binary.BigEndian.PutUint32(dst[12:], uint32(now.Unix()))
	binary.LittleEndian.PutUint64(dst[16:], j.hash(dst[:16], addr))
	return dst[:]
}

// hash is that of RFC 9018 section 4.4, of a cookie but its hash and the client's address.
func (j *cookieSecret) hash(head []byte, addr netip.Addr) uint64 {
	var in [16 + 16]byte
	n := copy(in[:16], head)
	if addr.Is4() {
		a := addr.As4()
		n += copy(in[16:], a[:])
	} else {
		a := addr.As16()
		n += copy(in[16:], a[:])
	}
	return siphash.Hash(j.k0, j.k1, in[:n])
}

// proves reports whether a cookie was given to a client at addr no longer ago than an hour
// (RFC 9018 section 4.3). A restart draws another secret: the reply to the first query has a
// cookie that is valid again.
func (j *cookieSecret) isValid(cookie []byte, addr netip.Addr, now time.Time) bool {
	if len(cookie) != cookieLen || cookie[clientCookieLen] != cookieVersion {
		return false
	}
	age := int32(uint32(now.Unix()) - binary.BigEndian.Uint32(cookie[12:])) // serial number arithmetic (RFC 1982)
	return -cookieAhead <= age && age <= cookieLife &&
		binary.LittleEndian.Uint64(cookie[16:]) == j.hash(cookie[:16], addr)
}
