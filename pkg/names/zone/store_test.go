// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

func TestPutReportsChange(t *testing.T) {
	t.Parallel()
	s, now := zone.NewStore(), epoch()
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	svc := zone.Service{Namespace: "shop", Name: "web", Addrs: []netip.Addr{a, b}, Ports: []zone.Port{{Name: "http", Number: 80}}, TTL: -1}
	sl := zone.Slice{Namespace: "shop", Name: "web-1", Service: "web", Endpoints: []zone.Endpoint{{Addrs: []netip.Addr{a}, Ready: true}, {Addrs: []netip.Addr{b}, Ready: true}}}
	tests := []struct {
		name string
		do   func() bool
		want bool
	}{
		{"a new service", func() bool { return s.PutService(svc, now) }, true},
		{"the same", func() bool { return s.PutService(svc, now) }, false},
		{"the same, other order", func() bool {
			o := svc
			o.Addrs = []netip.Addr{b, a}
			return s.PutService(o, now)
		}, false},
		{"another TTL", func() bool {
			svc.TTL = 0
			return s.PutService(svc, now)
		}, true},
		{"another type", func() bool {
			svc.Type = zone.Headless
			return s.PutService(svc, now)
		}, true},
		{"a flag", func() bool {
			svc.PublishNotReady = true
			return s.PutService(svc, now)
		}, true},
		{"a service without a name", func() bool { return s.PutService(zone.Service{Namespace: "shop"}, now) }, false},
		{"a service in upper case", func() bool { return s.PutService(zone.Service{Namespace: "shop", Name: "WEB"}, now) }, false},
		{"a new slice", func() bool { return s.PutSlice(sl, now) }, true},
		{"the same slice, other order", func() bool {
			o := sl
			o.Endpoints = []zone.Endpoint{sl.Endpoints[1], sl.Endpoints[0]}
			return s.PutSlice(o, now)
		}, false},
		{"an endpoint not ready", func() bool {
			o := sl
			o.Endpoints = []zone.Endpoint{sl.Endpoints[0], {Addrs: []netip.Addr{b}}}
			return s.PutSlice(o, now)
		}, true},
		{"a slice of no service", func() bool {
			o := sl
			o.Service = ""
			return s.PutSlice(o, now)
		}, true},
		{"again", func() bool { return s.Delete(zone.Slices, "shop", "web-1", now) }, false},
		{"a pod", func() bool { return s.PutPod(zone.Pod{Namespace: "shop", Name: "p", Addrs: []netip.Addr{a}}, now) }, true},
		{"the same pod", func() bool { return s.PutPod(zone.Pod{Namespace: "shop", Name: "p", Addrs: []netip.Addr{a, a}}, now) }, false},
		{"a namespace", func() bool { return s.PutNamespace("shop", now) }, true},
		{"the same namespace", func() bool { return s.PutNamespace("shop", now) }, false},
		{"delete the namespace", func() bool { return s.Delete(zone.Namespaces, "", "shop", now) }, true},
		{"delete the pod", func() bool { return s.Delete(zone.Pods, "shop", "p", now) }, true},
		{"delete the service", func() bool { return s.Delete(zone.Services, "shop", "web", now) }, true},
		{"delete what is not there", func() bool { return s.Delete(zone.Services, "shop", "web", now) }, false},
		{"delete what cannot be", func() bool { return s.Delete(zone.Services, "", "", now) }, false},
	}
	for _, tt := range tests {
		before := s.Serial()
		assert.Same(t, tt.name, tt.want, tt.do())
		assert.Equal(t, tt.name+": serial changed", tt.want, s.Serial() != before)
	}
	var want [6]zone.KindStats
	assert.Same(t, "an empty store counts", want, s.Stats().Kinds)
}

