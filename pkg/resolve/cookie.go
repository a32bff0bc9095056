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
)

// A cookieJar makes server cookies (RFC 7873, RFC 9018). They let a client that
// checks them tell our replies from forged ones. None is asked for in return: on
// a node's own link the client's address is not in doubt.
type cookieJar struct {
	k0, k1 uint64
}

func (j *cookieJar) init(random io.Reader) error {
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
func (j *cookieJar) bake(dst *[cookieLen]byte, received []byte, addr netip.Addr, now time.Time) []byte {
	var in [16 + 16]byte
	copy(in[:], received[:clientCookieLen])
	in[8] = 1 // version; three reserved octets follow
	binary.BigEndian.PutUint32(in[12:], uint32(now.Unix()))
	n := 16
	if addr.Is4() {
		a := addr.As4()
		n += copy(in[16:], a[:])
	} else {
		a := addr.As16()
		n += copy(in[16:], a[:])
	}
	copy(dst[:], in[:16])
	binary.LittleEndian.PutUint64(dst[16:], siphash.Hash(j.k0, j.k1, in[:n]))
	return dst[:]
}
