// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

// TestRestoredAges counts the time between dump and restore.
func TestRestoredAges(t *testing.T) {
	t.Parallel()
	c := staleCache(t)
	key, denied := nth("a", 1), nth("b", 1)
	c.Put(key, plain(key, 100*time.Second, 10), epoch)
	c.Put(denied, soaDenial(denied, 60*time.Second), epoch)
	failed := nth("f", 1)
	c.PutFailure(failed, answerTo(failed, 0).Msg, time.Minute, time.Minute, epoch)
	records := dump(t, c, everything, after(20*time.Second))
	tests := []struct {
		away       time.Duration
		key        []byte
		want, then cache.Freshness // at once, and after it was put to rest
		ttl        uint32
		rcode      byte
	}{
		{0, key, cache.Fresh, cache.Fresh, 80, 0},
		{50 * time.Second, key, cache.Fresh, cache.Fresh, 30, 0},
		{79 * time.Second, key, cache.Fresh, cache.Fresh, 1, 0},
		{80 * time.Second, key, cache.Stale, cache.StaleBackoff, 30, 0},
		{time.Hour + 79*time.Second, key, cache.Stale, cache.StaleBackoff, 30, 0},
		{time.Hour + 80*time.Second, key, cache.Absent, cache.Absent, 0, 0},
		{0, denied, cache.Fresh, cache.Fresh, 40, 3},
		{39 * time.Second, denied, cache.Fresh, cache.Fresh, 1, 3},
		{40 * time.Second, denied, cache.Stale, cache.StaleBackoff, 30, 3},
		{0, failed, cache.Absent, cache.Absent, 0, 0},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s after %s", tt.key[1:2], tt.away), func(t *testing.T) {
			t.Parallel()
			now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC) // of another process
			d := restart(t, records, tt.away, now, nil)
			if _, got := d.Lookup(tt.key, now, nil); got != tt.want {
				t.Fatalf("freshness %d, want %d", got, tt.want)
			}
			d.DelayRefresh(tt.key, now.Add(time.Second), now)
			msg, got := d.Lookup(tt.key, now, nil)
			if got != tt.then {
				t.Fatalf("then freshness %d, want %d", got, tt.then)
			}
			if got == cache.Absent {
				return
			}
			if ttl := binary.BigEndian.Uint32(msg[len(tt.key)-1+wire.HeaderLen+2+6:]); ttl != tt.ttl || msg[3]&15 != tt.rcode {
				t.Errorf("TTL %d, rcode %d, want %d, %d", ttl, msg[3]&15, tt.ttl, tt.rcode)
			}
		})
	}
}

// TestRestoredAgain dumps and restores a hundred times in a second. No entry gets younger.
func TestRestoredAgain(t *testing.T) {
	t.Parallel()
	c := staleCache(t)
	key := nth("a", 1)
	c.Put(key, plain(key, 10*time.Second, 10), epoch)
	now := epoch
	for range 100 {
		c = restart(t, dump(t, c, everything, now), 10*time.Millisecond, now, nil)
	}
	now = now.Add(9 * time.Second)
	assert.Same(t, "freshness", cache.Stale, freshness(c, key, now))
}

