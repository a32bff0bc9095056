// SPDX-License-Identifier: Apache-2.0

// Package snapshot stores an agent's state in one file, for its next start.
//
// [Save] writes the file to a [Folder] and [Load] reads it. The packages that own the records
// define their content; this package treats them as bytes.
//
// # File format
//
// All numbers are little-endian.
//
//	head      8  magic
//	          4  file version, 1
//	          4  zero
//	          8  wall clock at creation, ns since 1970, signed
//	          8  host uptime at creation, ns
//	         16  boot ID of the host
//	sections     records: length (encoding/binary's Uvarint), bytes
//	table        for each section:
//	          2  kind
//	          2  version
//	          4  CRC-32C of its bytes
//	          8  length
//	tail      4  number of sections
//	          4  CRC-32C of everything before the tail
//	          8  length of the file
//	          8  magic, reversed
//	          4  CRC-32C of the tail up to here
//
// Sections follow each other without gaps, in the order of the table. The table comes last, so that
// Save can write sections while they are produced. Magic and version keep their place in every
// future version.
//
// # Atomicity
//
// Save writes a temporary file, syncs it, renames it and syncs the folder. If the process or the
// host stops at any point, the name refers to either the complete old file or the complete new one.
// Load reads the whole file and verifies every checksum before it uses any byte. It accepts only
// files that belong to the process's user or to root and that no other user can write.
package snapshot
