// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// Idle connections are closed after ten seconds, not earlier.
func TestTCPIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(upstreamtest.Always(one("192.0.2.10")))
		p := memory(t, "tcp", upstreamtest.Network{addrA: s}, addrA)
		for range 5 {
			ask(t, p)
			time.Sleep(9 * time.Second)
		}
		if got := p.Stats().Servers[0]; got.Open != 1 || got.Opened != 1 {
			t.Errorf("%d open, %d opened with a query every 9 s, want one", got.Open, got.Opened)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, "open after 10 s", 0, p.Stats().Servers[0].Open)
		if got := ask(t, p); got != "192.0.2.10" || s.Connections() != 2 {
			t.Errorf("answer %q on connection %d, want 192.0.2.10 on the second", got, s.Connections())
		}
	})
}

// 1024 queries fill a connection and 2048 both. Further queries fail at once, without a fault of the upstream.
func TestTCPInflightLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(upstreamtest.Always(after(50*time.Millisecond, one("192.0.2.10"))))
		p := memory(t, "tcp", upstreamtest.Network{addrA: s}, addrA)
		ask(t, p) // measures the latency, so that a penalty would show
		var answered, refused atomic.Int32
		var group sync.WaitGroup
		for range 2100 {
			group.Go(func() {
				switch got := ask(t, p); got {
				case "192.0.2.10":
					answered.Add(1)
				case "network":
					refused.Add(1)
				default:
					t.Errorf("outcome %q", got)
				}
			})
		}
		group.Wait()
		if answered.Load() != 2048 || refused.Load() != 52 || s.Connections() != 2 {
			t.Errorf("%d answered, %d refused, %d connections, want 2048, 52 and 2",
				answered.Load(), refused.Load(), s.Connections())
		}
		if got, want := failures(p), "limit=156"; got != want {
			t.Errorf("failures %q, want %q", got, want)
		}
		if got, want := p.Penalized(0), 50*time.Millisecond; got != want {
			t.Errorf("srtt %v, want %v without a penalty", got, want)
		}
	})
}

// The outbox for a peer that does not read is bounded, however many clients come and go.
func TestTCPOutboxIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var peers []net.Conn // never read
		p := newPool(t, upstream.Config{
			Targets: []upstream.Target{target("tcp", addrA)},
			Dial: func(context.Context, string, netip.AddrPort) (net.Conn, error) {
				ours, peer := net.Pipe()
				peers = append(peers, peer)
				return ours, nil
			},
		})
		run(t, p)
		for range 25 { // 1.1 MB of queries in 1.25 s
			var group sync.WaitGroup
			for range 1000 {
				group.Go(func() { askFor(t, p, 50*time.Millisecond) })
			}
			group.Wait()
		}
		if got := p.Stats().Servers[0].Failures[upstream.CauseLimit]; got == 0 {
			t.Error("no query was turned away, want a limit")
		}
	})
}

// A handshake without an answer ends with the last query that waits for it.
func TestTCPAbandonedHandshake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := upstreamtest.New(upstreamtest.Always(one("192.0.2.20")))
		p := memory(t, "tcp", upstreamtest.Network{addrA: nil, addrB: b}, addrA, addrB)
		assert.Equal(t, "answer", "192.0.2.20", ask(t, p))
		synctest.Wait()
		if got := p.Stats().Servers[0]; got.Open != 0 || got.Opened != 1 {
			t.Errorf("%d open, %d opened, want none of one", got.Open, got.Opened)
		}
	})
}

// The end of Run closes idle connections and waits for pending queries. The pool still answers afterwards, and keeps
// nothing open.
func TestTCPRunEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(upstreamtest.Always(after(300*time.Millisecond, one("192.0.2.10"))))
		servers := upstreamtest.Network{addrA: s}
		p := newPool(t, upstream.Config{Targets: []upstream.Target{target("tcp", addrA)}, Dial: servers.Dial})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan time.Time, 1)
		go func() {
			_ = p.Run(ctx)
			ended <- time.Now()
		}()
		start := time.Now()
		var group sync.WaitGroup
		group.Go(func() {
			assert.Equal(t, "pending: answer", "192.0.2.10", ask(t, p))
		})
		time.Sleep(100 * time.Millisecond)
		cancel()
		group.Wait()
		if got, want := (<-ended).Sub(start), 300*time.Millisecond; got != want {
			t.Errorf("Run ended after %v, want %v, with the query", got, want)
		}
		assert.Equal(t, "afterwards: answer", "192.0.2.10", ask(t, p))
		if got := p.Stats().Servers[0]; got.Open != 0 || got.Opened != 2 {
			t.Errorf("%d open, %d opened, want none of two", got.Open, got.Opened)
		}
	})
}

// A peer that hangs on its connections but serves new ones stays usable, for sequential and for continuous clients.
func TestTCPSilentConnectionsAreReplaced(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		every time.Duration // between two clients
		want  string        // outcomes of the clients, in order
	}{
		{name: "one after the other", every: 5 * time.Second, want: "192.0.2.10 192.0.2.10 192.0.2.10"},
		{name: "without a pause", every: 2 * time.Second, want: "192.0.2.10 192.0.2.10 192.0.2.10"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
					if q.Conn <= 2 {
						return upstreamtest.Action{Drop: true}
					}
					return one("192.0.2.10")
				})
				p := memory(t, "tcp", upstreamtest.Network{addrA: s}, addrA)
				got := make([]string, 3)
				var clients sync.WaitGroup
				for i := range got {
					clients.Go(func() { got[i] = ask(t, p) })
					time.Sleep(tc.every)
				}
				clients.Wait()
				assert.Equal(t, "got", tc.want, strings.Join(got, " "))
			})
		})
	}
}

// Short queries do not keep a stalled connection open: it is closed 800 ms after the first one.
func TestTCPStuckUnderShortQueries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
			if q.Conn == 1 {
				return upstreamtest.Action{Drop: true}
			}
			return one("192.0.2.10")
		})
		p := memory(t, "tcp", upstreamtest.Network{addrA: s}, addrA)
		got := make([]string, 5)
		start := time.Now()
		for i := range got {
			time.Sleep(time.Until(start.Add(time.Duration(i) * 300 * time.Millisecond)))
			got[i] = askFor(t, p, 150*time.Millisecond)
		}
		if got, want := strings.Join(got, " "), "timeout timeout timeout 192.0.2.10 192.0.2.10"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// An answer to a canceled query shows that the connection works.
func TestTCPLateAnswerKeepsConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(upstreamtest.Sequence(
			after(300*time.Millisecond, one("192.0.2.10")), one("192.0.2.10"), upstreamtest.Action{Drop: true}, one("192.0.2.10")))
		p := memory(t, "tcp", upstreamtest.Network{addrA: s}, addrA)
		for i, want := range []string{"timeout", "192.0.2.10", "timeout", "192.0.2.10"} {
			assert.Equal(t, fmt.Sprintf("query %d", i), want, askFor(t, p, 100*time.Millisecond))
			if i == 2 {
				continue // the 800 ms are not over
			}
			time.Sleep(5 * time.Second)
		}
		assert.Equal(t, "connections", 1, s.Connections())
	})
}
