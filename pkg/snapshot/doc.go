// SPDX-License-Identifier: Apache-2.0

// Package snapshot keeps what an agent knows in one file, for its next start.
//
// [Save] writes the file and [Load] reads it, from a [Folder]. What stands in the records is the business of the
// packages that they come from; here they are octets.
//
// # The file
//
// All numbers are little endian.
//
//	head      8  magic
//	          4  version of the file, 1
//	          4  zero
//	          8  time of day when it was made, ns since 1970, signed
//	          8  ns that the machine had been up
//	         16  what tells this boot of the machine from others
//	sections     records, one after the other: length (as encoding/binary's Uvarint), octets
//	table        for each section:
//	          2  kind
//	          2  version
//	          4  CRC-32C of its octets
//	          8  length
//	tail      4  number of sections
//	          4  CRC-32C of all before the tail
//	          8  length of the file
//	          8  magic, backwards
//	          4  CRC-32C of the tail before it
//
// Sections stand without gaps in the order of the table. The table comes after them, so that they can be written while
// they are made. Magic and version are where they are in every version to come.
//
// # All or nothing
//
// The file is written under another name, synced, given its name, and the folder is synced. Whenever the writer or the
// machine stops, the name stands for the file before, whole, or for the new one, whole. A reader reads all of it, and
// believes nothing before every octet is found to be covered by a checksum that is right. It reads only files that belong
// to its own user or to root and that no other user may write to.
package snapshot
