// SPDX-License-Identifier: Apache-2.0

package servertest

import (
	"encoding/binary"
	"strings"
)

const (
	headerLen = 12
	flagQR    = 0x80 // in the third byte of the header
)

// Query returns a query for the A record of name, which is given without its last
// dot. It panics when name is not a host name: that is a mistake in the test.
func Query(id uint16, name string) []byte {
	msg := make([]byte, headerLen, headerLen+len(name)+6)
	binary.BigEndian.PutUint16(msg, id)
	msg[2] = 0x01 // RD
	msg[5] = 1    // QDCOUNT
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 {
			panic("servertest: bad label in " + name)
		}
		msg = append(append(msg, byte(len(label))), label...)
	}
	return append(msg, 0, 0, 1, 0, 1) // root, type A, class IN
}

// Frame returns msg with the two bytes of its length in front, as over TCP.
func Frame(msg []byte) []byte {
	framed := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(msg)), uint16(len(msg)))
	return append(framed, msg...)
}

// ID returns the ID of msg, or 0 when msg is too short to have one.
func ID(msg []byte) uint16 {
	if len(msg) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(msg)
}

// Name returns the question name of msg without its last dot, or "" when msg has no
// whole name.
func Name(msg []byte) string {
	var name []byte
	for rest := msg[min(len(msg), headerLen):]; len(rest) > 0; {
		size := int(rest[0])
		if size == 0 {
			return string(name)
		}
		if size > 63 || len(rest) < 1+size {
			return ""
		}
		if len(name) > 0 {
			name = append(name, '.')
		}
		name = append(name, rest[1:1+size]...)
		rest = rest[1+size:]
	}
	return ""
}

// AppendReply appends to dst what the handler answers to query: the same bytes as a
// reply, filled up with zeros to size bytes.
func AppendReply(dst, query []byte, size int) []byte {
	at := len(dst)
	dst = append(dst, query...)
	if len(query) > 2 {
		dst[at+2] |= flagQR
	}
	if missing := size - len(query); missing > 0 {
		dst = append(dst, make([]byte, missing)...)
	}
	return dst
}
