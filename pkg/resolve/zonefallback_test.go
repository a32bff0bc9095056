// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/zone"
)

// TestZoneFallback has a zone that is not confirmed fresh, and a central resolver that fails: a name
// that the zone does not hold is denied nevertheless, at once, and without a query to a central resolver
// that is down.
func TestZoneFallback(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name        string
		unreachable bool
		want        [2]string
		asked       int
	}{
		{name: "none.shop.svc.cluster.local.", want: [2]string{"NXDOMAIN aa / cluster.local. ede=19", "NXDOMAIN aa / cluster.local. ede=19"}, asked: 1},
		{name: "none.shop.svc.cluster.local.", unreachable: true, want: [2]string{"NXDOMAIN aa / cluster.local. ede=19", "NXDOMAIN aa / cluster.local. ede=19"}},
		{name: "web.shop.svc.cluster.local.", want: [2]string{
			"NOERROR aa | web.shop.svc.cluster.local. 5 10.96.0.7 ede=3", "NOERROR aa | web.shop.svc.cluster.local. 5 10.96.0.7 ede=3",
		}},
		// Only the central resolver has it.
		{name: "x.cluster.local.", want: [2]string{"SERVFAIL ede=22", "SERVFAIL ede=13"}, asked: 1},
		{name: "x.cluster.local.", unreachable: true, want: [2]string{"SERVFAIL ede=22", "SERVFAIL ede=13"}, asked: 1},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.name, tt.unreachable), func(t *testing.T) {
			t.Parallel()
			s := shop(time.Now())
			for _, kind := range []zone.Kind{zone.Services, zone.Slices, zone.Namespaces} {
				s.SetSynced(kind)
				s.ConfirmFresh(kind, time.Now().Add(-time.Hour))
			}
			p, _ := clusterPlan(t, s, true)
			central := newUpstream(t)
			central.err = errors.New("refused")
			p.Routes[1] = resolve.Route{Suffix: wireName(t, "cluster.local."), Upstream: central, TTL: bounds(), Exact: true}
			p.Unreachable = func() bool { return tt.unreachable }
			c := newClient(newResolver(t, p), false)
			q := question(tt.name, dns.TypeA)
			q.SetEdns0(1232, false)
			for i, want := range tt.want {
				got := unpack(t, c.exchange(t, pack(t, q)))
				if diff := cmp.Diff(want, say(got)); diff != "" {
					t.Errorf("reply %d (-want +got)\n%s", i, diff)
				}
				if got.Id != q.Id || got.Question[0] != q.Question[0] {
					t.Errorf("reply %d: ID %d, question %v", i, got.Id, got.Question[0])
				}
			}
			if n := central.count(); n != tt.asked {
				t.Errorf("asked the central resolver %d times, want %d", n, tt.asked)
			}
		})
	}
}
