// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// An outcome receives the result of one exchange.
type outcome chan error

func (o outcome) Answered(_ *wire.Message, err error, _ *wire.SendBatch) { o <- err }

// A breaking server answers, except on the connections that were open when they last broke: what is sent on these is
// accepted, and never answered.
type breaking struct {
	*upstreamtest.Server
	*Pool
	broken atomic.Int64 // connections up to this number
}

func newBreaking(t *testing.T, network string, connections int) *breaking {
	t.Helper()
	b := new(breaking)
	b.Server = upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
		if q.Conn > 0 && int64(q.Conn) <= b.broken.Load() {
			return upstreamtest.Action{Drop: true}
		}
		return upstreamtest.Action{
			Delay: 10 * time.Millisecond, Records: []string{q.Name + " 60 IN A 192.0.2.10"}, Truncate: true,
		}
	})
	target := Target{Network: network, Addr: peer}
	if network == "tls" || network == "https" {
		target.Name, target.CAFile = "dns.example", secure(t, b.Server, "dns.example")
	}
	var err error
	b.Pool, err = New(Config{Targets: []Target{target}, Connections: connections, Dial: upstreamtest.Network{peer: b.Server}.Dial})
	assert.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	return b
}

// ask sends queries at once, and returns how long the last answer took.
func (b *breaking) ask(t *testing.T, queries int) time.Duration {
	t.Helper()
	start := time.Now()
	var clients sync.WaitGroup
	for i := range queries {
		clients.Go(func() {
			var batch wire.SendBatch
			o := make(outcome, 1)
			b.Ask(upstreamtest.Question(t, fmt.Sprintf("n%d.example.", i)), start.Add(4*time.Second), o, &batch)
			batch.Flush()
			if err := <-o; err != nil {
				t.Errorf("query %d: %v", i, err)
			}
		})
	}
	clients.Wait()
	return time.Since(start)
}

// breakAll breaks the connections that are open.
func (b *breaking) breakAll() { b.broken.Store(int64(b.Connections())) }

// If all open connections are broken and new ones work, queries are answered within 1.5 s, however many there are. Few
// connections are opened for that.
func TestBrokenConnections(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"tcp", "tls", "https", "udp"} {
		for _, connections := range []int{1, 2, 16} {
			for _, queries := range []int{1, 200} {
				t.Run(fmt.Sprintf("%s, %d connections, %d queries", network, connections, queries), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						b := newBreaking(t, network, connections)
						for round := range 4 {
							b.ask(t, 2*connections)
							if round%2 == 0 {
								time.Sleep(time.Second)
							}
							b.breakAll()
							before := b.Connections()
							if took := b.ask(t, queries); took > 1500*time.Millisecond {
								t.Errorf("round %d: the last answer took %v, want 1.5 s at most", round, took)
							}
							for range 20 { // one after the other
								if took := b.ask(t, 1); took > 1500*time.Millisecond {
									t.Errorf("round %d: an answer took %v, want 1.5 s at most", round, took)
								}
							}
							if opened, most := b.Connections()-before, connections+1; opened > most {
								t.Errorf("round %d: %d connections opened, want %d at most", round, opened, most)
							}
						}
					})
				})
			}
		}
	}
}

// Slow names, which look like broken connections, cost a few connections each, and few are open at a time.
func TestSlowNamesKeepFewConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreaking(t, "tcp", 2)
		b.ask(t, 4)
		b.SetScript(upstreamtest.Always(upstreamtest.Action{Delay: 900 * time.Millisecond}))
		for range 50 {
			b.ask(t, 1)
			if s := b.Stats().Servers[0]; s.Open > 6 {
				t.Fatalf("%d connections, want 6 at most", s.Open)
			}
			time.Sleep(time.Second)
		}
		if n := b.Connections(); n > 50*maxConnsPerQuery {
			t.Errorf("%d connections for 50 slow queries, want %d for each at most", n, maxConnsPerQuery)
		}
		b.SetScript(upstreamtest.Always(upstreamtest.Action{}))
		b.ask(t, 1)
		time.Sleep(5 * time.Second)
		b.ask(t, 1)
		if s := b.Stats().Servers[0]; s.Open > 3 {
			t.Errorf("%d connections remain, want 3 at most", s.Open)
		}
	})
}
