// SPDX-License-Identifier: Apache-2.0

package wire

import "bytes"

// The zones of reverse names in canonical wire form (RFC 1035 section 3.5, RFC 3596 section 2.5).
const (
	reverseTree4 = "\x07in-addr\x04arpa\x00"
	reverseTree6 = "\x03ip6\x04arpa\x00"
)

// ReverseAddr decodes the address in name, a canonical wire-form reverse name, into buf. The result
// is a slice of buf: 4 bytes for a name in in-addr.arpa, 16 for one in ip6.arpa, also for an
// IPv4-mapped address. It is nil for other names and for names that hold more or less than one
// address; the content of buf is then undefined. tree is the offset in name of the zone.
func ReverseAddr(name []byte, buf *[16]byte) (addr []byte, tree int) {
	switch {
	case bytes.HasSuffix(name, []byte(reverseTree4)):
		tree = len(name) - len(reverseTree4)
		return reverseAddr4(name[:tree], buf), tree
	case bytes.HasSuffix(name, []byte(reverseTree6)):
		tree = len(name) - len(reverseTree6)
		return reverseAddr6(name[:tree], buf), tree
	}
	return nil, 0
}

// reverseAddr4 decodes four labels of decimal numbers, the last byte first. The labels must end
// exactly where the zone begins.
func reverseAddr4(labels []byte, buf *[16]byte) []byte {
	for i := 3; i >= 0; i-- {
		if len(labels) == 0 || int(labels[0]) >= len(labels) {
			return nil
		}
		n, ok := decimal(labels[1 : 1+labels[0]])
		if !ok {
			return nil
		}
		buf[i] = n
		labels = labels[1+labels[0]:]
	}
	if len(labels) != 0 {
		return nil
	}
	return buf[:4]
}

// decimal parses a byte without leading zeros.
func decimal(text []byte) (byte, bool) {
	if len(text) == 0 || len(text) > 3 || text[0] == '0' && len(text) > 1 {
		return 0, false
	}
	n := 0
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return byte(n), n < 256
}

// reverseAddr6 decodes 32 labels of one hexadecimal digit, the last digit first.
func reverseAddr6(labels []byte, buf *[16]byte) []byte {
	const digits = 2 * len(buf)
	if len(labels) != 2*digits {
		return nil
	}
	for i := range digits {
		digit := HexDigit(labels[2*i+1])
		if labels[2*i] != 1 || digit < 0 {
			return nil
		}
		b := &buf[len(buf)-1-i/2]
		if i%2 == 0 {
			*b = byte(digit)
		} else {
			*b |= byte(digit << 4)
		}
	}
	return buf[:]
}

// HexDigit returns the value of a lower-case hexadecimal digit, or -1 for any other byte.
func HexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	}
	return -1
}

// AppendReverse appends the canonical wire-form reverse name of an address of 4 or 16 bytes.
func AppendReverse[T string | []byte](dst []byte, addr T) []byte {
	if len(addr) == 4 {
		for i := len(addr) - 1; i >= 0; i-- {
			dst = appendDecimalLabel(dst, addr[i])
		}
		return append(dst, reverseTree4...)
	}
	const digits = "0123456789abcdef"
	for i := len(addr) - 1; i >= 0; i-- {
		dst = append(dst, 1, digits[addr[i]&0xf], 1, digits[addr[i]>>4])
	}
	return append(dst, reverseTree6...)
}

// appendDecimalLabel appends n as a label of decimal digits.
func appendDecimalLabel(dst []byte, n byte) []byte {
	switch {
	case n >= 100:
		return append(dst, 3, '0'+n/100, '0'+n/10%10, '0'+n%10)
	case n >= 10:
		return append(dst, 2, '0'+n/10, '0'+n%10)
	}
	return append(dst, 1, '0'+n)
}
