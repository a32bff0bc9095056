// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// newRecent returns a resolver that only counts, and its clock.
func newRecent() (r *Resolver, now *time.Time) {
	began := time.Now()
	now = &began
	r = &Resolver{epoch: began, now: func() time.Time { return *now }}
	r.recent.init()
	return r, now
}

func podAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }

func wireName(tb testing.TB, text string) []byte {
	tb.Helper()
	name, err := wire.AppendName(nil, text)
	assert.NoError(tb, err)
	return name
}

// lines has the rows as text.
func lines(rows []RecentRow) (list []string) {
	for _, r := range rows {
		text := ""
		if r.Client.IsValid() {
			text = r.Client.String() + " "
		}
		if r.Name != nil {
			text += string(wire.AppendText(nil, r.Name)) + " "
		}
		list = append(list, fmt.Sprintf("%s%d queries, %d failed, %s", text, r.Queries, r.Failed, time.Duration(r.Slowest)*time.Microsecond))
	}
	return list
}

// TestRecent counts by client, by name and by both, for ten minutes.
func TestRecent(t *testing.T) {
	t.Parallel()
	r, now := newRecent()
	web, db := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::2")
	add := func(client netip.Addr, name string, c RecentCounts) {
		r.recent.add(client, wireName(t, name), r.minute(*now), &c)
	}
	add(web, "api.test.", RecentCounts{Queries: 3})
	add(db, "api.test.", RecentCounts{Queries: 1, Failed: 1, Slowest: 1e6})
	*now = now.Add(5 * time.Minute)
	add(web, "www.test.", RecentCounts{Queries: 1, Slowest: 1e3})
	for _, step := range []struct {
		name                  string
		after                 time.Duration
		clients, names, pairs []string
	}{
		{
			"five minutes", 0,
			[]string{"10.0.0.1 4 queries, 0 failed, 1ms", "fd00::2 1 queries, 1 failed, 1s"},
			[]string{"api.test. 4 queries, 1 failed, 1s", "www.test. 1 queries, 0 failed, 1ms"},
			[]string{"10.0.0.1 api.test. 3 queries, 0 failed, 0s", "fd00::2 api.test. 1 queries, 1 failed, 1s", "10.0.0.1 www.test. 1 queries, 0 failed, 1ms"},
		},
		{
			"the first minute is out", 5 * time.Minute,
			[]string{"10.0.0.1 1 queries, 0 failed, 1ms"},
			[]string{"www.test. 1 queries, 0 failed, 1ms"},
			[]string{"10.0.0.1 www.test. 1 queries, 0 failed, 1ms"},
		},
		{"all are out", 5 * time.Minute, nil, nil, nil},
	} {
		*now = now.Add(step.after)
		clients, names, pairs := r.Recent()
		assert.Same(t, step.name+": clients", step.clients, lines(clients))
		assert.Same(t, step.name+": names", step.names, lines(names))
		if got := lines(pairs); len(got) != len(step.pairs) {
			t.Errorf("%s: pairs %q, want %q", step.name, got, step.pairs)
		} else {
			for _, want := range step.pairs { // those with the same number are in any order
				found := false
				for _, line := range got {
					found = found || line == want
				}
				if !found {
					t.Errorf("%s: no %q in %q", step.name, want, got)
				}
			}
		}
	}
	add(web, "api.test.", RecentCounts{Queries: 2})
	clients, _, _ := r.Recent()
	assert.Same(t, "a client that is back", []string{"10.0.0.1 2 queries, 0 failed, 0s"}, lines(clients))
}

// TestRecentSearch counts a denied name as one of a search path only within the domain of a cluster.
func TestRecentSearch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, cluster, ask string
		rcode              int
		want               uint32
	}{
		{"below the domain", "cluster.local.", "www.example.com.cluster.local.", wire.RcodeNXDomain, 1},
		{"the name exists", "cluster.local.", "kubernetes.default.svc.cluster.local.", wire.RcodeSuccess, 0},
		{"elsewhere", "cluster.local.", "www.example.com.", wire.RcodeNXDomain, 0},
		{"no cluster", "", "www.example.com.", wire.RcodeNXDomain, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, now := newRecent()
			plan := &Plan{}
			if tt.cluster != "" {
				plan.Cluster = wireName(t, tt.cluster)
			}
			var q wire.Query
			packet := append([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"), wireName(t, tt.ask)...)
			assert.Equal(t, "rcode", wire.RcodeSuccess, q.Parse(append(packet, 0, 1, 0, 1)))
			r.addRecent(plan, &q.Question, netip.MustParseAddr("10.0.0.1"), SourceUpstream, tt.rcode, 1, 0, *now)
			clients, _, _ := r.Recent()
			assert.Equal(t, "searches", tt.want, clients[0].Search)
		})
	}
}

// TestSlowReplies keeps the slowest reply of each minute, for an hour.
func TestSlowReplies(t *testing.T) {
	t.Parallel()
	r, now := newRecent()
	pod := netip.MustParseAddr("10.0.0.1")
	got := func() (list []string) {
		for _, s := range r.SlowReplies() {
			list = append(list, fmt.Sprintf("%s %s %s %d", s.Took, s.Client, wire.AppendText(nil, s.Name), s.Rcode))
		}
		return list
	}
	add := func(name string, took time.Duration) {
		r.recent.addSlow(now.Sub(r.epoch), took, pod, wireName(t, name), wire.RcodeServFail)
	}
	add("quick.test.", time.Millisecond)
	add("slow.test.", 4*time.Second)
	add("other.test.", time.Second)
	*now = now.Add(time.Minute)
	add("next.test.", 5*time.Second)
	assert.Same(t, "two minutes", []string{"5s 10.0.0.1 next.test. 2", "4s 10.0.0.1 slow.test. 2"}, got())
	*now = now.Add(59 * time.Minute)
	assert.Same(t, "an hour later", []string{"5s 10.0.0.1 next.test. 2"}, got())
	add("new.test.", time.Millisecond)
	assert.Same(t, "the place of the first minute", []string{"5s 10.0.0.1 next.test. 2", "1ms 10.0.0.1 new.test. 2"}, got())
}

