// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"sort"
	"strconv"
)

// maxPointers is the most compression pointers that one name may follow. A name of 255 bytes has at
// most 127 labels, so a valid name needs no more. Without the bound a 64 KiB message of pointers
// costs quadratic time (CVE-2024-8508).
const maxPointers = 126

// maxLabelSteps bounds the labels and pointers that all names of a message visit after their first
// pointers. 4,096 addresses of a name below ip6.arpa need 151,552. The bound also limits the cost
// of walking all names of a parsed message.
const maxLabelSteps = 1 << 18

// labelsEnd skips the labels at off. It returns the offset of the root label or pointer that ends
// them, or -1 if the message or the longest name ends first.
func labelsEnd(msg []byte, off int) int {
	for limit := min(len(msg), off+MaxName); off < limit; {
		n := int(msg[off])
		if n == 0 || n > MaxLabel {
			return off
		}
		off += n + 1
	}
	return -1
}

// plainNameEnd returns the offset after the uncompressed name at off, or -1.
func plainNameEnd(msg []byte, off int) int {
	if end := labelsEnd(msg, off); end >= 0 && msg[end] == 0 {
		return end + 1
	}
	return -1
}

// anyNameEnd returns the offset after the name at off, or -1. A pointer at its end is not followed.
func anyNameEnd(msg []byte, off int) int {
	end := labelsEnd(msg, off)
	switch {
	case end < 0:
		return -1
	case msg[end] == 0:
		return end + 1
	case msg[end] < 0xc0 || end+2 > len(msg):
		return -1
	}
	return end + 2
}

// sameName compares the names at a and b, following pointers and ignoring case. Both must have
// passed nameEnd.
func sameName(msg []byte, a, b int) bool {
	for {
		a, b = follow(msg, a), follow(msg, b)
		if a == b {
			return true
		}
		n := int(msg[a])
		if n != int(msg[b]) {
			return false
		}
		if n == 0 {
			return true
		}
		if !equalFold(msg[a+1:a+1+n], msg[b+1:b+1+n]) {
			return false
		}
		a, b = a+n+1, b+n+1
	}
}

// follow returns the offset of the label that the pointers at off lead to.
func follow(msg []byte, off int) int {
	for msg[off] >= 0xc0 {
		off = pointer(msg, off)
	}
	return off
}

// lower writes src to dst in lower case. Both have the same length. Length bytes are below 'A', so
// src may be a whole wire-form name.
func lower(dst, src []byte) {
	for len(src) >= 8 && len(dst) >= 8 {
		x := binary.LittleEndian.Uint64(src)
		binary.LittleEndian.PutUint64(dst, x|letterBits(x)>>2)
		src, dst = src[8:], dst[8:]
	}
	for i, c := range src {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		dst[i] = c
	}
}

// Canonical writes the canonical form of the uncompressed wire-form name to dst, which has the same
// length.
func Canonical(dst, name []byte) { lower(dst, name) }

// equalFold compares two strings of the same length, ignoring the case of ASCII letters (RFC 4343).
// Bytes above 127 must match exactly.
func equalFold(a, b []byte) bool {
	for i, c := range a {
		d := b[i]
		if c == d {
			continue
		}
		if c|0x20 != d|0x20 || c|0x20 < 'a' || c|0x20 > 'z' {
			return false
		}
	}
	return true
}

// AppendText appends the wire-form name in presentation format (RFC 1035 section 5.1), with a final
// dot. It escapes all bytes but letters, digits, '-', '_' and '*'.
func AppendText(dst, name []byte) []byte {
	if len(name) == 1 {
		return append(dst, '.')
	}
	for name[0] != 0 {
		label := name[1 : 1+name[0]]
		for _, c := range label {
			switch {
			case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '*':
				dst = append(dst, c)
			default:
				dst = append(dst, '\\', '0'+c/100, '0'+c/10%10, '0'+c%10)
			}
		}
		dst = append(dst, '.')
		name = name[1+name[0]:]
	}
	return dst
}

// ErrName is the error of text that is not a domain name.
var ErrName = errors.New("not a domain name")

// AppendName appends the canonical wire form of a name in presentation format (RFC 1035 section 5.1), with or without the final
// dot. On an error, which is [ErrName], it returns dst.
func AppendName(dst []byte, text string) ([]byte, error) {
	start := len(dst)
	if text == "." {
		return append(dst, 0), nil
	}
	for end := false; !end; {
		label := len(dst)
		dst = append(dst, 0)
		var size int
		dst, size = appendLabel(dst, text)
		if dst[label] = byte(len(dst) - label - 1); size < 0 || dst[label] == 0 || len(dst)-start >= MaxName {
			return dst[:start], ErrName
		}
		end = len(text)-size <= 1 // nothing is left but perhaps the final dot
		text = text[min(size+1, len(text)):]
	}
	return append(dst, 0), nil
}

