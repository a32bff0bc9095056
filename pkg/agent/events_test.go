// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/zone"
)

// TestEventsInLocalMode has a zone that was never in sync, so that the central resolver is asked for what the zone does
// not hold. Its cached answer for a service is dropped when the zone receives that service, and no other answer is.
func TestEventsInLocalMode(t *testing.T) {
	t.Parallel()
	say := func(addr string) upstreamtest.Script {
		return upstreamtest.Zone("late.shop.svc.cluster.local. 300 IN A "+addr, "other.shop.svc.cluster.local. 300 IN A "+addr,
			"another.shop.svc.cluster.local. 300 IN A "+addr)
	}
	central := upstreamtest.New(say("192.0.2.1"))
	cfg := nodeConfig(t)
	cfg.Interface.Manage, cfg.Intercept.Manage = false, false
	cfg.Cluster.Resolver, cfg.Cluster.Kubeconfig = config.ResolverLocal, awayKubeconfig(t)
	cfg.Cluster.Central.Addresses = []netip.AddrPort{central.Listen(t)}
	a := agentOnHost(t, newFakeHost(), cfg)
	runNode(t, a)
	<-a.Ready()
	ask := func(name string) string {
		r, _, err := (&dns.Client{Timeout: 10 * time.Second}).Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), a.Addrs()[0].String())
		if err != nil || len(r.Answer) != 1 {
			t.Fatalf("%s: %v %v", name, err, r)
		}
		return r.Answer[0].(*dns.A).A.String()
	}
	// One of those that do not change may share its place in the table of owners with what does.
	askOthers := func() string {
		return min(ask("other.shop.svc.cluster.local."), ask("another.shop.svc.cluster.local."))
	}
	store := a.running.Load().cluster.store
	for _, step := range []struct {
		name        string
		do          func()
		late, other string
	}{
		{"at first", func() {}, "192.0.2.1", "192.0.2.1"},
		{"the central resolver has another answer", func() { central.SetScript(say("192.0.2.2")) }, "192.0.2.1", "192.0.2.1"},
		{"the service comes and goes", func() {
			now := time.Now()
			store.PutService(zone.Service{Namespace: "shop", Name: "late", TTL: -1}, now)
			store.Delete(zone.Services, "shop", "late", now)
		}, "192.0.2.2", "192.0.2.1"},
		{"again", func() {
			central.SetScript(say("192.0.2.3"))
			now := time.Now()
			store.PutSlice(zone.Slice{Namespace: "shop", Name: "late-1", Service: "late"}, now)
		}, "192.0.2.3", "192.0.2.1"},
	} {
		step.do()
		if late, other := ask("late.shop.svc.cluster.local."), askOthers(); late != step.late || other != step.other {
			t.Errorf("%s: late is %s, want %s; other is %s, want %s", step.name, late, step.late, other, step.other)
		}
	}
}

// BenchmarkFirstList is what the events of the first list of a large cluster cost: three for each service.
func BenchmarkFirstList(b *testing.B) {
	kept, err := cache.New(cache.Config{Size: 16 << 20}, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	a := new(builder)
	a.ownerChanged = func(owner []byte) { kept.OwnerChanged(owner, time.Now()) }
	const services = 11000
	for _, heeded := range []bool{false, true} {
		b.Run(fmt.Sprintf("%d services/events=%t", services, heeded), func(b *testing.B) {
			for b.Loop() {
				c := &cluster{domain: []byte("\x07cluster\x05local\x00"), events: zone.NewStore()}
				if heeded {
					a.observe(c)
				}
				for i := range services {
					c.events.PutService(zone.Service{
						Namespace: fmt.Sprint("team-", i%50), Name: fmt.Sprint("service-", i), TTL: -1,
						Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
						Ports: []zone.Port{{Name: "http", Number: 80}, {Name: "metrics", Number: 9090}},
					}, time.Now())
				}
			}
		})
	}
}
