// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// tally counts the answers to queries and the failures.
type tally struct{ good, failed atomic.Int32 }

func (o *tally) Answered(_ *wire.Message, err error, _ *wire.SendBatch) {
	if err == nil {
		o.good.Add(1)
	} else {
		o.failed.Add(1)
	}
}

// 1,000 queries a second, upstreams down: what a fallback gets that is silent, that
// answers SERVFAIL, and that answers.
func TestFallbackBounds(t *testing.T) {
	t.Parallel()
	record := upstreamtest.Action{Records: []string{"www.example. 60 IN A 192.0.2.1"}}
	for _, tt := range []struct {
		name     string
		action   upstreamtest.Action
		queries  int32 // at most, in 10 s
		inflight int32 // at most
		answered bool  // all but the first
	}{
		{name: "silent", action: upstreamtest.Action{Drop: true}, queries: 32*maxTriesOfOne + 5*10*maxTriesOfOne, inflight: 32},
		{name: "SERVFAIL", action: upstreamtest.Action{Rcode: dns.RcodeServerFailure, Delay: time.Millisecond}, queries: (8 + 32 + 5*10) * maxTriesOfOne, inflight: 32},
		{name: "good", action: upstreamtest.Action{Records: record.Records, Delay: time.Millisecond}, queries: 10_000, inflight: 32, answered: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				addr := netip.MustParseAddrPort("10.96.0.10:53")
				var asked atomic.Int32
				server := upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
					if !q.Probe {
						asked.Add(1)
					}
					return tt.action
				})
				dial := upstreamtest.Network{addr: server}.Dial
				f, err := NewFallback(Config{Zone: []byte{0}, Targets: []Target{{Network: "tcp", Addr: addr}}, Dial: dial})
				assert.NoError(t, err)
				down, err := New(Config{Zone: []byte{0}, Targets: []Target{{Network: "udp", Addr: netip.MustParseAddrPort("192.0.2.1:53")}}, Dial: dial})
				assert.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				for _, p := range []*Pool{f.Pool, down} {
					running.Go(func() { assert.NoError(t, p.Run(ctx)) })
				}
				pool := &BackedPool{Pool: down, Fallback: f}
				query, err := new(dns.Msg).SetQuestion("www.example.", dns.TypeA).SetEdns0(1232, false).Pack()
				assert.NoError(t, err)
				var got tally
				var most int32
				const queries = 10_000
				for range queries {
					var batch wire.SendBatch
					pool.Ask(query, time.Now().Add(4*time.Second), &got, &batch)
					batch.Flush()
					most = max(most, f.inflight.Load())
					time.Sleep(time.Millisecond)
				}
				time.Sleep(4 * time.Second)
				t.Logf("of %d queries %d were answered and %d failed; the fallback got %d, %d at a time", queries, got.good.Load(), got.failed.Load(), asked.Load(), most)
				if n := asked.Load(); n > tt.queries || most > tt.inflight || f.inflight.Load() != 0 {
					t.Errorf("the fallback got %d queries, %d at a time, want at most %d, %d; %d left, want none", n, most, tt.queries, tt.inflight, f.inflight.Load())
				}
				if got.good.Load()+got.failed.Load() != queries || tt.answered && got.failed.Load() > 1 {
					t.Errorf("%d answers and %d failures", got.good.Load(), got.failed.Load())
				}
				cancel()
				running.Wait()
			})
		})
	}
}

// maxTriesOfOne is how often a pool asks its only server for one query.
const maxTriesOfOne = 3
