// SPDX-License-Identifier: Apache-2.0

package nftables_test

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/intercept/nftables"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// Queries to 169.254.20.10 go to this process for three seconds or until it ends, and
// then to 10.0.0.5.
func ExampleBackend() {
	ctx := context.Background()
	backend, err := nftables.New(slog.Default())
	if err != nil {
		return // for example without the capability NET_ADMIN
	}
	defer func() { _ = backend.Close() }()
	address := netip.MustParseAddr("169.254.20.10")
	if _, err := backend.Apply(ctx, rules.Rules{
		Owner:     "example",
		Mode:      rules.LinkLocal,
		Addresses: []netip.Addr{address},
		Port:      53,
		Fallback:  []netip.AddrPort{netip.MustParseAddrPort("10.0.0.5:53")},
	}); err != nil {
		return
	}
	_ = backend.Renew(ctx, []netip.Addr{address}, 3*time.Second)
}
