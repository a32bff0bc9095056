// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"strconv"
)

// reverseZones are the zones that hold the reverse names of a masked prefix and no
// others: one if the prefix ends at an octet of an IPv4 address or a nibble of an
// IPv6 address, else up to 128 or 8 (RFC 1035 section 3.5, RFC 3596 section 2.5).
func reverseZones(prefix netip.Prefix) []string {
	step, root := 8, "in-addr.arpa."
	if prefix.Addr().Is6() {
		step, root = 4, "ip6.arpa."
	}
	parts := (prefix.Bits() + step - 1) / step
	spare := parts*step - prefix.Bits()
	zones := make([]string, 0, 1<<spare)
	for n := range 1 << spare {
		zones = append(zones, reverseZone(prefix.Addr().AsSlice(), step, parts, n)+root)
	}
	return zones
}

// reverseZone spells the first parts of an address backwards, n added to the last
// of them. A part is step bits.
func reverseZone(addr []byte, step, parts, n int) string {
	name := ""
	for i := range parts {
		value := int(addr[i*step/8])
		if step == 4 {
			value = value >> (4 * (1 - i%2)) & 0xf
		}
		if i == parts-1 {
			value += n
		}
		base := 10
		if step == 4 {
			base = 16
		}
		name = strconv.FormatInt(int64(value), base) + "." + name
	}
	return name
}
