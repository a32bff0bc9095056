// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestIndex compares adds, moves and removals with a map. Few homes and few tags make long probes,
// frequent equal tags and runs across the table's end.
func TestIndex(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name         string
		slots        int
		homes, above uint32 // choices of the slot where a search begins, and of tags for each
	}{
		{name: "any hash", slots: 64, homes: 64, above: 1 << 20},
		{name: "few tags", slots: 64, homes: 4, above: 2},
		{name: "one tag", slots: 32, homes: 1, above: 1},
		{name: "runs across the end", slots: 16, homes: 16, above: 3},
		{name: "no power of two", slots: 41, homes: 41, above: 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(1, uint64(tt.slots)))
			x := newIndex(make([]uint64, tt.slots))
			if want := tt.slots / 8 * 7; x.maxCount != want {
				t.Fatalf("takes %d of %d, want %d", x.maxCount, tt.slots, want)
			}
			hashes := map[int]uint64{} // by offset
			for i := range 4_000 {
				home := uint64(tt.slots) - 1 - r.Uint64N(uint64(tt.homes))
				least := (home<<32 + uint64(tt.slots) - 1) / uint64(tt.slots) // tag whose home it is
				hash := (least+uint64(r.Uint32N(tt.above)))<<32 | uint64(r.Uint32())
				if x.home(hash) != home {
					t.Fatalf("home of %x is %d, want %d", hash, x.home(hash), home)
				}
				off := freeOffset(r, hashes)
				switch used := offsets(hashes); {
				case len(used) < x.maxCount && r.IntN(2) == 0:
					x.add(hash, off)
					hashes[off] = hash
				case len(used) == 0:
				case r.IntN(3) == 0:
					from := used[r.IntN(len(used))]
					x.relocate(hashes[from], from, off)
					hashes[off] = hashes[from]
					delete(hashes, from)
				default:
					gone := used[r.IntN(len(used))]
					x.remove(hashes[gone], gone)
					delete(hashes, gone)
				}
				if x.count != len(hashes) {
					t.Fatalf("counts %d, want %d", x.count, len(hashes))
				}
				compareIndex(t, &x, hashes, hash)
				if i%64 == 0 {
					for _, hash := range hashes {
						compareIndex(t, &x, hashes, hash)
					}
				}
			}
		})
	}
}

// freeOffset returns an unused offset, possibly the largest.
func freeOffset(r *rand.Rand, used map[int]uint64) int {
	for {
		off := []int{0, 8, 1<<35 - 16, 1 << 34}[r.IntN(4)]
		if r.IntN(4) > 0 {
			off = 8 * r.IntN(1<<30)
		}
		if _, ok := used[off]; !ok {
			return off
		}
	}
}

func offsets(hashes map[int]uint64) []int {
	all := make([]int, 0, len(hashes))
	for off := range hashes {
		all = append(all, off)
	}
	slices.Sort(all)
	return all
}

// compareIndex checks that a probe for hash returns all offsets of its tag once.
func compareIndex(t *testing.T, x *index, hashes map[int]uint64, hash uint64) {
	t.Helper()
	var want, got []int
	for off, other := range hashes {
		if other>>32 == hash>>32 {
			want = append(want, off)
		}
	}
	for off, pos := x.next(hash, x.home(hash)); off >= 0; off, pos = x.next(hash, pos) {
		got = append(got, off)
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("offsets of %x (-want +got)\n%s", hash, diff)
	}
}