// TestRecentMisses counts one of the misses within 100 µs for all, and one of those that failed or were slow.
func TestRecentMisses(t *testing.T) {
	t.Parallel()
	r, now := newRecent()
	plan := &Plan{}
	var q wire.Query
	assert.Equal(t, "rcode", wire.RcodeSuccess, q.Parse(append([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"), "\x03www\x04test\x00\x00\x01\x00\x01"...)))
	miss := func(client int, rcode int, took time.Duration) {
		r.addMiss(plan, &q.Question, podAddr(client), SourceUpstream, rcode, took, *now)
	}
	got := func() []string {
		clients, _, _ := r.Recent()
		slices.SortFunc(clients, func(a, b RecentRow) int { return a.Client.Compare(b.Client) })
		return lines(clients)
	}
	for range 10 {
		miss(1, wire.RcodeSuccess, time.Millisecond)
	}
	miss(2, wire.RcodeServFail, time.Millisecond)
	miss(2, wire.RcodeSuccess, time.Second)
	assert.Same(t, "at once", []string{"10.0.0.1 1 queries, 0 failed, 1ms", "10.0.0.2 1 queries, 1 failed, 1ms"}, got())
	*now = now.Add(missPause)
	miss(1, wire.RcodeSuccess, time.Millisecond)
	miss(2, wire.RcodeSuccess, time.Second)
	assert.Same(t, "later", []string{"10.0.0.1 11 queries, 0 failed, 1ms", "10.0.0.2 3 queries, 1 failed, 1s"}, got())
}

// TestRecentFlood has a pod ask for a hundred thousand names while 200 pods ask for a few: the flood is seen, and the others are not
// lost.
func TestRecentFlood(t *testing.T) {
	t.Parallel()
	r, _ := newRecent()
	flood, common := netip.MustParseAddr("10.9.9.9"), wireName(t, "kubernetes.default.svc.cluster.local.")
	for i := range 100_000 {
		one := RecentCounts{Queries: 1}
		r.recent.add(flood, wireName(t, fmt.Sprintf("n%d.test.", i)), 0, &one)
		r.recent.add(podAddr(i%200), common, 0, &one)
		if i%10 == 0 {
			r.recent.add(podAddr(1), wireName(t, "api.test."), 0, &one)
		}
	}
	clients, names, pairs := r.Recent()
	if len(clients) < 190 { // a set can have more clients than slots
		t.Errorf("%d clients, want nearly all of 201", len(clients))
	}
	assert.Equal(t, "the flood", "10.9.9.9 100000 queries, 0 failed, 0s", lines(clients)[0])
	assert.Same(t, "names", []string{"kubernetes.default.svc.cluster.local. 100000 queries, 0 failed, 0s", "api.test. 10000 queries, 0 failed, 0s"}, lines(names)[:2])
	assert.Equal(t, "a pod's name", "10.0.0.1 api.test. 10000 queries, 0 failed, 0s", lines(pairs)[0])
	if most := nameSets * recentWays; len(names) > most {
		t.Errorf("%d names, want %d at most", len(names), most)
	}
}

// TestRecentCost bounds the memory, and the allocations of counting.
func TestRecentCost(t *testing.T) {
	if size := (clientSets + nameSets + pairSets) * unsafe.Sizeof(recentSet{}); size > 1<<20+1<<16 {
		t.Errorf("the sets have %d bytes, want 1.06 MiB at most", size)
	}
	r, now := newRecent()
	name := wireName(t, "api.test.")
	assert.Equal(t, "allocations", 0, testing.AllocsPerRun(100, func() {
		*now = now.Add(time.Second)
		r.recent.add(podAddr(1), name, r.minute(*now), &RecentCounts{Queries: 1})
	}))
}

// TestSampler counts every reply once, whatever the batches are.
func TestSampler(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name          string
		batch         uint32
		least, most   int // counted replies
		batches       int
		within, total float64
	}{
		{"batches of one", 1, 1000, 1000, 1000, 0, 1000},
		{"full batches", 64, 850, 1150, 1000, 200, 64_000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var s sampler
			counted, sum := 0, 0.0
			for range tc.batches {
				for range tc.batch {
					if n := s.next(); n > 0 {
						counted++
						sum += float64(n)
					}
				}
				s.mean = tc.batch
			}
			if counted < tc.least || counted > tc.most || max(sum-tc.total, tc.total-sum) > tc.within {
				t.Errorf("%d replies counted for %.0f, want %d to %d for %.0f", counted, sum, tc.least, tc.most, tc.total)
			}
		})
	}
}

func BenchmarkRecent(b *testing.B) {
	r, _ := newRecent()
	names := make([][]byte, 512)
	for i := range names {
		names[i] = wireName(b, fmt.Sprintf("name-%d.shop.svc.cluster.local.", i))
	}
	one, i := RecentCounts{Queries: 1}, 0
	b.ReportAllocs()
	for b.Loop() {
		r.recent.add(podAddr(i%100), names[i%len(names)], int64(i>>20), &one)
		i++
	}
}
