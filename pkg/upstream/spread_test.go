// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// A serverGroup is the servers of an Endpoints, in memory.
type serverGroup struct {
	pool      *upstream.Pool
	endpoints *upstream.Endpoints
	servers   []*upstreamtest.Server
	members   []upstream.Server
	memory    *harness
}

func newServerGroup(t *testing.T) *serverGroup {
	t.Helper()
	h := newHarness()
	clear(h.servers)
	f := &serverGroup{endpoints: new(upstream.Endpoints), memory: h}
	f.pool = newPool(t, upstream.Config{Endpoints: f.endpoints, Dial: h.Dial})
	run(t, f.pool)
	return f
}

// add adds a server with the latency.
func (g *serverGroup) add(took time.Duration, far bool) {
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(len(g.servers) + 1)}), 53)
	s := upstreamtest.New(upstreamtest.Always(after(took, one(addr.Addr().String()))))
	g.memory.mu.Lock()
	g.memory.servers[addr] = s
	g.memory.mu.Unlock()
	g.servers, g.members = append(g.servers, s), append(g.members, upstream.Server{Addr: addr, Far: far})
	g.endpoints.Set(g.members, nil)
}

// shares runs a load on the pool and returns each server's share of the queries in percent.
func (g *serverGroup) shares(t *testing.T, long, every time.Duration) []int {
	t.Helper()
	before := make([]int, len(g.servers))
	for i, s := range g.servers {
		before[i] = len(s.Queries())
	}
	var clients sync.WaitGroup
	n := int(long / every)
	for range n {
		clients.Go(func() { ask(t, g.pool) })
		time.Sleep(every)
	}
	clients.Wait()
	shares := make([]int, len(g.servers))
	for i, s := range g.servers {
		shares[i] = (len(s.Queries()) - before[i]) * 100 / n
	}
	return shares
}

func TestSpread(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	tests := []struct {
		name  string
		took  []time.Duration
		far   []bool
		every time.Duration
		least []int
		most  []int
	}{
		{
			name: "alike, little load", took: []time.Duration{ms, ms, ms}, far: []bool{false, false, false},
			every: 5 * ms, least: []int{25, 25, 25}, most: []int{42, 42, 42},
		},
		{
			name: "alike, much load", took: []time.Duration{ms, ms, ms}, far: []bool{false, false, false},
			every: ms / 20, least: []int{28, 28, 28}, most: []int{39, 39, 39},
		},
		{
			name: "quicker than a millisecond is no better", took: []time.Duration{ms / 10, ms / 2, ms}, far: []bool{false, false, false},
			every: 5 * ms, least: []int{25, 25, 25}, most: []int{42, 42, 42},
		},
		{
			name: "a slow one gets little", took: []time.Duration{ms, ms, 50 * ms}, far: []bool{false, false, false},
			every: ms / 10, least: []int{40, 40, 0}, most: []int{58, 58, 10},
		},
		{
			name: "the near one alone, while it can", took: []time.Duration{ms, ms, ms}, far: []bool{true, false, true},
			every: 2 * ms, least: []int{0, 97, 0}, most: []int{2, 100, 2},
		},
		{
			name: "spill-over", took: []time.Duration{ms, 20 * ms, ms}, far: []bool{true, false, true},
			every: ms, least: []int{25, 0, 25}, most: []int{70, 40, 70},
		},
		{
			name: "all far", took: []time.Duration{ms, ms}, far: []bool{true, true},
			every: 5 * ms, least: []int{38, 38}, most: []int{62, 62},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newServerGroup(t)
				for i, took := range tt.took {
					f.add(took, tt.far[i])
				}
				f.shares(t, 200*ms, 5*ms)
				for i, got := range f.shares(t, 1000*tt.every, tt.every) {
					if got < tt.least[i] || got > tt.most[i] {
						t.Errorf("server %d got %d %%, want between %d and %d", i, got, tt.least[i], tt.most[i])
					}
				}
			})
		})
	}
}

// Slow names move no queries from one endpoint to another. An endpoint that is slow itself gets few, and its share again
// once it is fast.
func TestSpreadWithSlowNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		f := newServerGroup(t)
		for range 3 {
			f.add(ms, false)
		}
		var asked atomic.Int64
		answer := func(usual time.Duration) upstreamtest.Script {
			return func(upstreamtest.Query) upstreamtest.Action {
				if asked.Add(1)%61 == 0 {
					return after(usual+700*ms, one("192.0.2.10"))
				}
				return after(usual, one("192.0.2.10"))
			}
		}
		for _, s := range f.servers {
			s.SetScript(answer(ms))
		}
		f.shares(t, time.Second, 5*ms)
		// For a second or two an endpoint gets less, since a query for a slow name is pending.
		if got := f.shares(t, 20*time.Second, 5*ms); min(got[0], got[1], got[2]) < 22 {
			t.Errorf("shares %d %%, want a third each", got)
		}
		f.servers[2].SetScript(answer(60 * ms))
		f.shares(t, 2*time.Second, 5*ms)
		if got := f.shares(t, 10*time.Second, 5*ms); got[2] > 8 {
			t.Errorf("shares %d %%, want little for the slow one", got)
		}
		f.servers[2].SetScript(answer(ms))
		f.shares(t, 3*time.Second, 5*ms)
		if got := f.shares(t, 20*time.Second, 5*ms); got[2] < 22 {
			t.Errorf("shares %d %%, want a third for the one that is fast again", got)
		}
	})
}

// A new server gets its share at once.
func TestSpreadToNewEndpoint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newServerGroup(t)
		for range 3 {
			f.add(time.Millisecond, false)
		}
		f.shares(t, 10*time.Second, 10*time.Millisecond)
		f.add(time.Millisecond, false)
		if got := f.shares(t, 2*time.Second, 2*time.Millisecond); got[3] < 15 {
			t.Errorf("shares %d %%, want 15 for the fourth at least", got)
		}
	})
}

// The one near server of many is found, whatever the sample.
func TestSpreadOverMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newServerGroup(t)
		for i := range 40 {
			f.add(time.Millisecond, i != 17)
		}
		if got := f.shares(t, time.Second, 2*time.Millisecond)[17]; got < 97 {
			t.Errorf("the near one got %d %%, want nearly all", got)
		}
		f.members[17].Far = true
		f.endpoints.Set(f.members, nil)
		for i, got := range f.shares(t, 4*time.Second, time.Millisecond) {
			if got > 8 {
				t.Errorf("server %d of 40 alike got %d %%", i, got)
			}
		}
	})
}
