// SPDX-License-Identifier: Apache-2.0

package status

import (
	"net/netip"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
)

func TestServerStatus(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddrPort("192.0.2.1:853")
	for _, tt := range []struct {
		name  string
		stats upstream.ServerStats
		want  Server
	}{
		{
			name: "not asked yet", stats: upstream.ServerStats{Network: "udp", Addr: addr},
			want: Server{Address: "udp://192.0.2.1:853", State: "good"},
		},
		{
			name: "everything",
			stats: upstream.ServerStats{
				Network: "tls", Addr: addr, Name: "dns.example", Far: true, LastResort: true, Requests: 1000, Failures: [upstream.NumCauses]uint64{upstream.CauseTLS: 3},
				SRTT: 1234567, P95: 4321987, Hedged: 5, Won: 4, Explored: 6, Outstanding: 3, Failing: true, Probes: 7,
				Limitations: []string{"no-edns"}, Sockets: 1, Open: 2, Opened: 9, Resumed: 8, LastError: "certificate has expired",
			},
			want: Server{
				Address: "tls://192.0.2.1:853", Name: "dns.example", State: "failing", Cause: "timeout", Far: true, Last: true,
				Requests: 1000, Outstanding: 3, Failures: map[string]uint64{"tls": 3}, Latency: new(0.00123),
				Late: &Late{After: new(0.00432), Hedged: 5, Won: 4}, Explored: 6, Probes: 7,
				Open: &Open{Sockets: 1, Connections: 2, Opened: 9, Resumed: 8}, Limitations: []string{"no-edns"}, LastError: "certificate has expired",
			},
		},
		{
			name: "down", stats: upstream.ServerStats{Network: "tcp", Addr: addr, Failing: true, Down: true, Hedged: 1, Opened: 1},
			want: Server{
				Address: "tcp://192.0.2.1:853", State: "down", Cause: "timeout",
				Late: &Late{Hedged: 1}, Open: &Open{Opened: 1},
			},
		},
		{
			name: "looped and down", stats: upstream.ServerStats{Network: "tcp", Addr: addr, Failing: true, Down: true, Looped: true},
			want: Server{Address: "tcp://192.0.2.1:853", State: "looped"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			assert.Same(t, "status", tt.want, serverOf(&tt.stats))
		})
	}
}

func TestServerProblems(t *testing.T) {
	t.Parallel()
	const (
		again  = "; the agent retries by itself"
		reach  = "check that it runs and is reachable from this pod" + again
		secure = "check that it is reachable and that its certificate matches the configured name" + again
		serves = "check that it serves these names, and that it permits queries from this node; it is asked as before"
		all    = "check the network of this node first, then the upstreams; names in the cache get stale answers meanwhile, others fail or go to the fallback"
	)
	at := func(reason Reason, subject, what, hint string) Problem {
		return Problem{Reason: reason, Where: "forward .", What: what, Hint: hint, Subject: subject}
	}
	for _, tt := range []struct {
		name    string
		servers []Server
		want    problems
	}{
		{"one is good", []Server{
			{Address: "udp://192.0.2.1:53", State: "good", LastError: "an old one"},
			{Address: "udp://192.0.2.2:53", State: "failing"},
			{Address: "udp://192.0.2.3:53", State: "down", Cause: "timeout"},
			{Address: "tls://192.0.2.6:853", State: "failing", LastError: "certificate is for another name"},
			{Address: "tls://192.0.2.4:853", State: "down", LastError: "certificate has expired"},
			{Address: "udp://192.0.2.5:53", State: "looped", LastError: "an old one"},
			{Address: "udp://192.0.2.7:53", State: "errors", Cause: "refused"},
		}, problems{
			at(UpstreamDown, "udp://192.0.2.3:53", "udp://192.0.2.3:53 is down: its latest queries got no answer (timeout)", reach),
			at(UpstreamDown, "tls://192.0.2.6:853", "tls://192.0.2.6:853 is failing: certificate is for another name", secure),
			at(UpstreamDown, "tls://192.0.2.4:853", "tls://192.0.2.4:853 is down: certificate has expired", secure),
			at(UpstreamLooped, "udp://192.0.2.5:53", "udp://192.0.2.5:53 is left out: it forwards queries back to this agent", "check where it forwards to"+again),
			at(UpstreamErrors, "udp://192.0.2.7:53", "udp://192.0.2.7:53 answers with errors only, the latest is refused", serves),
		}},
		{"none is", []Server{
			{Address: "udp://192.0.2.1:53", State: "errors", Cause: "refused"},
			{Address: "udp://192.0.2.2:53", State: "down", Cause: "timeout"},
		}, problems{
			at(RouteDown, "", "no upstream gives a good answer: udp://192.0.2.1:53 errors (refused), udp://192.0.2.2:53 down (timeout)", all),
			at(UpstreamErrors, "udp://192.0.2.1:53", "udp://192.0.2.1:53 answers with errors only, the latest is refused", serves),
			at(UpstreamDown, "udp://192.0.2.2:53", "udp://192.0.2.2:53 is down: its latest queries got no answer (timeout)", reach),
		}},
		{"the only ones may recover", []Server{{Address: "udp://192.0.2.1:53", State: "failing"}}, nil},
	} {
		var got problems
		got.addServers("forward .", tt.servers)
		assert.Same(t, tt.name, tt.want, got)
	}
}

// TestRefusedPod has a pod and a Service over the limit of their namespace: only the Service is named.
func TestRefusedPod(t *testing.T) {
	t.Parallel()
	held := zone.KindStats{Refused: 1, LastRefused: "shop/web-1"}
	assert.Equal(t, "a pod", "shop", KindOf(&watch.KindStats{Kind: zone.Pods}, held).LastRefused)
	assert.Equal(t, "a Service", "shop/web-1", KindOf(&watch.KindStats{Kind: zone.Services}, held).LastRefused)
}
