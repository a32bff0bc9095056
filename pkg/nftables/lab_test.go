// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/nodelab"
	"github.com/nodecache/node-cache/pkg/rules"
)

const (
	dnsPort   = 53
	adminPort = 9253
	agentName = "agent"
	owner     = "a1"
	longLease = time.Minute
)

func agent4() netip.Addr { return netip.MustParseAddr("169.254.20.10") }
func agent6() netip.Addr { return netip.MustParseAddr("fd00::a:1") }

// in makes a Backend in a host.
func in(t *testing.T, h *nodelab.Host) *Backend {
	t.Helper()
	var b *Backend
	err := h.Do(func() (err error) {
		b, err = New(Config{})
		return err
	})
	if err != nil {
		t.Fatalf("making a backend: %v", err)
	}
	t.Cleanup(func() { _ = b.Close() }) // some tests have closed it
	return b
}

// linkLocalRules are those of a node of both families with a fallback.
func linkLocalRules(fallback ...netip.AddrPort) rules.Rules {
	return rules.Rules{
		Owner: owner, Mode: rules.LinkLocal, Addresses: []netip.Addr{agent4(), agent6()},
		Port: dnsPort, Admin: adminPort, Fallback: fallback,
	}
}

func transparentRules() rules.Rules {
	r := linkLocalRules()
	r.Mode, r.Services = rules.Transparent, []netip.Addr{nodelab.ServiceIPv4(), nodelab.ServiceIPv6()}
	return r
}

// apply has b hold r, and says whether it had to do something.
func apply(t *testing.T, b *Backend, r rules.Rules) bool {
	t.Helper()
	changed, err := b.Apply(t.Context(), r)
	if err != nil {
		t.Fatalf("Apply: %v", err)
	}
	return changed
}

// renew has b hold the leases of r for d.
func renew(t *testing.T, b *Backend, r rules.Rules, d time.Duration) {
	t.Helper()
	if err := b.Renew(t.Context(), keys(r), d); err != nil {
		t.Fatalf("Renew: %v", err)
	}
}

func keys(r rules.Rules) []netip.Addr {
	var all []netip.Addr
	for _, l := range r.Leases() {
		all = append(all, l.Key)
	}
	return all
}

// ruleset is what the program nft lists in a host.
func ruleset(t *testing.T, h *nodelab.Host, args ...string) string {
	t.Helper()
	out, err := h.Output(context.Background(), "nft", append(args, "list", "ruleset")...)
	if err != nil {
		t.Fatalf("nft list ruleset: %v\n%s", err, out)
	}
	return out
}
