// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/pods"
)

// TestNames has 2,000 pods query for a million names, of which few are frequent, while one pod floods with a new name each
// time. The names queried most are in order, with counts that are right within one percent, in memory that does not grow.
func TestNames(t *testing.T) {
	queries := 1_000_000
	if proctest.Soak() {
		queries = 20_000_000
	}
	x := pods.NewIndex(time.Minute, nil)
	for i := range 2000 {
		x.Put(&pods.Pod{Namespace: fmt.Sprint("n", i%100), Name: fmt.Sprint("web-", i), Addrs: []netip.Addr{podAddr(i)}})
	}
	c := pods.Counts{pods.FromMemory: 1, pods.Bytes: 100}
	room := make([]byte, 0, 64)
	query := func(pod int, format string, n uint64) {
		_, usage := x.UsageOf(podAddr(pod))
		usage.Add(&c)
		room = fmt.Appendf(room[:0], format, n)
		x.CountName(room, &c)
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same queries each time
	zipf := rand.NewZipf(random, 1.1, 1, 999_999)
	exact := make([]uint64, 1_000_000)
	before := heap()
	for i := range uint64(queries) { //nolint:gosec // not negative
		query(1999, "\x0dflood%08x\x04test\x00", i)
		n := zipf.Uint64()
		exact[n]++
		query(random.IntN(1999), "\x0aname%06d\x04test\x00", n)
	}
	if grown := heap() - before; grown > 1<<16 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	rows, worst := x.Names(), 0.0
	slices.SortFunc(exact[:1000], func(a, b uint64) int { return cmp.Compare(b, a) })
	for i, row := range rows[:20] {
		var n int
		_, err := fmt.Sscanf(string(row.Name), "\x0aname%06d", &n)
		assert.Equal(t, fmt.Sprintf("name %d: %q", i, row.Name), nil, err)
		worst = max(worst, math.Abs(1-float64(row.Queries())/float64(exact[i])))
	}
	t.Logf("of %d queries, half of them each for a new name: the top 20 are right within %.3f %%", 2*queries, 100*worst)
	if worst > 0.01 {
		t.Errorf("the top 20 are wrong by %.1f %%", 100*worst)
	}
	i := uint64(0)
	if n := testing.AllocsPerRun(1000, func() { i++; query(1, "\x0cother%07d\x04test\x00", i) }); n > 1 { // fmt's one
		t.Errorf("a new name allocates %v times", n)
	}
}

// heap returns the bytes in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // small
}

func podAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}) }
