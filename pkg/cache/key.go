// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"math/bits"
)

// denied is the type under which the denial of a name is stored: it denies all of
// them (RFC 2308 section 5), and no question has it (RFC 6895 section 3.1).
const denied = 0

// A key is what an answer is stored under, read. All keys of a name have one shard,
// which the low bits of its hash choose, so that one lock is enough to know all about it.
type key struct {
	raw    []byte // name, canonical and in wire form, type and tail
	n      int    // octets of the name
	rrtype uint16
	low    uint64 // of the name's hash: chooses the shard
	rest   uint64 // hash of all but the type
}

// lowBits are the bits of a hash that choose the shard.
const lowBits = maxShards - 1

// mixer is any odd number whose bits look random.
const mixer = 0x9e3779b97f4a7c15

// flagged is what follows the name in nearly every key: type and flags, no subnet.
const flagged = 3

// key reads a key of the public interface, which must be whole.
func (sh *shared) key(raw []byte) key {
	n := 0
	for raw[n] != 0 {
		n += int(raw[n]) + 1
	}
	if n++; n != len(raw)-flagged {
		return sh.oddKey(raw, n)
	}
	// As it is written here, with the length and not with n, a CPU that foresees the
	// comparison need not wait for the walk over the labels.
	name := raw[:len(raw)-flagged]
	hash := maphash.Bytes(sh.seed, name)
	return key{
		raw: raw, n: len(name), rrtype: binary.BigEndian.Uint16(raw[len(raw)-flagged:]),
		low: hash & lowBits, rest: hash ^ tailed ^ uint64(raw[len(raw)-1])<<16,
	}
}

// tailed tells keys with a tail of one octet from those without one.
const tailed = 1 << 24

// oddKey is the key of which n octets are the name.
func (sh *shared) oddKey(raw []byte, n int) key {
	hash := maphash.Bytes(sh.seed, raw[:n])
	k := key{raw: raw, n: n, rrtype: binary.BigEndian.Uint16(raw[n:]), low: hash & lowBits, rest: hash}
	if tail := k.tail(); len(tail) > 0 {
		k.rest ^= maphash.Bytes(sh.seed, tail) &^ 0xffff
	}
	return k
}

// denialKey is the key of the denial of name for questions with this tail.
func (sh *shared) denialKey(name, tail []byte) key {
	return sh.key(append(append(bytes.Clone(name), 0, denied), tail...))
}

// tail is flags, and a client's subnet where answers differ by it.
func (k *key) tail() []byte { return k.raw[k.n+2:] }

// hash is the hash of the key with rrtype in place of its own type.
func (k *key) hash(rrtype uint16) uint64 {
	high, low := bits.Mul64(k.rest^uint64(rrtype), mixer)
	return (high^low)&^lowBits | k.low
}
