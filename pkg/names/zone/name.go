// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodecache/node-cache/pkg/wire"
)

// isLabel reports whether s is a valid Kubernetes object name that becomes a label: lower-case letters, digits and '-'
// (RFC 1123). It also accepts '_', which Kubernetes refuses and which is harmless here.
func isLabel(s string) bool {
	if s == "" || len(s) > wire.MaxLabel {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// asLabel returns s as a lower-case label, or "" if it cannot be one.
func asLabel(s string) string {
	if s = strings.ToLower(s); isLabel(s) {
		return s
	}
	return ""
}

// appendLabel appends a label in wire form.
func appendLabel(dst []byte, label string) []byte {
	return append(append(dst, byte(len(label))), label...)
}

// wireName converts s, with or without the trailing dot, to canonical wire form.
func wireName(s string) (string, error) {
	name, err := wire.AppendPlainName(nil, s)
	return string(name), err
}

// appendLabels appends the labels of s in canonical wire form, without the root label.
func appendLabels(dst []byte, s string) ([]byte, error) {
	dst, err := wire.AppendPlainName(dst, s)
	if err != nil {
		return dst, err
	}
	return dst[:len(dst)-1], nil
}

// isWithin reports whether the name is the zone or below it. Both are in canonical wire form.
func isWithin(name, zone []byte) bool {
	if !bytes.HasSuffix(name, zone) {
		return false
	}
	for len(name) > len(zone) {
		name = name[1+int(name[0]):]
	}
	return len(name) == len(zone) // else the suffix begins within a label
}

// nodeKey appends the key of a service's node: its two labels in wire form.
func nodeKey(dst []byte, namespace, name string) []byte {
	return appendLabel(appendLabel(dst, name), namespace)
}

// splitKey is the inverse of nodeKey.
func splitKey(key string) (namespace, name string) {
	n := int(key[0])
	return key[n+2:], key[1 : n+1]
}

// keyNamespace returns the namespace label of a node's key, in wire form.
func keyNamespace(key string) string { return key[1+key[0]:] }

// maxDashed is the longest dashed address in bytes: eight groups and seven dashes.
const maxDashed = 39

// appendDashed appends the address as text with dashes for dots and colons. If it would end in a dash, which is invalid
// in a host name, a 0 is appended, which stands for one of the omitted groups.
func appendDashed(dst, addr []byte) []byte {
	start := len(dst)
	if a, ok := netip.AddrFromSlice(addr); ok {
		dst = a.AppendTo(dst)
	}
	for i, c := range dst[start:] {
		if c == '.' || c == ':' {
			dst[start+i] = '-'
		}
	}
	if n := len(dst); n > start && dst[n-1] == '-' {
		dst = append(dst, '0')
	}
	return dst
}

// parseDashed parses an address with dashes for dots or colons, in any spelling, into buf. The result has 4 or 16 bytes,
// or is nil. An IPv4-mapped IPv6 address becomes IPv4.
func parseDashed(label []byte, buf *[16]byte) []byte {
	if addr := parseDashed4(label, buf); addr != nil {
		return addr
	}
	addr := parseDashed6(label, buf)
	if addr != nil && string(addr[:12]) == "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff" {
		return addr[12:]
	}
	return addr
}

// parseDashed4 parses four decimal numbers.
func parseDashed4(label []byte, buf *[16]byte) []byte {
	part, digits, value := 0, 0, 0
	for _, c := range label {
		switch {
		case c == '-' && digits > 0 && part < 3:
			buf[part] = byte(value)
			part++
			digits, value = 0, 0
		case c >= '0' && c <= '9' && (digits == 0 || value > 0): // no leading zero
			digits++
			if value = 10*value + int(c-'0'); value > 255 {
				return nil
			}
		default:
			return nil
		}
	}
	if part != 3 || digits == 0 {
		return nil
	}
	buf[3] = byte(value)
	return buf[:4]
}

// parseDashed6 parses eight hexadecimal groups. Two dashes stand for a run of zero groups, as two colons do.
func parseDashed6(label []byte, buf *[16]byte) []byte {
	*buf = [16]byte{}
	end, gap := 0, -1 // number of bytes parsed, and the offset of the omitted run; negative: none is omitted
	rest, omitted := bytes.CutPrefix(label, []byte("--"))
	if omitted {
		gap = 0
	}
	for len(rest) > 0 {
		n, value := hexGroup(rest)
		if n == 0 || end == len(buf) {
			return nil
		}
		buf[end], buf[end+1] = byte(value>>8), byte(value)
		end += 2
		rest = rest[n:]
		switch {
		case gap < 0 && bytes.HasPrefix(rest, []byte("--")):
			gap, rest = end, rest[2:]
		case len(rest) > 1:
			rest = rest[1:]
		case len(rest) == 1: // a dash at the end
			return nil
		}
	}
	if (end == len(buf)) != (gap < 0) {
		return nil
	}
	if gap >= 0 {
		tail := len(buf) - (end - gap)
		copy(buf[tail:], buf[gap:end])
		clear(buf[gap:tail])
	}
	return buf[:]
}

// hexGroup parses up to four hexadecimal digits before a dash or the end of the text. n is their number, 0 if malformed.
func hexGroup(text []byte) (n, value int) {
	for n < len(text) && text[n] != '-' {
		digit := wire.HexDigit(text[n])
		if digit < 0 || n == 4 {
			return 0, 0
		}
		value = value<<4 | digit
		n++
	}
	return n, value
}

// addrLens are the lengths of packed addresses in bytes, by family.
func addrLens() [2]int { return [2]int{4, 16} }

// packAddrs packs addresses by family, sorted and without duplicates. It skips invalid addresses; IPv4-mapped IPv6
// addresses become IPv4.
func packAddrs(addrs []netip.Addr) (v4, v6 []byte) {
	sorted := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		if a.IsValid() {
			sorted = append(sorted, a.Unmap().WithZone(""))
		}
	}
	slices.SortFunc(sorted, netip.Addr.Compare)
	for _, a := range slices.Compact(sorted) {
		if a.Is4() {
			v4 = append(v4, a.AsSlice()...)
		} else {
			v6 = append(v6, a.AsSlice()...)
		}
	}
	return v4, v6
}

// A zoneName is a name in a zone, and where it is in the message: the question's, or an alias's target.
type zoneName struct {
	z       *Zone
	name    []byte                  // canonical wire form
	at      int                     // offset of the name in the message
	labels  int                     // number of labels left of the zone's domain
	offsets [wire.MaxName / 2]uint8 // offsets of these labels in name
	apex    int                     // offset in the message of the domain, or of in-addr.arpa or ip6.arpa
	reverse bool                    // the name is a reverse name
}

// splitName makes name, at that offset in the message, the current name. It reports false if it is outside of the zone or excluded.
func (n *zoneName) splitName(name []byte, at int) bool {
	left := len(name) - len(n.z.domain)
	if left < 0 || string(name[left:]) != string(n.z.domain) {
		return false
	}
	labels, off := 0, 0
	for off < left {
		n.offsets[labels] = uint8(off)
		labels++
		off += int(name[off]) + 1
	}
	if off != left {
		return false // the domain's bytes, but not its labels
	}
	n.name, n.at, n.labels, n.apex = name, at, labels, at+left
	return !n.within(n.z.excluded)
}

// within reports whether the current name is at or below one of the names, which are in the zone.
func (n *zoneName) within(names [][]byte) bool {
	return slices.ContainsFunc(names, func(name []byte) bool { return isWithin(n.name, name) })
}

// label returns the i-th label of the name from the left, without its length byte.
func (n *zoneName) label(i int) []byte {
	off := int(n.offsets[i])
	return n.name[off+1 : off+1+int(n.name[off])]
}

// labelRange returns the bytes of the labels i to before j.
func (n *zoneName) labelRange(i, j int) []byte {
	end := len(n.name) - len(n.z.domain)
	if j < n.labels {
		end = int(n.offsets[j])
	}
	return n.name[n.offsets[i]:end]
}
