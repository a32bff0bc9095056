// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// When all are down each query is told so at once, nobody is asked but by probes, and all is well within a second of
// their return.
func TestAllDown(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"udp", "tcp"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Drop: true}))
				b := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Drop: true}))
				p := memory(t, network, upstreamtest.Network{addrA: a, addrB: b}, addrA, addrB)
				var clients sync.WaitGroup
				for range 50 {
					clients.Go(func() { ask(t, p) })
				}
				clients.Wait()
				ask(t, p) // three faults, over more than one query's time
				asked := len(a.Queries()) + len(b.Queries())
				for range 1000 {
					start := time.Now()
					ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
					_, err := p.Exchange(ctx, question(t, "www.example."), nil)
					cancel()
					if took := time.Since(start); took > 0 || err == nil {
						t.Fatalf("%v after %v, want a failure at once", err, took)
					}
					failure, _ := errors.AsType[*upstream.Failure](err)
					if failure.EDE() != wire.EDENoReachableAuthority {
						t.Fatalf("EDE %d, want %d", failure.EDE(), wire.EDENoReachableAuthority)
					}
					time.Sleep(time.Millisecond)
				}
				if more := len(a.Queries()) + len(b.Queries()) - asked; more > 0 {
					t.Errorf("%d queries to upstreams that are down, want none", more)
				}
				if probes := a.Probes(); probes < 2 {
					t.Errorf("%d probes, want them to go on", probes)
				}
				b.SetScript(healthy("192.0.2.20"))
				time.Sleep(time.Second)
				if got := ask(t, p); got != "192.0.2.20" {
					t.Errorf("answer %q a second after its return, want 192.0.2.20", got)
				}
			})
		})
	}
}

// Who is down stays out of everybody's way, however short of choice.
func TestOneDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Drop: true}))
		b := upstreamtest.New(upstreamtest.Always(rcode(5)))
		p := memory(t, "udp", upstreamtest.Network{addrA: a, addrB: b}, addrA, addrB)
		for range 3 {
			ask(t, p)
			time.Sleep(time.Second)
		}
		if s := p.Stats().Servers; !s[0].Down || s[1].Down || s[1].Failing {
			t.Fatalf("A down %v, B down %v, failing %v, want A down", s[0].Down, s[1].Down, s[1].Failing)
		}
		before := len(a.Queries())
		start := time.Now()
		if got := ask(t, p); got != "rcode REFUSED" {
			t.Errorf("outcome %q, want what B says", got)
		}
		if took := time.Since(start); took > 0 || len(a.Queries()) > before {
			t.Errorf("it took %v and %d queries to A, want none", took, len(a.Queries())-before)
		}
	})
}
