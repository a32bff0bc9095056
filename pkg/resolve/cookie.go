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

// Cookie layout (RFC 9018 section 4): client cookie, version, reserved, time, hash. Lengths in bytes.
const (
	clientCookieLen = 8
	cookieLen       = clientCookieLen + 16
	cookieVersion   = 1
	cookieLife      = 3600 // seconds for which a cookie is valid
	cookieAhead     = 300  // seconds a cookie's time may be ahead of the clock
)

// A cookieSecret creates server cookies (RFC 7873, RFC 9018). Clients that check cookies can detect
// forged replies. Cookies are not required, but a query with a valid one has a verified source
// address, see clientKey.
type cookieSecret struct {
	k0, k1 uint64
}

func (c *cookieSecret) init(random io.Reader) error {
	var key [16]byte
	if _, err := io.ReadFull(random, key[:]); err != nil {
		return fmt.Errorf("generating the cookie secret: %w", err)
	}
	c.k0 = binary.LittleEndian.Uint64(key[:])
	c.k1 = binary.LittleEndian.Uint64(key[8:])
	return nil
}

// makeCookie writes to dst the full cookie for a client at addr, and returns it. received is the cookie in
// its query, of at least eight bytes.
func (c *cookieSecret) makeCookie(dst *[cookieLen]byte, received []byte, addr netip.Addr, now time.Time) []byte {
	copy(dst[:], received[:clientCookieLen])
	copy(dst[clientCookieLen:], []byte{cookieVersion, 0, 0, 0}) // three reserved bytes
	binary.BigEndian.PutUint32(dst[12:], uint32(now.Unix()))
	binary.LittleEndian.PutUint64(dst[16:], c.hash(dst[:16], addr))
	return dst[:]
}

// hash returns the hash of RFC 9018 section 4.4: over head, the bytes of a cookie before its hash, and over
// addr, the client's address.
func (c *cookieSecret) hash(head []byte, addr netip.Addr) uint64 {
	var in [16 + 16]byte
	n := copy(in[:16], head)
	if addr.Is4() {
		a := addr.As4()
		n += copy(in[16:], a[:])
	} else {
		a := addr.As16()
		n += copy(in[16:], a[:])
	}
	return siphash.Hash(c.k0, c.k1, in[:n])
}

// isValid reports whether this process issued the cookie to a client at addr within the last hour (RFC
// 9018 section 4.3). After a restart the secret is new, and the first reply contains a valid cookie
// again.
func (c *cookieSecret) isValid(cookie []byte, addr netip.Addr, now time.Time) bool {
	if len(cookie) != cookieLen || cookie[clientCookieLen] != cookieVersion {
		return false
	}
	age := int32(uint32(now.Unix()) - binary.BigEndian.Uint32(cookie[12:])) // serial number arithmetic (RFC 1982)
	return -cookieAhead <= age && age <= cookieLife &&
		binary.LittleEndian.Uint64(cookie[16:]) == c.hash(cookie[:16], addr)
}
