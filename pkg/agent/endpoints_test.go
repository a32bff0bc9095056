// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
)

// farOf reports for each server of a pool whether it is far.
func farOf(p *upstream.Pool) map[string]bool {
	list := map[string]bool{}
	for _, s := range p.Stats().Servers {
		list[s.Addr.String()] = s.Far
	}
	return list
}

// TestCentralEndpoints sets endpoints and zone in either order, and changes both.
func TestCentralEndpoints(t *testing.T) {
	t.Parallel()
	ready := []watch.Server{
		{Addr: netip.MustParseAddrPort("10.244.0.1:53"), Zone: "a"},
		{Addr: netip.MustParseAddrPort("10.244.0.2:53"), Zone: "b"},
		{Addr: netip.MustParseAddrPort("10.244.0.3:53")},
	}
	own := []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:53")}
	for _, tt := range []struct {
		name string
		do   func(n *centralEndpoints)
		want map[string]bool
	}{
		{name: "the zone alone", do: func(n *centralEndpoints) { n.setZone("a") }, want: map[string]bool{}},
		{
			name: "the endpoints alone", do: func(n *centralEndpoints) { n.set(ready, own) },
			want: map[string]bool{"10.244.0.1:53": false, "10.244.0.2:53": false, "10.244.0.3:53": false, "10.96.0.10:53": false},
		},
		{
			name: "the zone, then the endpoints", do: func(n *centralEndpoints) { n.setZone("a"); n.set(ready, own) },
			want: map[string]bool{"10.244.0.1:53": false, "10.244.0.2:53": true, "10.244.0.3:53": false, "10.96.0.10:53": false},
		},
		{
			name: "the endpoints, then the zone", do: func(n *centralEndpoints) { n.set(ready, own); n.setZone("a") },
			want: map[string]bool{"10.244.0.1:53": false, "10.244.0.2:53": true, "10.244.0.3:53": false, "10.96.0.10:53": false},
		},
		{
			name: "another zone", do: func(n *centralEndpoints) { n.setZone("a"); n.set(ready, own); n.setZone("b") },
			want: map[string]bool{"10.244.0.1:53": true, "10.244.0.2:53": false, "10.244.0.3:53": false, "10.96.0.10:53": false},
		},
		{
			name: "no zone any more", do: func(n *centralEndpoints) { n.setZone("a"); n.set(ready, own); n.setZone("") },
			want: map[string]bool{"10.244.0.1:53": false, "10.244.0.2:53": false, "10.244.0.3:53": false, "10.96.0.10:53": false},
		},
		{
			name: "other endpoints", do: func(n *centralEndpoints) { n.setZone("a"); n.set(ready, own); n.set(ready[1:2], nil) },
			want: map[string]bool{"10.244.0.2:53": true},
		},
		{name: "none any more", do: func(n *centralEndpoints) { n.set(ready, own); n.set(nil, nil); n.setZone("a") }, want: map[string]bool{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := &centralEndpoints{endpoints: new(upstream.Endpoints)}
			pool, err := upstream.New(upstream.Config{Endpoints: n.endpoints})
			if err != nil {
				t.Fatal(err)
			}
			tt.do(n)
			if diff := cmp.Diff(tt.want, farOf(pool)); diff != "" {
				t.Errorf("far (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCentralEndpointsConcurrent sets endpoints and zone from two goroutines: the last value of each must count.
func TestCentralEndpointsConcurrent(t *testing.T) {
	t.Parallel()
	n := &centralEndpoints{endpoints: new(upstream.Endpoints)}
	pool, err := upstream.New(upstream.Config{Endpoints: n.endpoints})
	if err != nil {
		t.Fatal(err)
	}
	addr := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}), 53)
	}
	var both sync.WaitGroup
	both.Go(func() {
		for i := range 100 {
			n.set([]watch.Server{{Addr: addr(i), Zone: "b"}}, nil)
		}
	})
	both.Go(func() {
		for range 100 {
			n.setZone("b")
			n.setZone("a")
		}
	})
	both.Wait()
	if diff := cmp.Diff(map[string]bool{addr(99).String(): true}, farOf(pool)); diff != "" {
		t.Errorf("far (-want +got):\n%s", diff)
	}
}
