// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"fmt"
	"net/netip"

	"github.com/nodecache/node-cache/pkg/upstream"
)

func ExampleEndpoints() {
	first := netip.MustParseAddrPort("10.244.1.7:53")
	second := netip.MustParseAddrPort("10.244.2.9:53")
	service := netip.MustParseAddrPort("10.96.0.10:53")
	var endpoints upstream.Endpoints

	pool, err := upstream.New(upstream.Config{Endpoints: &endpoints, Connections: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("empty:", pool.Empty())
	endpoints.Set([]upstream.Server{{Addr: first}, {Addr: second}}, []upstream.Server{{Addr: service}})
	for _, server := range pool.Stats().Servers {
		fmt.Println(server.Network, server.Addr)
	}
	// Output:
	// empty: true
	// tcp 10.244.1.7:53
	// tcp 10.244.2.9:53
	// tcp 10.96.0.10:53
}
