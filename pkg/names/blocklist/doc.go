// SPDX-License-Identifier: Apache-2.0

// Package blocklist finds the names that list files block, and answers for them.
//
// A line of a file is one of these; a file may mix them:
//
//	0.0.0.0 a.example b.example     hosts(5): blocks the names; 127.0.0.0/8, :: and ::1 too
//	a.example                       blocks the name
//	*.a.example                     blocks the names below it
//	a.example CNAME .               the same as records of a response policy zone (RPZ)
//	*.a.example CNAME .
//	a.example CNAME rpz-passthru.   exception: no list blocks the name; with *. the names below it
//
// Other addresses, and other triggers and actions of RPZ, are counted and skipped: a list must never block what it does not name.
//
// A list of a million names takes some 30 MB: the names in wire form, one after the other, and a hash table of their offsets.
// Queries take no lock. When a file changes, a new list is built beside the old one and replaces it atomically.
package blocklist
