// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/pods"
)

// TestModel compares an index with a list of pods that is searched for each address.
func TestModel(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	now := time.Now()
	x := pods.NewIndex(time.Minute, nil)
	x.Confirm(now)
	model := map[string]*pods.Pod{}
	addr := func() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(20))}) }
	for step := range 3_000 {
		name := fmt.Sprint(random.IntN(12))
		switch random.IntN(20) {
		case 0:
			kept := func(_, name string) bool { return len(name) == 1 }
			x.Retain(kept)
			for other := range model {
				if !kept("", other) {
					delete(model, other)
				}
			}
		case 1, 2, 3, 4, 5, 6:
			assert.Equal(t, "Delete", model[name] != nil, x.Delete("shop", name))
			delete(model, name)
		default:
			p := &pods.Pod{Namespace: "shop", Name: name, Addrs: []netip.Addr{addr()}}
			if second := addr(); random.IntN(2) == 0 && second != p.Addrs[0] {
				p.Addrs = append(p.Addrs, second)
			}
			x.Put(p)
			assert.Equal(t, "the same pod again changes", false, x.Put(&pods.Pod{Namespace: p.Namespace, Name: p.Name, Addrs: p.Addrs}))
			model[name] = p
		}
		for i := range 20 {
			addr, want := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), ""
			for _, p := range model {
				for _, own := range p.Addrs {
					switch {
					case own != addr:
					case want == "":
						want = p.String()
					default:
						want = "shared"
					}
				}
			}
			got := ""
			if p, stale := x.Of(addr, now); p != nil && !stale {
				got = p.String()
			}
			if want == "shared" {
				want = ""
			}
			if got != want {
				t.Fatalf("step %d, %s: got %q, want %q", step, addr, got, want)
			}
		}
		if got := x.Stats(now); got.Pods != len(model) {
			t.Fatalf("step %d: %d pods, want %d", step, got.Pods, len(model))
		}
	}
}

// TestIndexCost bounds the memory of 250 pods with two addresses each, which find as many names as they can, and the allocations of
// a search.
func TestIndexCost(t *testing.T) {
	before := heap()
	x := pods.NewIndex(time.Minute, &pods.Host{Domain: "cluster.local", Searches: []string{"corp.example.com"}})
	for i := range 250 {
		p := &pods.Pod{
			Namespace: fmt.Sprintf("a-namespace-with-a-long-name-%d", i), Name: fmt.Sprintf("a-deployment-with-a-long-name-5d4f8c7b9-%05d", i),
			Workload: fmt.Sprintf("Deployment/a-deployment-with-a-long-name-%d", i),
			Addrs:    []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), netip.AddrFrom16([16]byte{0xfd, 15: byte(i)})},
		}
		x.Put(p)
		for name := range 1_000 {
			p.SearchPath().SetFound(fmt.Append(nil, "a-long-name-", name), 3, time.Now())
		}
	}
	if got := heap() - before; got > 2<<20 {
		t.Errorf("250 pods have %d bytes", got)
	} else {
		t.Logf("250 pods have %d bytes", got)
	}
	addr, now := netip.AddrFrom4([4]byte{10, 1, 0, 7}), time.Now()
	if n := testing.AllocsPerRun(100, func() { x.Of(addr, now) }); n != 0 {
		t.Errorf("Of allocates %v times", n)
	}
	runtime.KeepAlive(x)
}

// TestNamespaces counts pods of 60 namespaces, half of which end, and finds each query again.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	x := pods.NewIndex(time.Minute, nil)
	for i := range 60 {
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		for range 2 { // two pods of each namespace, one after the other
			x.Put(&pods.Pod{Namespace: fmt.Sprint("n", i), Name: "web", Addrs: []netip.Addr{addr}})
			_, usage := x.UsageOf(addr)
			usage.Add(&pods.Counts{pods.Failed: 1})
			if i%2 == 0 {
				x.Delete(fmt.Sprint("n", i), "web")
			}
		}
	}
	_, usage := x.UsageOf(netip.IPv6Loopback())
	usage.Add(&pods.Counts{pods.Shed: 1})
	got := x.Namespaces()
	assert.Equal(t, "names", 50+2, len(got))
	assert.Same(t, "without a pod", pods.Counts{pods.Shed: 1}, *got[pods.NoNamespace])
	assert.Same(t, "other namespaces", pods.Counts{pods.Failed: 20}, *got[pods.OtherNamespaces])
	for i := range 50 {
		assert.Same(t, fmt.Sprint(i), pods.Counts{pods.Failed: 2}, *got[fmt.Sprint("n", i)])
	}
}

// TestDump restores pods from a dump: they are stale until the next confirmation.
func TestDump(t *testing.T) {
	t.Parallel()
	now, addr := time.Now(), netip.MustParseAddr("fd00::1")
	old := pods.NewIndex(time.Minute, nil)
	old.Put(&pods.Pod{Namespace: "shop", Name: "web", Workload: "Deployment/web", Addrs: []netip.Addr{addr}})
	dump := func() (records [][]byte) {
		assert.NoError(t, old.Dump("node1", now, func(record []byte) error {
			records = append(records, record)
			return nil
		}))
		return records
	}
	assert.Equal(t, "records before the first confirmation", 0, len(dump()))
	old.Confirm(now.Add(-time.Hour))
	records := dump()
	for _, tt := range []struct {
		name, scope  string
		passed, most time.Duration
		want         string
	}{
		{"restored", "node1", time.Hour, 3 * time.Hour, "shop/web Deployment/web, stale true, confirmed stale false"},
		{"of another node", "node2", time.Hour, 3 * time.Hour, "none"},
		{"too old", "node1", time.Hour, 119 * time.Minute, "none"},
	} {
		x := pods.NewIndex(time.Minute, nil)
		use, err := x.Restore(tt.scope, slices.Values(records), tt.passed, tt.most, now)
		assert.NoError(t, err)
		use()
		got := "none"
		if p, stale := x.Of(addr, now); p != nil {
			x.Confirm(now)
			_, then := x.Of(addr, now)
			got = fmt.Sprintf("%s %s, stale %t, confirmed stale %t", p, p.Workload, stale, then)
		}
		assert.Equal(t, tt.name, tt.want, got)
	}
	if _, err := pods.NewIndex(time.Minute, nil).Restore("node1", slices.Values([][]byte{records[0], []byte("{")}), 0, time.Hour*3, now); err == nil {
		t.Error("an invalid record is no error")
	}
}

// TestStale shows that a state counts as stale before its first confirmation, and again some time after the last.
func TestStale(t *testing.T) {
	t.Parallel()
	now, addr := time.Now(), netip.MustParseAddr("10.0.0.1")
	x := pods.NewIndex(time.Minute, nil)
	x.Put(&pods.Pod{Namespace: "shop", Name: "web", Addrs: []netip.Addr{addr}})
	stale := func(at time.Time) bool {
		_, stale := x.Of(addr, at)
		return stale
	}
	assert.Equal(t, "unconfirmed", true, stale(now))
	x.Confirm(now)
	assert.Equal(t, "confirmed", false, stale(now.Add(time.Minute)))
	assert.Equal(t, "a minute later", true, stale(now.Add(time.Minute+1)))
}
