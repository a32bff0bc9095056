// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/intercepttest"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

func ExampleKeeper() {
	address := netip.MustParseAddr("169.254.20.10")
	kernel := intercepttest.NewFake(time.Now) // on a node: nftables.New or iptables.New
	k, err := intercept.New(intercept.Config{
		Backend: kernel.Open(),
		Rules: rules.Rules{
			Owner: "0123abcd", Addresses: []netip.Addr{address}, Port: 53,
			Fallback: []netip.AddrPort{netip.MustParseAddrPort("10.244.0.3:53")},
		},
		Probe: func(context.Context, netip.Addr) (intercept.Cause, error) { return 0, nil }, // on a node: Prober.Probe
		Now:   time.Now,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- k.Run(ctx) }()

	k.Start() // the agent answers
	for !k.Stats().Leases[0].Held {
		time.Sleep(time.Millisecond)
	}
	query := intercepttest.Packet{Network: "udp", To: netip.AddrPortFrom(address, 53)}
	fmt.Println("to the agent:", kernel.Route(query).Decision == intercepttest.ToAgent)

	if err := k.Release(ctx, 5*time.Second); err != nil { // the agent is about to stop
		fmt.Println(err)
	}
	fmt.Println("to", kernel.Route(query).To)
	cancel()
	fmt.Println(<-ended)
	// Output:
	// to the agent: true
	// to 10.244.0.3:53
	// <nil>
}
