// SPDX-License-Identifier: Apache-2.0

package snapshot

import "encoding/binary"

// FixChecksums corrects the checksums and the length in data, as far as its layout can be read.
func FixChecksums(data []byte) {
	if len(data) < headLen+tailLen {
		return
	}
	copy(data, magic)
	binary.LittleEndian.PutUint32(data[len(magic):], version)
	body, tail := data[:len(data)-tailLen], data[len(data)-tailLen:]
	n := int64(binary.LittleEndian.Uint32(tail))
	if rest := body[headLen:]; n*entryLen <= int64(len(rest)) {
		table := rest[int64(len(rest))-n*entryLen:]
		rest = rest[:len(rest)-len(table)]
		for ; len(table) > 0; table = table[entryLen:] {
			length := binary.LittleEndian.Uint64(table[8:])
			if length > uint64(len(rest)) {
				break
			}
			binary.LittleEndian.PutUint32(table[4:], checksum(rest[:length]))
			rest = rest[length:]
		}
	}
	copy(tail, appendTail(nil, int(n), checksum(body), int64(len(body))))
}