// appendLabel appends the bytes of the label that text begins with, in lower case. It returns its size in text, -1 if the label is invalid.
func appendLabel(dst []byte, text string) (_ []byte, size int) {
	start, at := len(dst), 0
	for at < len(text) && text[at] != '.' {
		c := text[at]
		at++
		if c == '\\' {
			switch rest := text[at:]; {
			case len(rest) >= 3 && isDigit(rest[0]) && isDigit(rest[1]) && isDigit(rest[2]):
				n, err := strconv.ParseUint(rest[:3], 10, 8)
				if err != nil {
					return dst, -1
				}
				c = byte(n)
				at += 3
			case rest == "" || isDigit(rest[0]):
				return dst, -1
			default:
				c = rest[0]
				at++
			}
		}
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if dst = append(dst, c); len(dst)-start > MaxLabel {
			return dst, -1
		}
	}
	return dst, at
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// AppendPlainName is [AppendName] for names of hosts: it refuses the root, escapes, and bytes other than visible ASCII.
func AppendPlainName(dst []byte, text string) ([]byte, error) {
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c > '~' || c == '\\' {
			return dst, ErrName
		}
	}
	if text == "." {
		return dst, ErrName
	}
	return AppendName(dst, text)
}

// pointerReach is one more than the highest offset that fits a compression pointer.
const pointerReach = 1 << 14

// A labelSet records the offsets of labels that a compression pointer may lead to.
//
// A valid pointer leads only to such an offset, so a name consists of other names' labels only.
// Later edits (question case, TTLs, the OPT record, truncation, rotation of addresses) then cannot
// change a checked name or turn it into a loop.
type labelSet [pointerReach / 64]uint64

// reset empties the set for a message of size bytes.
func (s *labelSet) reset(size int) { clear(s[:min(size/64+1, len(s))]) }

func (s *labelSet) add(off int) {
	if off < pointerReach {
		s[off/64] |= 1 << (off % 64)
	}
}

func (s *labelSet) has(off int) bool { return s[off/64]&(1<<(off%64)) != 0 }

// addLabels adds the labels from off up to the root label or pointer at stop.
func (s *labelSet) addLabels(msg []byte, off, stop int) {
	for ; off < stop; off += int(msg[off]) + 1 {
		s.add(off)
	}
	s.add(stop)
}

// nameEnd returns the offset after the name at off. It checks that every pointer leads to a label
// of an earlier name, and that the name has at most [MaxName] bytes. It returns -1 if the name is
// malformed.
func (m *Message) nameEnd(msg []byte, off int) int {
	stop := labelsEnd(msg, off)
	if stop < 0 {
		return -1
	}
	m.labels.addLabels(msg, off, stop)
	if msg[stop] == 0 {
		return stop + 1
	}
	end, size := stop+2, stop-off+1
	to := m.target(msg, stop, off)
	if to < 0 {
		return -1
	}
	for range maxPointers { // the labels at to were checked with the name that they belong to
		stop = to
		for ; msg[stop] != 0 && msg[stop] <= MaxLabel; stop += int(msg[stop]) + 1 {
			m.labelSteps++
		}
		m.labelSteps++
		if size += stop - to; size > MaxName || m.labelSteps > maxLabelSteps {
			return -1
		}
		if msg[stop] == 0 {
			return end
		}
		to = pointer(msg, stop)
	}
	return -1
}

// target returns where the pointer at off leads. It returns -1 unless that is a label before start,
// where the name begins.
func (m *Message) target(msg []byte, off, start int) int {
	if msg[off] < 0xc0 || off+2 > len(msg) {
		return -1
	}
	to := pointer(msg, off)
	if to >= start || !m.isLabel(msg, to) {
		return -1
	}
	return to
}

// pointer returns the target of the compression pointer at off.
func pointer(msg []byte, off int) int {
	return int(binary.BigEndian.Uint16(msg[off:]) & (pointerReach - 1))
}

// isLabel reports whether a pointer may lead to off: to a label of a parsed name, or of an
// uncompressed name in the RDATA of a type that Parse does not inspect. Some servers compress
// against the signer of an RRSIG. Addresses do not count, because they may be rotated.
func (m *Message) isLabel(msg []byte, off int) bool {
	if m.labels.has(off) {
		return true
	}
	i := sort.Search(len(m.Records), func(i int) bool { return m.Records[i].Data() > off }) - 1
	if i < 0 || m.Records[i].Type == TypeA || m.Records[i].Type == TypeAAAA {
		return false
	}
	r := m.Records[i]
	if _, names, _ := nameLayout(r.Type); names > 0 || plainNameEnd(msg[:r.Data()+int(r.Size)], off) < 0 {
		return false
	}
	m.labels.addLabels(msg, off, labelsEnd(msg, off))
	return true
}

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

// AppendLoopName appends the loop name for a nonce and a canonical zone name. It appends nothing if
// the result would be too long for a name.
func AppendLoopName(dst []byte, nonce [LoopNonce]byte, zone []byte) []byte {
	if loopHead+len(zone) > MaxName {
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
			length := len(dst)
			dst = strconv.AppendUint(append(dst, 0), uint64(addr[i]), 10)
			dst[length] = byte(len(dst) - length - 1)
		}
		return append(dst, reverseTree4...)
	}
	const digits = "0123456789abcdef"
	for i := len(addr) - 1; i >= 0; i-- {
		dst = append(dst, 1, digits[addr[i]&0xf], 1, digits[addr[i]>>4])
	}
	return append(dst, reverseTree6...)
}
