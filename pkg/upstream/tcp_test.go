// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// Simultaneous queries spread evenly over the connections. Sequential queries use one, and the others are opened in
// advance.
func TestTCPConnections(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name                       string
		connections, clients, want int
		most                       int // queries on one connection
	}{
		{name: "by default one", clients: 40, want: 1, most: 40},
		{name: "one", connections: 1, clients: 40, want: 1, most: 40},
		{name: "four", connections: 4, clients: 40, want: 4, most: 10},
		{name: "sixteen", connections: 16, clients: 40, want: 16, most: 3},
		{name: "fewer queries than connections", connections: 16, clients: 3, want: 3, most: 1},
		{name: "one query", connections: 16, clients: 1, want: 1, most: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := upstreamtest.New(upstreamtest.Always(after(10*time.Millisecond, one("192.0.2.10"))))
				p := newPool(t, upstream.Config{
					Targets: []upstream.Target{target("tcp", addrA)}, Connections: tt.connections,
					Dial: upstreamtest.Network{addrA: s}.Dial,
				})
				run(t, p)
				for round := range 3 {
					before := len(s.Queries())
					var group sync.WaitGroup
					for range tt.clients {
						group.Go(func() {
							assert.Equal(t, "answer", "192.0.2.10", ask(t, p))
						})
					}
					group.Wait()
					on := map[int]int{}
					for _, q := range s.Queries()[before:] {
						on[q.Conn]++
					}
					most := 0
					for _, n := range on {
						most = max(most, n)
					}
					synctest.Wait()
					if len(on) != tt.want || most != tt.most || s.Connections() != max(tt.connections, 1) {
						t.Errorf("round %d: %d connections used, at most %d queries on one, %d opened, want %d, %d and %d",
							round, len(on), most, s.Connections(), tt.want, tt.most, max(tt.connections, 1))
					}
				}
			})
		})
	}
}

// One client query opens at most three TCP connections.
func TestTCPConnectionsPerQuery(t *testing.T) {
	t.Parallel()
	truncated := upstreamtest.Always(upstreamtest.Action{Truncate: true})
	closed := upstreamtest.Always(upstreamtest.Action{Close: true})
	reset := upstreamtest.Always(upstreamtest.Action{Reset: true})
	tests := []struct {
		name    string
		network string
		script  upstreamtest.Script
		udp     int // queries to each
	}{
		{name: "TC=1, then closed", network: "udp", script: upstreamtest.By(truncated, closed), udp: 3},
		{name: "TC=1, then reset", network: "udp", script: upstreamtest.By(truncated, reset), udp: 3},
		{name: "closed", network: "tcp", script: closed},
		{name: "reset", network: "tcp", script: reset},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a, b := upstreamtest.New(tt.script), upstreamtest.New(tt.script)
				p := memory(t, tt.network, upstreamtest.Network{addrA: a, addrB: b}, addrA, addrB)
				assert.Equal(t, "outcome", "network", ask(t, p))
				stats := p.Stats().Servers
				if accepted, opened := a.Connections()+b.Connections(), stats[0].Opened+stats[1].Opened; accepted != 3 || opened != 3 {
					t.Errorf("%d connections accepted, %d opened, want 3", accepted, opened)
				}
				for _, s := range []*upstreamtest.Server{a, b} {
					udp := 0
					for _, q := range s.Queries() {
						if q.Network == "udp" {
							udp++
						}
					}
					assert.Equal(t, "queries over UDP", tt.udp, udp)
				}
			})
		})
	}
}

// The retry uses a newer connection: another old one may have ended too.
func TestTCPRetryIsOnFreshConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(upstreamtest.Always(after(50*time.Millisecond, one("192.0.2.10"))))
		p := memory(t, "tcp", upstreamtest.Network{addrA: s}, addrA)
		var group sync.WaitGroup
		for range 1100 { // more than fit one connection
			group.Go(func() { ask(t, p) })
		}
		group.Wait()
		s.SetScript(func(q upstreamtest.Query) upstreamtest.Action {
			if q.Conn <= 2 {
				return upstreamtest.Action{Close: true}
			}
			return one("192.0.2.10")
		})
		assert.Equal(t, "answer", "192.0.2.10", ask(t, p))
		if got := failures(p); got != "" || s.Connections() != 3 {
			t.Errorf("failures %q, %d connections, want none and a third one", got, s.Connections())
		}
	})
}

// If a connection ends with a query that opened it, the attempt fails.
func TestTCPFreshConnectionLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(upstreamtest.Sequence(upstreamtest.Action{Close: true}, one("192.0.2.10")))
		p := memory(t, "tcp", upstreamtest.Network{addrA: s}, addrA)
		assert.Equal(t, "answer", "192.0.2.10", ask(t, p))
		if got, want := failures(p), "network=1"; got != want {
			t.Errorf("failures %q, want %q", got, want)
		}
		assert.Equal(t, "attempts", 2, p.Stats().Servers[0].Requests)
	})
}
