// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// serversOf are those of a pool by the last number of their address, "-" behind those that are far.
func serversOf(p *upstream.Pool) string {
	var list []string
	for _, s := range p.Stats().Servers {
		ip := s.Addr.Addr().As4()
		list = append(list, strconv.Itoa(int(ip[3]))+map[bool]string{true: "-"}[s.Far])
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// TestService sets endpoints and zone in either order, and changes both.
func TestService(t *testing.T) {
	t.Parallel()
	ready := []upstream.ServiceEndpoint{
		{Addr: netip.MustParseAddrPort("10.244.0.1:53"), Zone: "a"},
		{Addr: netip.MustParseAddrPort("10.244.0.2:53"), Zone: "b"},
		{Addr: netip.MustParseAddrPort("10.244.0.3:53")},
	}
	own := []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:53")}
	for _, tt := range []struct {
		name string
		do   func(n *upstream.Service)
		want string
	}{
		{"the zone alone", func(n *upstream.Service) { n.SetZone("a") }, ""},
		{"the endpoints alone", func(n *upstream.Service) { n.Set(ready, own) }, "1 10 2 3"},
		{"the zone, then the endpoints", func(n *upstream.Service) { n.SetZone("a"); n.Set(ready, own) }, "1 10 2- 3"},
		{"the endpoints, then the zone", func(n *upstream.Service) { n.Set(ready, own); n.SetZone("a") }, "1 10 2- 3"},
		{"another zone", func(n *upstream.Service) { n.SetZone("a"); n.Set(ready, own); n.SetZone("b") }, "1- 10 2 3"},
		{"no zone any more", func(n *upstream.Service) { n.SetZone("a"); n.Set(ready, own); n.SetZone("") }, "1 10 2 3"},
		{"other endpoints", func(n *upstream.Service) { n.SetZone("a"); n.Set(ready, own); n.Set(ready[1:2], nil) }, "2-"},
		{"the service's own address alone", func(n *upstream.Service) { n.SetOwn(own) }, "10"},
		{"that, then the zone and the endpoints", func(n *upstream.Service) { n.SetOwn(own); n.SetZone("a"); n.Set(ready, own) }, "1 10 2- 3"},
		{"none any more", func(n *upstream.Service) { n.Set(ready, own); n.Set(nil, nil); n.SetZone("a") }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := new(upstream.Service)
			pool, err := upstream.New(upstream.Config{Endpoints: n.Endpoints()})
			assert.NoError(t, err)
			tt.do(n)
			assert.Equal(t, "servers", tt.want, serversOf(pool))
		})
	}
}

// TestServiceRestore reads the records of a snapshot. It has none if the writer had no central resolver.
func TestServiceRestore(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		records []string
		valid   bool
		want    string
	}{
		{"of this scope", []string{"scope", "1800000000000", "10.244.0.1:53 a", "10.96.0.10:53"}, true, "1 10"},
		{"of another scope", []string{"other", "0", "10.244.0.1:53 a"}, true, ""},
		{"too old", []string{"scope", "1800000000001", "10.244.0.1:53 a"}, true, ""},
		{"none", nil, true, ""},
		{"without an age", []string{"scope"}, false, ""},
		{"with an invalid age", []string{"scope", "-1", "10.244.0.1:53 a"}, false, ""},
		{"with an invalid address", []string{"scope", "0", "10.244.0.1:53 a", "10.96.0.10"}, false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := new(upstream.Service)
			pool, err := upstream.New(upstream.Config{Endpoints: n.Endpoints()})
			assert.NoError(t, err)
			var records [][]byte
			for _, record := range tt.records {
				records = append(records, []byte(record))
			}
			use, err := n.Restore("scope", slices.Values(records), time.Hour/2, time.Hour, time.Now())
			if assert.Equal(t, "valid", tt.valid, err == nil); err == nil {
				use()
			}
			assert.Equal(t, "servers", tt.want, serversOf(pool))
		})
	}
}

// TestServiceConcurrent sets endpoints and zone from two goroutines: the last value of each must count.
func TestServiceConcurrent(t *testing.T) {
	t.Parallel()
	n := new(upstream.Service)
	pool, err := upstream.New(upstream.Config{Endpoints: n.Endpoints()})
	assert.NoError(t, err)
	addr := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}), 53)
	}
	var both sync.WaitGroup
	both.Go(func() {
		for i := range 100 {
			n.Set([]upstream.ServiceEndpoint{{Addr: addr(i), Zone: "b"}}, nil)
		}
	})
	both.Go(func() {
		for range 100 {
			n.SetZone("b")
			n.SetZone("a")
		}
	})
	both.Wait()
	if got := serversOf(pool); got != "99-" {
		t.Errorf("servers %q, want 99, which is far", got)
	}
}
