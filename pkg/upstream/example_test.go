// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

func ExamplePool_Exchange() {
	addr := netip.MustParseAddrPort("192.0.2.53:53")
	server := upstreamtest.New(upstreamtest.Zone("www.example. 60 IN A 192.0.2.10"))

	pool, err := upstream.New(upstream.Config{
		Targets: []upstream.Target{{Network: "udp", Addr: addr}},
		Dial:    upstreamtest.Network{addr: server}.Dial,
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	q, _ := new(dns.Msg).SetQuestion("www.example.", dns.TypeA).Pack()
	answer, err := pool.Exchange(ctx, q, nil)
	if failure, ok := errors.AsType[*upstream.Failure](err); ok {
		fmt.Println("SERVFAIL:", failure.Reason)
		return
	}
	var m dns.Msg
	if err := m.Unpack(answer); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.Answer[0])
	// Output: www.example.	60	IN	A	192.0.2.10
}

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
