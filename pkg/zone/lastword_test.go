// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
	"github.com/nodecache/node-cache/pkg/zone"
)

// TestLastWord has somebody else to ask, who could not answer.
func TestAnswerStale(t *testing.T) {
	t.Parallel()
	elsewhere := summary{zone.UseFallback, "", wire.EDENone, 0}
	nx := func(ede int) summary { return summary{zone.Answered, "NXDOMAIN", ede, 0} }
	tests := []struct {
		name                   string
		unsynced, stale, fresh summary
	}{
		{"none.shop.svc.cluster.local.", elsewhere, nx(wire.EDEStaleNXDomain), nx(wire.EDENone)},
		{"com.none.shop.svc.cluster.local.", elsewhere, nx(wire.EDEStaleNXDomain), nx(wire.EDENone)},
		{"10-9-9-9.none.pod.cluster.local.", elsewhere, nx(wire.EDEStaleNXDomain), nx(wire.EDENone)},
		// Never this zone's to deny.
		{"x.web.shop.svc.cluster.local.", elsewhere, elsewhere, elsewhere},
		{"x.cluster.local.", elsewhere, elsewhere, elsewhere},
		{"example.com.", summary{zone.NotInZone, "", wire.EDENone, 0}, summary{zone.NotInZone, "", wire.EDENone, 0}, summary{zone.NotInZone, "", wire.EDENone, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for state, want := range map[string]summary{"unsynced": tt.unsynced, "restored": tt.stale, "stale": tt.stale, "fresh": tt.fresh} {
				s, now := zone.NewStore(), epoch()
				s.Expect(zone.Services, zone.Slices, zone.Namespaces, zone.Pods)
				small(s)
				if state != "unsynced" {
					freshen(s, now)
				}
				if state == "restored" {
					s = restored(t, dump(t, s, now), now)
				}
				if state == "stale" {
					now = now.Add(91 * time.Second)
				}
				z, err := zone.New(zone.Config{Store: s, Domain: "cluster.local.", Pods: zone.PodsInsecure, HasFallback: func() bool { return true }})
				if err != nil {
					t.Fatal(err)
				}
				var q wire.Query
				q.Parse(packet(t, tt.name, dns.TypeA))
				msg, res := z.AnswerStale(&q, zone.Client{MaxSize: wire.MaxMessage, Rotation: 0}, now, nil)
				have := summary{Verdict: res.Verdict, EDE: res.EDE}
				if res.Verdict == zone.Answered {
					m := parse(t, msg)
					have.Rcode, have.Records = dns.RcodeToString[m.Rcode], len(m.Answer)
				} else if len(msg) > 0 {
					t.Errorf("%s: %d octets appended, want none", state, len(msg))
				}
				if diff := cmp.Diff(want, have); diff != "" {
					t.Errorf("%s (-want +got):\n%s", state, diff)
				}
			}
		})
	}
}
