// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// The DNS constants that servers and clients use here.
const (
	typeA, typeTXT, typeAAAA = 1, 16, 28
	classIN                  = 1
	headerLen                = 12
)

var errMessage = errors.New("not a DNS message")

// appendQuery appends a TXT query for name to b.
func appendQuery(b []byte, id uint16, name string) []byte {
	b = binary.BigEndian.AppendUint16(b, id)
	b = append(b, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0) // recursion desired, one question
	for label := range strings.SplitSeq(strings.Trim(name, "."), ".") {
		b = append(b, byte(len(label)))
		b = append(b, label...)
	}
	b = append(b, 0)
	b = binary.BigEndian.AppendUint16(b, typeTXT)
	return binary.BigEndian.AppendUint16(b, classIN)
}

// skipName returns the offset behind the name at off, or -1.
func skipName(msg []byte, off int) int {
	for off >= 0 && off < len(msg) {
		switch n := int(msg[off]); {
		case n == 0:
			return off + 1
		case n >= 0xc0:
			return off + 2
		default:
			off += 1 + n
		}
	}
	return -1
}

// question returns the end and the type of a message's only question.
func question(msg []byte) (end int, qtype uint16, err error) {
	if len(msg) < headerLen || binary.BigEndian.Uint16(msg[4:]) != 1 {
		return 0, 0, errMessage
	}
	end = skipName(msg, headerLen)
	if end < 0 || end+4 > len(msg) {
		return 0, 0, errMessage
	}
	return end + 4, binary.BigEndian.Uint16(msg[end:]), nil
}

// appendAnswer appends the response of the server called name to a query.
func appendAnswer(b, query []byte, name string) ([]byte, error) {
	end, qtype, err := question(query)
	if err != nil || query[2]&0x80 != 0 {
		return b, errMessage
	}
	var data []byte
	switch qtype {
	case typeTXT:
		data = append([]byte{byte(len(name))}, name...)
	case typeA:
		data = addressOf(name)
	case typeAAAA:
		data = append([]byte{0x20, 1, 0xd, 0xb8, 11: 0}, addressOf(name)...)
	}
	start := len(b)
	b = append(b, query[:end]...)
	header := b[start:]
	header[2], header[3] = 0x84|query[2]&1, 0x80 // response, authoritative, recursion available
	clear(header[6:12])
	if data == nil {
		return b, nil // no data
	}
	header[7] = 1
	b = append(b, 0xc0, headerLen)
	b = binary.BigEndian.AppendUint16(b, qtype)
	b = append(b, query[end-2:end]...) // the class
	b = binary.BigEndian.AppendUint32(b, ttl)
	b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
	return append(b, data...), nil
}

// ttl of answers, in seconds. It is longer than any test.
const ttl = 3600

// addressOf derives an IPv4 address from a server's name.
func addressOf(name string) []byte {
	sum := byte(0)
	for _, c := range []byte(name) {
		sum = sum*31 + c
	}
	return []byte{192, 0, 2, sum}
}

// serverName returns the first string of the first TXT record: the name of the server that answered.
func serverName(msg []byte) (string, error) {
	off, _, err := question(msg)
	if err != nil || msg[2]&0x80 == 0 {
		return "", errMessage
	}
	if code := msg[3] & 15; code != 0 {
		return "", fmt.Errorf("answered with rcode %d", code)
	}
	for range binary.BigEndian.Uint16(msg[6:]) {
		off = skipName(msg, off)
		if off < 0 || off+10 > len(msg) {
			return "", errMessage
		}
		rtype, size := binary.BigEndian.Uint16(msg[off:]), int(binary.BigEndian.Uint16(msg[off+8:]))
		data := msg[off+10:]
		if size > len(data) {
			return "", errMessage
		}
		if data = data[:size]; rtype == typeTXT && size > 0 && int(data[0]) < size {
			return string(data[1 : 1+data[0]]), nil
		}
		off += 10 + size
	}
	return "", errors.New("answered without data")
}
