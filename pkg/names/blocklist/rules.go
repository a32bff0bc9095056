// SPDX-License-Identifier: Apache-2.0

package blocklist

import (
	"bytes"
	"hash/maphash"
)

// kinds is a set of rules for one name.
type kinds uint8

const (
	blocksName  kinds = 1 << iota // the name
	blocksBelow                   // the names below it
	exceptsName
	exceptsBelow

	below   = blocksBelow | exceptsBelow
	excepts = exceptsName | exceptsBelow
)

const (
	chunkBits = 16 // chunks of 64 KiB, so that adding names never copies those before
	chunkSize = 1 << chunkBits
	placeBits = 28 // a slot has the place of a name in the lower bits, and its kinds in the upper ones
	placeMask = 1<<placeBits - 1
)

// rules are names with their kinds. Once built they are immutable.
type rules struct {
	seed   maphash.Seed
	chunks [][]byte // canonical names in wire form; none spans two chunks
	slots  []uint32 // hash table with linear probing; its length is a power of two. An unused slot is 0, else the place counts from 1
	names  int      // used slots
	has    kinds    // union of all kinds
}

func newRules() *rules { return &rules{seed: maphash.MakeSeed(), slots: make([]uint32, 64)} }

// bytes returns the memory of the rules.
func (r *rules) bytes() int64 { return int64(len(r.chunks))*chunkSize + int64(len(r.slots))*4 }

// add adds a rule for a canonical name. It returns false if the list would exceed limit bytes.
func (r *rules) add(name []byte, kind kinds, limit int64) bool {
	slot := r.slot(name)
	if *slot == 0 {
		if 4*r.names >= 3*len(r.slots) {
			if r.bytes()+int64(len(r.slots))*8 > limit { // the new table beside the old one
				return false
			}
			r.grow()
			slot = r.slot(name)
		}
		last := len(r.chunks) - 1
		if last < 0 || len(r.chunks[last])+len(name) > chunkSize {
			if r.bytes()+chunkSize > limit {
				return false
			}
			r.chunks = append(r.chunks, make([]byte, 0, chunkSize))
			last++
		}
		*slot = uint32(last<<chunkBits+len(r.chunks[last])) + 1
		r.chunks[last] = append(r.chunks[last], name...)
		r.names++
	}
	*slot |= uint32(kind) << placeBits
	r.has |= kind
	return true
}

// slot returns the slot of a name, or the unused one where it belongs.
func (r *rules) slot(name []byte) *uint32 {
	for i := maphash.Bytes(r.seed, name); ; i++ {
		slot := &r.slots[i&uint64(len(r.slots)-1)]
		if *slot == 0 || bytes.HasPrefix(r.at(*slot), name) { // no name is the beginning of another one: each ends with the root label
			return slot
		}
	}
}

// at returns the bytes from the name of a used slot on.
func (r *rules) at(slot uint32) []byte {
	place := slot&placeMask - 1
	return r.chunks[place>>chunkBits][place&(chunkSize-1):]
}

// grow doubles the hash table.
func (r *rules) grow() {
	old := r.slots
	r.slots = make([]uint32, 2*len(old))
	for _, slot := range old {
		if slot != 0 {
			name := r.at(slot)
			*r.slot(name[:nameLen(name)]) = slot
		}
	}
}

// nameLen returns the length of the wire-form name that b begins with.
func nameLen(b []byte) int {
	n := 0
	for b[n] != 0 {
		n += 1 + int(b[n])
	}
	return n + 1
}

// find returns the rule for a canonical name: the name in it, nil for none, and its kind. Any exception comes before any block, and a
// longer name before a shorter one.
func (r *rules) find(name []byte) (rule []byte, kind kinds) {
	wanted := blocksName | exceptsName
	for rest := name; len(rest) > 1; rest = rest[1+int(rest[0]):] {
		if slot := *r.slot(rest); slot != 0 {
			switch found := kinds(slot>>placeBits) & wanted; {
			case found&excepts != 0:
				return r.at(slot)[:len(rest)], found & excepts
			case found != 0 && rule == nil:
				rule, kind = r.at(slot)[:len(rest)], found
			}
		}
		if wanted = below; r.has&below == 0 {
			break
		}
	}
	return rule, kind
}