// TestRestoredWhole restores answers of all kinds unchanged.
func TestRestoredWhole(t *testing.T) {
	t.Parallel()
	c := staleCache(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	var keys [][]byte
	for i := range 300 {
		key := nth("n", i)
		switch i % 4 {
		case 0:
			key = keyOf(fmt.Sprintf("n%d.example.", i), uint16(i), 2, 0, 1, 24, 0, 10, 0, byte(i))
		case 1:
			key = keyOf(fmt.Sprintf("n%d.example.", i), 1, byte(i))
		case 2:
			key = append(key, make([]byte, 244+i%11)...) // the longest tail has 255 bytes
		}
		keys = append(keys, key)
		life := time.Duration(10+rnd.IntN(90)) * time.Second
		a := plain(key, life, rnd.IntN(3000))
		switch i % 5 {
		case 0:
			a = soaDenial(key, life)
		case 1:
			a = answerTo(key, life, rr{rrtype: wire.TypeTXT, ttl: 1000, rdata: []byte{0}}, rr{rrtype: wire.TypeTXT, ttl: uint32(life / time.Second), rdata: []byte{1, 'x'}})
		case 2:
			a = answerTo(key, life, append(set(wire.TypeTXT, 1, 1), set(wire.TypeA, 5, 4)...)...)
			for _, off := range a.TTLs {
				binary.BigEndian.PutUint32(a.Msg[off:], uint32(life/time.Second))
			}
			binary.BigEndian.PutUint32(a.Msg[a.TTLs[5]:], uint32(life/time.Second)-1) // the last is of another set
			a.Lifetime -= time.Second
			a.RotateFirst, a.RotateCount = 1, 4
		}
		c.Put(key, a, after(time.Duration(rnd.IntN(9))*time.Second))
	}
	check(t, c)
	now := after(9 * time.Second)
	records := dump(t, c, everything, now)
	d := restart(t, records, 0, now, nil)
	for _, key := range keys {
		for range 5 { // addresses rotate
			want, wantFound := c.Lookup(key, now, nil)
			got, gotFound := d.Lookup(key, now, nil)
			if wantFound != gotFound || wantFound != cache.Fresh || !bytes.Equal(want, got) {
				t.Fatalf("%x: %d %x, want %d %x", key, gotFound, got, wantFound, want)
			}
		}
	}
	again := dump(t, restart(t, records, 0, now, nil), everything, now)
	assert.Same(t, "result", len(records), len(again))
	slices.SortFunc(records, bytes.Compare)
	slices.SortFunc(again, bytes.Compare)
	differ := 0
	for i := range records {
		if !bytes.Equal(records[i], again[i]) {
			differ++ // it may be in the other log
		}
	}
	if differ > len(records)/2 {
		t.Errorf("%d of %d records differ", differ, len(records))
	}
}

// TestRestoredOwners restores owners and query ages.
func TestRestoredOwners(t *testing.T) {
	t.Parallel()
	c := staleCache(t)
	owned, free := nth("o", 1), nth("f", 1)
	owner := func(name []byte) []byte {
		if name[1] == 'o' {
			return name
		}
		return nil
	}
	for _, key := range [][]byte{owned, free} {
		a := plain(key, time.Minute, 10)
		a.Owner, a.QueriedAt = owner(key[:questionLen(key)-2]), after(-2*time.Second)
		c.Put(key, a, epoch)
	}
	records := dump(t, c, everything, after(time.Second))
	now := after(time.Hour)
	for _, tt := range []struct {
		name  string
		event time.Time // zero: none
		want  cache.Freshness
	}{
		{"no event", time.Time{}, cache.Fresh},
		{"an event since", now, cache.Absent},
		{"an event between question and answer", now.Add(-2 * time.Second), cache.Absent},
		{"an event long before the question", now.Add(-5 * time.Second), cache.Fresh},
	} {
		d := restart(t, records, 0, now, owner)
		if !tt.event.IsZero() {
			d.OwnerChanged(owner(owned[:questionLen(owned)-2]), tt.event)
		}
		assert.Same(t, tt.name+": freshness", tt.want, freshness(d, owned, now))
		assert.Same(t, tt.name+": without owner: freshness", cache.Fresh, freshness(d, free, now))
	}
}

// TestRestoreIntoLess restores into a smaller cache. Used entries come first, and nothing is evicted.
func TestRestoreIntoLess(t *testing.T) {
	t.Parallel()
	c := staleCache(t)
	const entries = 3000
	for i := range entries {
		key := nth("n", i)
		c.Put(key, plain(key, time.Hour, 700), epoch)
		if i%4 == 0 {
			freshness(c, key, epoch)
		}
	}
	d := newSized(t, cache.MinSize)
	n, err := d.Restore(slices.Values(dump(t, c, everything, epoch)), 0, epoch, nil)
	assert.NoError(t, err)
	check(t, d)
	if s := d.Stats(); s.Entries != int64(n) || s.Evictions != 0 || n < 900 || n > 1400 {
		t.Errorf("%d restored: %+v", n, s)
	}
	lost := 0
	for i := 0; i < entries; i += 4 {
		if freshness(d, nth("n", i), epoch) != cache.Fresh {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d used entries are lost, %d are restored", lost, n)
	}
}

// TestRestoreKeepsMain prefers unused entries of the main log, which come last in the dump.
func TestRestoreKeepsMain(t *testing.T) {
	t.Parallel()
	const entries, inMain, dumpInMain = 3000, 100, 1 << 2
	var records [][]byte
	for i := range entries {
		flags := byte(0)
		if i >= entries-inMain {
			flags = dumpInMain
		}
		records = append(records, append([]byte{0, 60, 0, flags, 0, 1, 0}, plain(nth("n", i), time.Minute, 700).Msg...))
	}
	d := newSized(t, cache.MinSize)
	_, err := d.Restore(slices.Values(records), 0, epoch, nil)
	assert.NoError(t, err)
	for i := entries - inMain; i < entries; i++ {
		assert.Same(t, fmt.Sprint(i), cache.Fresh, freshness(d, nth("n", i), epoch))
	}
}

// TestRestoreRefuses restores corrupt records. It accepts only messages that another parser accepts too.
func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	c := staleCache(t)
	for i, key := range [][]byte{nth("a", 1), keyOf("b.example.", wire.TypeA, 0), keyOf("c.example.", wire.TypeA, 0)} {
		a := plain(key, time.Minute, 5)
		switch i {
		case 1:
			a = soaDenial(key, time.Minute)
		case 2:
			a = answerTo(key, time.Minute, rr{rrtype: 1, ttl: 60, rdata: []byte{1, 2, 3, 4}}, rr{rrtype: 1, ttl: 60, rdata: []byte{1, 2, 3, 5}})
		}
		c.Put(key, a, epoch)
	}
	good := dump(t, c, everything, epoch)
	d := staleCache(t)
	refused := func(bad []byte) bool {
		t.Helper()
		n, err := d.Restore(slices.Values(append(slices.Clone(good), bad)), 0, epoch, nil)
		entries := d.Stats().Entries
		if err != nil && (n != 0 || entries != 0) {
			t.Fatalf("%x is refused, but %d entries are restored", bad, entries)
		}
		d.Flush([]byte{0}, true)
		check(t, d)
		return err != nil
	}
	for _, record := range good {
		for at := range record {
			if !refused(record[:at]) {
				t.Errorf("accepted when truncated to %d bytes", at)
			}
			for _, b := range []byte{0, 1, 0x41, 0x80, 0xc0, 0xff, record[at] + 1} {
				bad := bytes.Clone(record)
				bad[at] = b
				refused(bad)
			}
		}
		if !refused(append(bytes.Clone(record), 0)) {
			t.Error("accepted with trailing bytes")
		}
	}
}

// TestRestoreRefusesMessages restores messages that no cache would store.
func TestRestoreRefusesMessages(t *testing.T) {
	t.Parallel()
	key := keyOf("www.example.", wire.TypeTXT, 0)
	edit := func(f func(msg []byte) []byte) []byte { return f(bytes.Clone(plain(key, time.Minute, 5).Msg)) }
	set := func(at int, b byte) []byte {
		return edit(func(msg []byte) []byte {
			msg[at] = b
			return msg
		})
	}
	tests := []struct {
		name string
		life byte
		msg  []byte
		ok   bool
	}{
		{"good", 60, plain(key, time.Minute, 5).Msg, true},
		{"a query", 60, set(2, 0x01), false},
		{"another opcode", 60, set(2, 0x91), false},
		{"truncated", 60, set(2, 0x83), false},
		{"SERVFAIL", 60, set(3, 0x82), false},
		{"NXDOMAIN of an alias's target", 60, set(3, 0x83), true},
		{"another class", 60, set(wire.HeaderLen+len(key)+1-1, 3), false},
		{"a capital", 60, set(wire.HeaderLen+1, 'W'), false},
		{"every type, and no denial", 60, set(wire.HeaderLen+len(key)-2, 0), false},
		{"no records", 60, answerTo(key, time.Minute).Msg, false},
		{"longer life than its TTL", 61, plain(key, time.Minute, 5).Msg, false},
		{"no life", 0, plain(key, time.Minute, 5).Msg, false},
		{"something behind it", 60, append(plain(key, time.Minute, 5).Msg, 0), false},
		{"cut short", 60, edit(func(msg []byte) []byte { return msg[:len(msg)-1] }), false},
		{"an OPT record", 60, edit(func(msg []byte) []byte {
			msg[11] = 1
			return append(msg, 0, 0, 41, 4, 0, 0, 0, 0, 0, 0, 0)
		}), false},
	}
	for _, tt := range tests {
		record := append([]byte{0, tt.life, 0, 0, 0, 1, 0}, tt.msg...)
		c := staleCache(t)
		n, err := c.Restore(slices.Values([][]byte{record}), 0, epoch, nil)
		if (err == nil) != tt.ok || (n == 1) != tt.ok {
			t.Errorf("%s: %d restored, error %v", tt.name, n, err)
		}
		check(t, c)
	}
}

// FuzzRestore restores two arbitrary records. Accepted ones can be looked up, and another parser reads
// them as answers to their question.
func FuzzRestore(f *testing.F) {
	c := staleCache(f)
	for i := range 6 {
		key := keyOf(fmt.Sprintf("n%d.example.", i), uint16(i), byte(i))
		c.Put(key, plain(key, time.Minute, i), epoch)
		key = keyOf(fmt.Sprintf("d%d.example.", i), uint16(i), byte(i))
		c.Put(key, soaDenial(key, time.Minute), epoch)
	}
	key := append(nth("t", 1), make([]byte, 254)...)
	c.Put(key, plain(key, time.Minute, 1), epoch)
	records := dump(f, c, everything, after(time.Second))
	for i := range records {
		f.Add(records[i], records[(i+1)%len(records)])
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		c := staleCache(t)
		n, err := c.Restore(slices.Values([][]byte{a, b}), time.Second, epoch, func(name []byte) []byte { return name })
		check(t, c)
		if got := c.Stats().Entries; got != int64(n) || err != nil && n != 0 {
			t.Fatalf("%d restored, %d there, %v", n, got, err)
		}
		for _, record := range [][]byte{a, b} {
			if err != nil {
				return
			}
			key := keyIn(record)
			msg, found := c.Lookup(key, epoch, nil)
			if found == cache.Stale {
				msg, _ = c.LookupStale(key, epoch, nil)
			}
			if found == cache.Absent {
				continue
			}
			var m dns.Msg
			if err := m.Unpack(msg); err != nil {
				continue // the library knows types that pass here as they are
			}
			if len(m.Question) != 1 || !m.Response || !bytes.Equal(msg[wire.HeaderLen:][:questionLen(key)], key[:questionLen(key)]) {
				t.Fatalf("key %x: %s", key, &m)
			}
		}
		dump(t, c, everything, epoch)
	})
}

// keyIn returns the key of an accepted record.
func keyIn(record []byte) []byte {
	for range 3 {
		_, n := binary.Uvarint(record)
		record = record[n:]
	}
	tail, msg := record[3:3+int(record[2])], record[3+int(record[2]):]
	end := wire.HeaderLen + questionLen(msg[wire.HeaderLen:])
	return append(bytes.Clone(msg[wire.HeaderLen:end]), tail...)
}
