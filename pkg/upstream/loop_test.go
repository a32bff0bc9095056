// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// The first query to an upstream that loops back detects the loop. The upstream is excluded, also for exchanges that
// wait for it, until the loop ends.
func TestPoolExcludesLoop(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"udp", "tcp"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				loops := upstream.NewLoopDetector(nil)
				var recovered atomic.Bool
				a := upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
					switch {
					case recovered.Load():
						return after(time.Millisecond, one("192.0.2.10"))
					case strings.Contains(q.Name, ".loop.node-cache."):
						name := q.Raw[wire.HeaderLen : len(q.Raw)-4]
						if !loops.Detected(name) {
							t.Errorf("probe %q not detected", q.Name)
						}
					}
					return upstreamtest.Action{Drop: true} // it waits for this process, which waits for it
				})
				b := upstreamtest.New(upstreamtest.Always(after(2*time.Millisecond, one("192.0.2.20"))))
				log, lines := logger()
				p := newPool(t, upstream.Config{
					Policy: upstream.Sequential, LoopDetector: loops, Zone: []byte("\x07example\x00"), Log: log,
					Dial:    upstreamtest.Network{addrA: a, addrB: b}.Dial,
					Targets: []upstream.Target{target(network, addrA), target(network, addrB)},
				})
				run(t, p)
				for i := range 20 {
					start := time.Now()
					if got := ask(t, p); got != "192.0.2.20" {
						t.Errorf("answer %q, want that of the other", got)
					}
					if took := time.Since(start); i > 0 && took > 2*time.Millisecond {
						t.Errorf("query %d took %v, want 2ms: it is known", i, took)
					}
				}
				if got := p.Stats().Servers; !got[0].Looped || got[1].Looped || len(a.Queries()) != 1 {
					t.Errorf("looped %v and %v after %d queries to the first, want it excluded after one", got[0].Looped, got[1].Looped, len(a.Queries()))
				}
				recovered.Store(true)
				time.Sleep(90 * time.Second)
				if got := ask(t, p); got != "192.0.2.10" || p.Stats().Servers[0].Looped {
					t.Errorf("answer %q, looped %v 90 s after the loop ended", got, p.Stats().Servers[0].Looped)
				}
				want := "upstream loop detected upstream=" + network + "://192.0.2.1:53"
				if log := lines(); len(log) != 2 || !strings.Contains(log[0], want) || !strings.Contains(log[1], "upstream loop cleared") {
					t.Errorf("log %q, want %q and its end", log, want)
				}
			})
		})
	}
}
