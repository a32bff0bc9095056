// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"cmp"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"time"
)

// File layout, see the package comment.
const (
	magic        = "\x8dNCsnap\n"
	trailerMagic = "\npansCN\x8d"
	version      = 1

	headLen  = 48
	entryLen = 16
	tailLen  = 28
)

// A Kind identifies what a section's records are.
type Kind uint16

// The kinds.
const (
	Cache   Kind = 1 // answers of pkg/cache
	Zone    Kind = 2 // cluster objects of pkg/names/zone
	Central Kind = 3 // endpoints of the central resolver, from pkg/upstream
	Pods    Kind = 4 // pods of the node, from pkg/pods

	ClusterSet Kind = 5 // imported cluster objects, in the format of Zone
)

// String returns the name of the kind.
func (k Kind) String() string {
	return cmp.Or(map[Kind]string{Cache: "cache", Zone: "zone", Central: "central", Pods: "pods", ClusterSet: "cluster set"}[k], "unknown")
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli()) }

func appendHead(dst []byte, at ClockState) []byte {
	dst = append(dst, magic...)
	dst = binary.LittleEndian.AppendUint32(dst, version)
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(at.Wall.UnixNano()))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(at.Uptime))
	return append(dst, at.BootID[:]...)
}

// readHead decodes a head of this version.
func readHead(b []byte) ClockState {
	at := ClockState{
		Wall:   time.Unix(0, int64(binary.LittleEndian.Uint64(b[16:]))),
		Uptime: time.Duration(binary.LittleEndian.Uint64(b[24:])),
	}
	copy(at.BootID[:], b[32:headLen])
	return at
}

// An entry is the table row of one section, as package binary encodes it.
type entry struct {
	Kind    Kind
	Version uint16
	Sum     uint32
	Length  uint64
}

// appendTail appends the tail of a file with the given number of bytes before it.
func appendTail(dst []byte, sections int, sum uint32, before int64) []byte {
	start := len(dst)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(sections))
	dst = binary.LittleEndian.AppendUint32(dst, sum)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(before)+tailLen)
	dst = append(dst, trailerMagic...)
	return binary.LittleEndian.AppendUint32(dst, checksum(dst[start:]))
}

// A ClockState is the time as one host reports it.
type ClockState struct {
	Wall   time.Time     // wall clock
	BootID [16]byte      // identifies this boot of the host; zero: unknown
	Uptime time.Duration // since boot, suspended time included
}

var errFuture = errors.New("created in the future")

// since returns the time from earlier to c. Within one boot it uses the uptime, which cannot be set; otherwise it uses the wall
// clock.
func (c ClockState) since(earlier ClockState) (time.Duration, error) {
	passed := c.Wall.Round(0).Sub(earlier.Wall.Round(0))
	if c.BootID == earlier.BootID && c.BootID != [16]byte{} {
		passed = c.Uptime - earlier.Uptime
	}
	if passed < 0 {
		return 0, errFuture
	}
	return passed, nil
}
