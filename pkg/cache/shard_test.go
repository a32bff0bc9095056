// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// bare is an answer without records to a question that holds name and type.
func bare(question []byte, extra ...byte) *Answer {
	msg := append(make([]byte, wire.HeaderLen), question...)
	msg = binary.BigEndian.AppendUint16(msg, wire.ClassIN)
	return &Answer{Msg: append(msg, extra...), Lifetime: time.Minute}
}

func testShard(t *testing.T, size int) *shard {
	t.Helper()
	s, err := newShard(newShared(time.Time{}), size)
	assert.NoError(t, err)
	return s
}

// hashed gives keys a hash that depends on nothing but what is given, the same for all
// types.
func hashed(s *shard, hash func(raw []byte) uint64) func(raw []byte) key {
	return func(raw []byte) key {
		if raw == nil {
			return key{base: hash(raw)}
		}
		k := s.key(raw)
		k.shardBits, k.base = 0, hash(raw)^uint64(k.rrtype)
		return k
	}
}

// TestSameHash stores keys that all have one hash, among them keys whose bytes
// are those of another's answer or of another's name and tail.
func TestSameHash(t *testing.T) {
	t.Parallel()
	hash := func([]byte) uint64 { return 0x0123456789abcdef }
	key := []byte("\x01a\x00\x00\x01\x00")
	plain := bare(key[:5])
	spelled := bare(key[:5], 0xc0, 0x0c, 0, 16, 0, 1, 0, 0, 0, 60, 0, 0)
	tests := []struct {
		name       string
		key, other []byte
		answer     *Answer // under key
	}{
		{"another name", key, []byte("\x01b\x00\x00\x01\x00"), plain},
		{"another type", key, []byte("\x01a\x00\x00\x1c\x00"), plain},
		{"other flags", key, []byte("\x01a\x00\x00\x01\x01"), plain},
		{"without flags", key, []byte("\x01a\x00\x00\x01"), plain},
		{"no key at all", key, nil, plain},
		// flags 00, then 01 and what follows
		{"a subnet that spells class and answer", key, []byte("\x01a\x00\x00\x01\x00\x01\xc0\x0c\x00\x10\x00\x01\x00"), spelled},
		{
			"a name that ends in the other's tail", []byte("\x02aa\x01b\x00\x00\x01\x01b\x00\x00\x01\x00"),
			[]byte("\x02aa\x01b\x00\x00\x01\x00"), bare([]byte("\x02aa\x01b\x00\x00\x01")),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := testShard(t, 1<<14)
			keyOf := hashed(s, hash)
			k, other := keyOf(tt.key), keyOf(tt.other)
			s.store(&k, k.rrtype, tt.answer, 0)
			if _, _, ok := s.find(&k, k.rrtype); !ok {
				t.Errorf("%q is not found", tt.key)
			}
			if e, _, ok := s.find(&other, other.rrtype); ok {
				t.Errorf("%q finds %q, which is under %q", tt.other, e.msg(), tt.key)
			}
			if err := s.checkBy(keyOf); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFewHashes stores, replaces and evicts under hashes of which there are four.
func TestFewHashes(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	s := testShard(t, 4096)
	keyOf := hashed(s, func(raw []byte) uint64 { return uint64(raw[1]%4)<<32 | 7 })
	stored := map[string]byte{} // the mark last stored under each key
	for i := range 20_000 {
		question := []byte{1, byte('a' + r.IntN(26)), 0, 0, byte(1 + r.IntN(2))}
		key := append(bytes.Clone(question), make([]byte, r.IntN(3))...)
		k := keyOf(key)
		if r.IntN(2) == 0 {
			a := bare(question, make([]byte, 1+r.IntN(100))...)
			a.Msg[0] = byte(i)
			s.now = int64(i) * int64(time.Millisecond)
			s.store(&k, k.rrtype, a, 0)
			stored[string(key)] = byte(i)
		}
		if e, _, ok := s.find(&k, k.rrtype); ok {
			e[offFreq] = min(maxFreq, e[offFreq]+1)
			if want, got := stored[string(key)], e.msg()[0]; got != want || !bytes.Equal(e.key(), key) {
				t.Fatalf("%q finds answer %d to %q, want %d", key, got, e.key(), want)
			}
		}
		assert.NoError(t, s.checkBy(keyOf))
	}
	if s.stats.Evictions == 0 {
		t.Error("nothing was evicted")
	}
}

// TestMaxChances asks for everything in the main log. One eviction spares no more
// than its share of them, and then takes one although it was asked for.
func TestMaxChances(t *testing.T) {
	t.Parallel()
	s := testShard(t, 1<<15)
	for i := range 1000 {
		question := []byte{2, byte('a' + i%26), byte(i), 0, 0, 1}
		k := s.key(question)
		s.store(&k, k.rrtype, bare(question, make([]byte, 60)...), 0)
		e, _, ok := s.find(&k, k.rrtype)
		if !ok {
			t.Fatalf("answer %d is not found", i)
		}
		e[offFreq] = 1
	}
	count := 0
	s.each(func(_ int, e entry, proven bool) {
		e[offFreq] = maxFreq
		if proven {
			count++
		}
	})
	before := s.stats.Evictions
	s.evictMain()
	spared, left := 0, 0
	s.each(func(_ int, e entry, proven bool) {
		if e[offFreq] == maxFreq-1 {
			spared++
		}
		if proven {
			left++
		}
	})
	if count <= maxSecondChances || spared != maxSecondChances || left != count-1 || s.stats.Evictions != before+1 {
		t.Errorf("of %d entries %d are spared, %d left, %d evicted", count, spared, left, s.stats.Evictions-before)
	}
	s.now = int64(time.Hour) // all are expired, and none is spared
	entries := s.index.count
	for range 10 {
		s.evictMain()
	}
	if s.stats.Expirations != 10 || s.index.count != entries-10 {
		t.Errorf("of %d expired entries %d are left, %d expired", entries, s.index.count, s.stats.Expirations)
	}
	if err := s.check(); err != nil {
		t.Error(err)
	}
}

// TestNoChances has the owner of what is in the main log change, or the owner's answers
// expire. They are freed at their turn, whatever was asked for.
func TestNoChances(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(s *shard)
		spared bool
	}{
		{name: "nothing changes", change: func(*shard) {}, spared: true},
		{name: "outdated", change: func(s *shard) { s.owners[s.tag([]byte("svc"))-1].Store(1) }},
		{name: "late", change: func(s *shard) { s.now = int64(time.Hour) }},
		{name: "late and asked for since", change: func(s *shard) {
			s.now = int64(time.Hour)
			s.each(func(_ int, e entry, _ bool) { e[offFlags] |= flagStaleUsed })
		}, spared: true},
		{name: "too late, and asked for since", change: func(s *shard) {
			s.now = int64(3 * time.Hour)
			s.each(func(_ int, e entry, _ bool) { e[offFlags] |= flagStaleUsed })
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := testShard(t, 1<<15)
			s.staleWindow.Store(int64(2 * time.Hour))
			for i := range 300 {
				question := []byte{2, byte('a' + i%26), byte(i), 0, 0, 1}
				k := s.key(question)
				s.store(&k, k.rrtype, bare(question, make([]byte, 60)...), 0).setOwner(s.tag([]byte("svc")), 0)
			}
			s.each(func(_ int, e entry, _ bool) { e[offFreq] = maxFreq })
			tail := s.entryAt(s.main.tail).hash()
			tt.change(s)
			s.evictMain()
			spared := false
			s.each(func(_ int, e entry, _ bool) { spared = spared || e.hash() == tail })
			assert.Equal(t, "the tail is spared", tt.spared, spared)
			if err := s.check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestGhostOfAnother puts entries whose ghosts share a place.
func TestGhostOfAnother(t *testing.T) {
	t.Parallel()
	s := testShard(t, 1<<14)
	hash, other := uint64(5<<32|0x10), uint64(5<<32|0x20)
	s.ghosts[s.index.home(hash)] = uint32(hash) | 1
	tests := []struct {
		name     string
		hash     uint64
		worthy   bool
		wantMain bool
	}{
		{name: "another", hash: other},
		{name: "another that is worth it", hash: other, worthy: true, wantMain: true},
		{name: "its own", hash: hash, wantMain: true},
		{name: "its own, once only", hash: hash},
	}
	for _, tt := range tests { // in this order
		if _, log := s.allocate(tt.hash, 64, tt.worthy); (log == &s.main) != tt.wantMain {
			t.Errorf("%s: goes to the main log: %t, want %t", tt.name, !tt.wantMain, tt.wantMain)
		}
	}
}