func TestSerial(t *testing.T) {
	t.Parallel()
	s, now := zone.NewStore(), epoch()
	put := func(at time.Time) uint32 {
		s.PutNamespace("n", at)
		s.Delete(zone.Namespaces, "", "n", at)
		return s.Serial()
	}
	assert.Equal(t, "before any change", 0, s.Serial())
	clock := uint32(now.Unix())
	tests := []struct {
		name string
		at   time.Time
		want uint32
	}{
		{"two changes", now, clock + 1},
		{"two more in the same second", now, clock + 3},
		{"later", now.Add(time.Minute), clock + 61},
		{"the clock steps back a little", now, clock + 63},
		{"the clock steps back by years", now.AddDate(-3, 0, 0), uint32(now.AddDate(-3, 0, 0).Unix()) + 3600},
		{"beyond 2038", time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC), 2208988801},
	}
	for _, tt := range tests {
		assert.Same(t, tt.name, tt.want, put(tt.at))
	}
}

// TestNoOlderStateAfterNewer has readers query names whose addresses contain the version, while a writer replaces,
// deletes and creates them again.
func TestNoOlderStateAfterNewer(t *testing.T) {
	t.Parallel()
	s, now := zone.NewStore(), epoch()
	freshen(s, now)
	z := zoneOf(t, s, zone.Config{AllSlices: true})
	const versions = 3000
	var wrote atomic.Uint32 // versions completely in the store
	addr := func(v int) []netip.Addr { return []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(v >> 8), byte(v)})} }
	ask := func(q *wire.Query, buf []byte) (int, bool) {
		dst, res := zone.Zones{z}.Answer(q, zone.Client{MaxSize: wire.MaxMessage, Rotation: 0}, now, buf)
		if res.Verdict != zone.Answered || dst[3]&0x0f != 0 || dst[7] == 0 {
			return 0, false
		}
		return int(dst[len(dst)-2])<<8 | int(dst[len(dst)-1]), true
	}
	var readers sync.WaitGroup
	for _, name := range []string{"web.shop.svc.cluster.local.", "db.shop.svc.cluster.local.", "one.db.shop.svc.cluster.local."} {
		pkt := packet(t, name, dns.TypeA)
		readers.Go(func() {
			var q wire.Query
			q.Parse(pkt)
			buf, last := make([]byte, 0, 512), 0
			for last < versions {
				least := int(wrote.Load())
				v, ok := ask(&q, buf)
				if ok && (v < last || v < least) {
					t.Errorf("%s: version %d after %d, when %d had been written", name, v, last, least)
					return
				}
				if ok {
					last = v
				}
			}
		})
	}
	for v := 1; v <= versions; v++ {
		if v%7 == 0 {
			s.Delete(zone.Services, "shop", "web", now)
		}
		if v%11 == 0 {
			s.Delete(zone.Slices, "shop", "db-1", now)
		}
		s.PutService(zone.Service{Namespace: "shop", Name: "db", Type: zone.Headless, PublishNotReady: v%2 == 0, TTL: -1}, now)
		s.PutService(zone.Service{Namespace: "shop", Name: "web", Addrs: addr(v), TTL: -1}, now)
		s.PutSlice(zone.Slice{Namespace: "shop", Name: "db-1", Service: "db", Endpoints: []zone.Endpoint{{Addrs: addr(v), Hostname: "one", Ready: true}}}, now)
		s.PutService(zone.Service{Namespace: "shop", Name: fmt.Sprint("other-", v%1000), TTL: -1}, now) // the index grows
		if v%1500 == 0 {
			s.Retain(zone.Services, func(_, name string) bool { return name == "web" || name == "db" }, now) // and shrinks
		}
		wrote.Store(uint32(v))
	}
	readers.Wait()
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	s := zone.NewStore()
	tests := []struct {
		name string
		cfg  zone.Config
		want string
	}{
		{"no domain", zone.Config{Store: s}, `cluster domain "": not a domain name`},
		{"the root", zone.Config{Store: s, Domain: "."}, `cluster domain ".": not a domain name`},
		{"excluded name", zone.Config{Store: s, Domain: "a.", Excluded: []string{"a..b"}}, `name "a..b": not a domain name`},
	}
	for _, tt := range tests {
		if _, err := zone.New(tt.cfg); err == nil || err.Error() != tt.want {
			t.Errorf("%s: error %v, want %s", tt.name, err, tt.want)
		}
	}
}
