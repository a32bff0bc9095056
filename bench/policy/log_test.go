// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// Four entries fit: two in the small log, two in the main one.
func TestTwoLogs(t *testing.T) {
	t.Parallel()
	const manyGhosts = 256 // of them, so that no two letters meet
	tests := []struct {
		name        string
		cfg         logConfig
		letters     string
		life        int32
		want        string
		wantEvicted int
	}{
		{
			name: "used entries move on, ghosts come back, used entries get another turn",
			cfg:  logConfig{promote: 1}, letters: "aabcdbcabea", want: "-h----hhh--", wantEvicted: 3,
		},
		{name: "one use is enough", cfg: logConfig{promote: 1}, letters: "aabca", want: "-h--h", wantEvicted: 0},
		{name: "one use is not enough", cfg: logConfig{promote: 2}, letters: "aabca", want: "-h---", wantEvicted: 1},
		{name: "main waits for used entries", cfg: logConfig{promote: 1}, letters: "abcab", want: "----h", wantEvicted: 1},
		{
			name: "unwritten room is used",
			cfg:  logConfig{promote: 1, room: unwritten}, letters: "abcab", want: "---hh", wantEvicted: 0,
		},
		{
			name: "room ends when main is full",
			cfg:  logConfig{promote: 1, room: unwritten}, letters: "abcdea", want: "-----h", wantEvicted: 1,
		},
		{
			name: "expired entries stay in main",
			cfg:  logConfig{promote: 1, room: unwritten}, letters: "abcdec", life: 4, want: "------", wantEvicted: 1,
		},
		{
			name: "expired entries make room in main",
			cfg:  logConfig{promote: 1, room: expired}, letters: "abcdec", life: 4, want: "-----h", wantEvicted: 0,
		},
		{
			name: "stored again in its place",
			cfg:  logConfig{promote: 1}, letters: "abbaca", life: 3, want: "--h---", wantEvicted: 1,
		},
		{
			name: "stored again at the head",
			cfg:  logConfig{promote: 1, anew: true}, letters: "abbaca", life: 3, want: "--h--h", wantEvicted: 0,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.cfg.small, tt.cfg.ghosts = 50, manyGhosts
			c := newTwoLogs(tt.cfg, 26, 4*letterSize)
			if got := play(c, tt.letters, tt.life); got != tt.want {
				t.Errorf("%s: hits\n-want %s\n+got  %s", tt.letters, tt.want, got)
			}
			if got := c.evicted(); got != tt.wantEvicted {
				t.Errorf("%s: %d evicted, want %d", tt.letters, got, tt.wantEvicted)
			}
		})
	}
}

func TestTwoLogsTurnAwayWhatCannotFit(t *testing.T) {
	t.Parallel()
	c := newTwoLogs(chosen(), 26, letterSize)
	if got, want := play(c, "aa", 0), "--"; got != want || c.evicted() != 2 {
		t.Errorf("hits %s and %d evicted, want %s and 2", got, c.evicted(), want)
	}
}

func TestEvictionFromMainIsBounded(t *testing.T) {
	t.Parallel()
	const entries = 2 * maxChances
	c := newTwoLogs(logConfig{promote: 1}, entries, entries*letterSize)
	for id := range uint32(entries) {
		c.toMain(id, letterSize, 0)
		c.add(query{id: id, size: letterSize, expires: never}, inMain)
		c.entries[id].freq = maxFreq
	}
	c.evictMain(0)
	for id, e := range c.entries {
		if gone, want := e.where == nowhere, id == maxChances; gone != want {
			t.Errorf("entry %d gone: %t, want %t", id, gone, want)
		}
		// A turn costs one use. Those behind the evicted entry were not reached.
		want := uint8(maxFreq)
		if id < maxChances {
			want--
		}
		if id != maxChances && e.freq != want {
			t.Errorf("entry %d has %d uses, want %d", id, e.freq, want)
		}
	}
}

func TestRoomAfterMainWasFull(t *testing.T) {
	t.Parallel()
	for kind, want := range map[room]bool{noRoom: false, unwritten: false, expired: true} {
		c := newTwoLogs(logConfig{small: 50, promote: 1, room: kind}, 3, 4*letterSize)
		for id := range uint32(2) {
			c.toMain(id, letterSize, 0)
			c.add(query{id: id, size: letterSize, expires: never}, inMain)
		}
		rec := c.record(2, letterSize)
		if c.findRoom(rec, 0) {
			t.Errorf("room %d: found in a full log", kind)
		}
		c.drop(c.main.pop(), 0)
		if got := c.findRoom(rec, 0); got != want {
			t.Errorf("room %d: found after an eviction: %t, want %t", kind, got, want)
		}
	}
}

func TestRingLeavesAGap(t *testing.T) {
	t.Parallel()
	r := ring{size: 100}
	steps := []struct {
		name string
		push uint32 // bytes; 0: pop
		want bool   // pushed
		at   int    // offset of the head after it
	}{
		{"first", 40, true, 40},
		{"second", 40, true, 80},
		{"does not fit before the end, and the tail is at the start", 30, false, 0},
		{"the tail moves", 0, false, 0},
		{"goes to the start", 30, true, 30},
		{"only 10 are left before the tail", 20, false, 30},
		{"the tail moves over the gap", 0, false, 30},
		{"the rest is free again", 70, true, 100},
	}
	for _, s := range steps {
		got := false
		if s.push > 0 {
			got = r.push(record{size: s.push})
		} else {
			r.pop()
		}
		if got != s.want || r.head != s.at {
			t.Fatalf("%s: pushed %t, head at %d; want %t, %d", s.name, got, r.head, s.want, s.at)
		}
	}
}

func TestGhostTable(t *testing.T) {
	t.Parallel()
	one := newGhostTable(1)
	one.put(1)
	one.put(2)
	for i, want := range []bool{false, true, false} {
		id := []uint32{1, 2, 2}[i]
		if got := one.take(id); got != want {
			t.Errorf("take %d of %d: %t, want %t", i, id, got, want)
		}
	}
	no := newGhostTable(0)
	no.put(1)
	if no.take(1) {
		t.Error("a table without slots remembers 1")
	}
}

func TestGhostQueue(t *testing.T) {
	t.Parallel()
	g := newGhostQueue(5, 250)
	for _, id := range []uint32{1, 2, 3, 2, 4} {
		g.put(id, 100)
	}
	for id, want := range []bool{false, false, true, false, true} {
		if got := g.take(uint32(id)); got != want {
			t.Errorf("take %d: %t, want %t", id, got, want)
		}
	}
	if g.take(2) {
		t.Error("2 is remembered after it was taken")
	}
}

func TestQueueKeepsOrder(t *testing.T) {
	t.Parallel()
	var q queue[int]
	next := 0
	for i := range 1000 {
		q.push(i)
		if i%3 != 0 {
			continue
		}
		if q.first() != next || q.pop() != next {
			t.Fatalf("after %d pushes: not %d first", i+1, next)
		}
		next++
	}
	for ; q.count > 0; next++ {
		if got := q.pop(); got != next {
			t.Fatalf("got %d, want %d", got, next)
		}
	}
	if next != 1000 {
		t.Errorf("%d values came out, want 1000", next)
	}
}
