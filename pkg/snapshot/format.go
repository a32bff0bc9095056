// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"encoding/binary"
	"hash/crc32"
	"time"
)

// The layout that doc.go describes.
const (
	magic   = "\x8dNCsnap\n"
	cigam   = "\npansCN\x8d"
	version = 1

	headLen  = 48
	entryLen = 16
	tailLen  = 28
)

// A Kind says what a section's records are.
type Kind uint16

// The kinds.
const (
	Cache   Kind = 1 // answers, of pkg/cache
	Zone    Kind = 2 // objects of the cluster, of pkg/zone
	Central Kind = 3 // where the central resolver is, of pkg/agent
)

// String names the kind.
func (k Kind) String() string {
	switch k {
	case Cache:
		return "cache"
	case Zone:
		return "zone"
	case Central:
		return "central"
	}
	return "unknown"
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli()) }

func appendHead(dst []byte, at Moment) []byte {
	dst = append(dst, magic...)
	dst = binary.LittleEndian.AppendUint32(dst, version)
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(at.Wall.UnixNano()))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(at.Up))
	return append(dst, at.Boot[:]...)
}

// readHead reads a head of this version.
func readHead(b []byte) Moment {
	at := Moment{
		Wall: time.Unix(0, int64(binary.LittleEndian.Uint64(b[16:]))),
		Up:   time.Duration(binary.LittleEndian.Uint64(b[24:])),
	}
	copy(at.Boot[:], b[32:headLen])
	return at
}

// An entry is a section in the table.
type entry struct {
	kind    Kind
	version uint16
	sum     uint32
	length  uint64
}

func (e *entry) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, uint16(e.kind))
	dst = binary.LittleEndian.AppendUint16(dst, e.version)
	dst = binary.LittleEndian.AppendUint32(dst, e.sum)
	return binary.LittleEndian.AppendUint64(dst, e.length)
}

func readEntry(b []byte) entry {
	return entry{
		kind: Kind(binary.LittleEndian.Uint16(b)), version: binary.LittleEndian.Uint16(b[2:]),
		sum: binary.LittleEndian.Uint32(b[4:]), length: binary.LittleEndian.Uint64(b[8:]),
	}
}

// appendTail appends the tail of a file that has so many octets before it.
func appendTail(dst []byte, sections int, sum uint32, before int64) []byte {
	start := len(dst)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(sections))
	dst = binary.LittleEndian.AppendUint32(dst, sum)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(before)+tailLen)
	dst = append(dst, cigam...)
	return binary.LittleEndian.AppendUint32(dst, checksum(dst[start:]))
}
