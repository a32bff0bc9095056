// SPDX-License-Identifier: Apache-2.0

package wire

import "bytes"

// The trees of names that lead back from addresses, in canonical wire form (RFC 1035
// section 3.5, RFC 3596 section 2.5).
const (
	reverseTree4 = "\x07in-addr\x04arpa\x00"
	reverseTree6 = "\x03ip6\x04arpa\x00"
)

// ReverseAddr reads the address that name, a canonical name in wire form, leads back
// from into buf. The result is a part of buf: 4 octets for a name in in-addr.arpa and 16
// for one in ip6.arpa, whatever the address, so that one of IPv4 in the form of IPv6 has
// 16. It is nil for every other name, and for those of less or more than one address;
// what buf holds means nothing then. tree is the offset in name at which the tree's own
// name begins.
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

// reverseAddr4 reads four labels of decimal numbers, the last octet first. That they end
// where the tree begins says that the tree begins with a label of the name.
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

// decimal reads an octet written without leading zeros.
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

// reverseAddr6 reads thirty-two labels of one hexadecimal digit, the last first.
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
		octet := &buf[len(buf)-1-i/2]
		if i%2 == 0 {
			*octet = byte(digit)
		} else {
			*octet |= byte(digit << 4)
		}
	}
	return buf[:]
}

// HexDigit is the value of a hexadecimal digit as canonical names spell it, without
// capitals. It is -1 for any other octet.
func HexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	}
	return -1
}

// AppendReverse appends the canonical name, in wire form, that leads back from an
// address of 4 or 16 octets.
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

// appendDecimalLabel appends a label with the decimal number.
func appendDecimalLabel(dst []byte, n byte) []byte {
	switch {
	case n >= 100:
		return append(dst, 3, '0'+n/100, '0'+n/10%10, '0'+n%10)
	case n >= 10:
		return append(dst, 2, '0'+n/10, '0'+n%10)
	}
	return append(dst, 1, '0'+n)
}
