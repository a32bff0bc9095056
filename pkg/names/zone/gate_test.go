// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
)

// An orderRecorder records the calls of an observer, and what a reader sees in them.
type orderRecorder struct {
	see  func() string
	seen []string
}

func (o *orderRecorder) Changing()           { o.seen = append(o.seen, "changing "+o.see()) }
func (o *orderRecorder) OwnerChanged([]byte) { o.seen = append(o.seen, "owner "+o.see()) }
func (o *orderRecorder) Changed()            { o.seen = append(o.seen, "changed "+o.see()) }

// TestObserverOrder changes a store. A reader sees the change after the observer's first call, and before it has an owner.
func TestObserverOrder(t *testing.T) {
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
	o := &orderRecorder{}
	s.Observe([][]byte{canonical(t, "cluster.local.")}, o)
	for _, tt := range tests { // one after the other
		o.seen = nil
		o.see = func() string { return fmt.Sprint(len(ask(t, z, tt.asked, dns.TypeA, 0, now).Answer)) }
		tt.change()
		var want []string
		if tt.sees[0] != tt.sees[1] {
			want = []string{fmt.Sprint("changing ", tt.sees[0]), fmt.Sprint("owner ", tt.sees[1]), fmt.Sprint("changed ", tt.sees[1])}
		}
		if got := slices.Compact(o.seen); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", tt.name, got, want)
		}
	}
	s.Versions().Keep(zone.Zones{z}, now)
	_, err = z.Records(now, zone.Secondary{}, func(zone.Record) error { return nil })
	assert.NoError(t, err)
	s.PutService(web("10.96.0.1"), now)
	before := s.Serial()
	o.seen, o.see = nil, func() string { return fmt.Sprint(s.Serial() == before) }
	s.Versions().Cut(now)
	assert.Same(t, "a version for transfers, whose serial number denials have", []string{"changing true", "changed false"}, o.seen)
}
