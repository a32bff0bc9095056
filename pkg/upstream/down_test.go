// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// Recovery is noticed even if the upstream has become slower than a quick probe waits, or filters the quick probe's
// question.
func TestRecoveryOnOtherPath(t *testing.T) {
	t.Parallel()
	silent, back := upstreamtest.Action{Drop: true}, one("192.0.2.10")
	tests := []struct {
		name    string
		network string
		script  upstreamtest.Script
		dial    time.Duration // duration of connecting
	}{
		{name: "slow over UDP", network: "udp", script: upstreamtest.Always(after(1500*time.Millisecond, back))},
		{name: "slow over TCP", network: "tcp", script: upstreamtest.Always(after(1500*time.Millisecond, back))},
		{name: "slow to shake hands", network: "tcp", script: upstreamtest.Always(back), dial: time.Second},
		{
			name: "filter", network: "udp",
			script: func(q upstreamtest.Query) upstreamtest.Action {
				if q.Name == "." && q.Type == dns.TypeNS {
					return silent
				}
				return back
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := upstreamtest.New(upstreamtest.Always(silent))
				p := newPool(t, upstream.Config{
					Targets: []upstream.Target{target(tt.network, addrA)},
					Dial: func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
						time.Sleep(tt.dial)
						return upstreamtest.Network{addrA: a}.Dial(ctx, network, addr)
					},
				})
				run(t, p)
				ask(t, p)
				ask(t, p)
				if !p.Stats().Servers[0].Down {
					t.Fatal("it is not down, so that nothing can be shown")
				}
				_, by := askBy(t, p)
				assert.Equal(t, "while it is down, failed by", "all_down", by)
				a.SetScript(tt.script)
				time.Sleep(8 * time.Second)
				assert.Equal(t, "answer long after its return", "192.0.2.10", ask(t, p))
			})
		})
	}
}

// AllDown is true while every upstream fails, until a probe is answered.
func TestPoolAllDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		p := h.pool(t, endpoints(list(addrA), list(addrL)))
		var got []bool
		note := func() { got = append(got, p.AllDown()) }
		note() // no query so far
		ask(t, p)
		note()
		h.end(addrA)
		ask(t, p)
		note() // the last resort answers
		h.end(addrL)
		ask(t, p)
		note()
		time.Sleep(6 * time.Second)
		note() // the probes are not answered
		h.set(addrA, healthy("192.0.2.10"), nil)
		time.Sleep(time.Second)
		note()
		assert.Same(t, "all down", []bool{false, false, false, true, true, false}, got)
	})
}
