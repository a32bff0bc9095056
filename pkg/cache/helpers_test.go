// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

// epoch is the start time of every test.
var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// after returns the time d after the start of the test.
func after(d time.Duration) time.Time { return epoch.Add(d) }

// keyOf returns the key for name, such as "www.example.", with tail after name and type.
func keyOf(name string, rrtype uint16, tail ...byte) []byte {
	var key []byte
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		if label != "" {
			key = append(append(key, byte(len(label))), label...)
		}
	}
	key = append(key, 0)
	key = binary.BigEndian.AppendUint16(key, rrtype)
	return append(key, tail...)
}

// questionLen returns the length of name and type at the start of key.
func questionLen(key []byte) int {
	off := 0
	for key[off] != 0 {
		off += int(key[off]) + 1
	}
	return off + 3
}

// An rr is one record of the queried name.
type rr struct {
	rrtype uint16
	ttl    uint32
	rdata  []byte
}

// answerTo returns the answer to key's question with the given lifetime.
func answerTo(key []byte, life time.Duration, records ...rr) *cache.Answer {
	msg := make([]byte, wire.HeaderLen, 512)
	msg[2], msg[3], msg[5] = 0x81, 0x80, 1
	binary.BigEndian.PutUint16(msg[6:], uint16(len(records)))
	msg = append(msg, key[:questionLen(key)]...)
	msg = binary.BigEndian.AppendUint16(msg, wire.ClassIN)
	a := &cache.Answer{Lifetime: life}
	for _, r := range records {
		msg = append(msg, 0xc0, wire.HeaderLen)
		msg = binary.BigEndian.AppendUint16(msg, r.rrtype)
		msg = binary.BigEndian.AppendUint16(msg, wire.ClassIN)
		a.TTLs = append(a.TTLs, uint16(len(msg)))
		msg = binary.BigEndian.AppendUint32(msg, r.ttl)
		msg = binary.BigEndian.AppendUint16(msg, uint16(len(r.rdata)))
		msg = append(msg, r.rdata...)
	}
	a.Msg = msg
	return a
}

// plain returns an answer of one opaque record of n bytes with life as its TTL.
func plain(key []byte, life time.Duration, n int) *cache.Answer {
	return answerTo(key, life, rr{rrtype: 16, ttl: uint32(life / time.Second), rdata: make([]byte, n)})
}

// rdataOf reads the RDATA of msg, an answer with the layout of a.
func rdataOf(a *cache.Answer, msg []byte) []string {
	var rdata []string
	for _, off := range a.TTLs {
		n := binary.BigEndian.Uint16(msg[off+4:])
		rdata = append(rdata, string(msg[off+6:off+6+n]))
	}
	return rdata
}

// newCache returns a cache of the minimum size.
func newCache(tb testing.TB, p cache.Prefetch) *cache.Cache {
	tb.Helper()
	return newWith(tb, cache.Config{Size: cache.MinSize, Prefetch: p})
}

// newSized returns a cache of size bytes.
func newSized(tb testing.TB, size int64) *cache.Cache {
	tb.Helper()
	return newWith(tb, cache.Config{Size: size})
}

// newStale returns a cache of the minimum size that serves stale answers.
func newStale(tb testing.TB, s cache.ServeStale) *cache.Cache {
	tb.Helper()
	return newWith(tb, cache.Config{Size: cache.MinSize, ServeStale: s})
}

func newWith(tb testing.TB, cfg cache.Config) *cache.Cache {
	tb.Helper()
	c, err := cache.New(cfg, epoch)
	assert.NoError(tb, err)
	return c
}

// newTiny returns a cache of one shard of size bytes.
func newTiny(tb testing.TB, size int) *cache.Cache {
	tb.Helper()
	c, err := cache.NewTiny(size, 1, epoch)
	assert.NoError(tb, err)
	return c
}

// check fails the test if an invariant of c is violated.
func check(tb testing.TB, c *cache.Cache) {
	tb.Helper()
	assert.NoError(tb, c.Check())
}

// nth returns a unique key.
func nth(prefix string, i int) []byte {
	return keyOf(fmt.Sprintf("%s%07d.example.", prefix, i), 1, 0)
}

// freshness looks key up, which counts as a use, and returns its freshness.
func freshness(c *cache.Cache, key []byte, now time.Time) cache.Freshness {
	_, f := c.Lookup(key, now, nil)
	return f
}
