// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/zone"
)

// A gateRecorder records what a reader sees when the gate closes, when the owners are notified, and when it opens.
type gateRecorder struct {
	see  func() string
	seen []string
}

func (g *gateRecorder) Close() { g.seen = append(g.seen, "close "+g.see()) }
func (g *gateRecorder) Open()  { g.seen = append(g.seen, "open "+g.see()) }

// TestGate changes a store. The gate is closed before a reader sees the change, and opens after the last notification.
func TestGate(t *testing.T) {
	t.Parallel()
	s, now := zone.NewStore(), epoch()
	s.PutNamespace("shop", now)
	freshen(s, now)
	z, err := zone.New(zone.Config{Store: s, Domain: "cluster.local.", AllSlices: true, Pods: zone.PodsVerified})
	assert.NoError(t, err)
	web := func(addr string) zone.Service {
		return zone.Service{Namespace: "shop", Name: "web", Addrs: addrs(addr), Ports: []zone.Port{{Name: "http", Number: 80}}, TTL: -1}
	}
	slice := zone.Slice{Namespace: "shop", Name: "db-1", Service: "db", Endpoints: []zone.Endpoint{ready("10.0.0.1")}}
	tests := []struct {
		name   string
		asked  string
		change func()
		sees   [2]int // answers before and after
	}{
		{name: "a new service", asked: "web.shop.svc.cluster.local.", change: func() { s.PutService(web("10.96.0.1"), now) }, sees: [2]int{0, 1}},
		{name: "the same service", asked: "web.shop.svc.cluster.local.", change: func() { s.PutService(web("10.96.0.1"), now) }},
		{name: "a deleted service", asked: "web.shop.svc.cluster.local.", change: func() { s.Delete(zone.Services, "shop", "web", now) }, sees: [2]int{1, 0}},
		{
			name: "a slice", asked: "db.shop.svc.cluster.local.", sees: [2]int{0, 1},
			change: func() { s.PutSlice(slice, now) },
		},
		{
			name: "a pod", asked: "10-2-0-1.shop.pod.cluster.local.", sees: [2]int{0, 1},
			change: func() { s.PutPod(zone.Pod{Namespace: "shop", Name: "p", Addrs: addrs("10.2.0.1")}, now) },
		},
		{name: "the same slice", asked: "db.shop.svc.cluster.local.", change: func() { s.PutSlice(slice, now) }},
	}
	s.PutService(zone.Service{Namespace: "shop", Name: "db", Type: zone.Headless, TTL: -1}, now)
	g := &gateRecorder{}
	s.SetGate(g)
	s.Observe([][]byte{canonical(t, "cluster.local.")}, func([]byte) { g.seen = append(g.seen, "notify") })
	for _, tt := range tests { // one after the other
		g.seen = nil
		g.see = func() string { return fmt.Sprint(len(ask(t, z, tt.asked, dns.TypeA, 0, now).Answer)) }
		tt.change()
		var want []string
		if tt.sees[0] != tt.sees[1] {
			want = []string{fmt.Sprint("close ", tt.sees[0]), "notify", fmt.Sprint("open ", tt.sees[1])}
		}
		if got := slices.Compact(g.seen); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", tt.name, got, want)
		}
	}
	s.Versions().Keep(zone.Zones{z}, now)
	_, err = z.Records(now, zone.Secondary{}, func(zone.Record) error { return nil })
	assert.NoError(t, err)
	s.PutService(web("10.96.0.1"), now)
	before := s.Serial()
	g.seen, g.see = nil, func() string { return fmt.Sprint(s.Serial() == before) }
	s.Versions().Cut(now)
	assert.Same(t, "a version for transfers, whose serial number denials have", []string{"close true", "open false"}, g.seen)
}
