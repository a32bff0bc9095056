// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/capabilities"
	"github.com/nodecache/node-cache/pkg/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/iptables"
	"github.com/nodecache/node-cache/pkg/netif"
	"github.com/nodecache/node-cache/pkg/nftables"
)

// A host is the kernel of this node as the agent uses it. Tests have a fake.
type host interface {
	missingCapabilities() []string // capabilities
	detectDataPlane(ctx context.Context) (dataplane.Found, error)
	openBackend(name string, log *slog.Logger) (intercept.Backend, error)
	mayHaveRules(name string) bool // reports whether the backend may have rules
	newLink(c netif.Config) (link, error)
	selfQueryDialer() func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) // for self-queries; nil: marked sockets
}

// A link holds the agent's addresses, see [netif.Link].
type link interface {
	task
	Setup(ctx context.Context) error
	Remove(ctx context.Context) error
	Stats() netif.Stats
}

// localHost is the network namespace that the agent runs in.
type localHost struct{}

func (localHost) missingCapabilities() []string { return capabilities.Missing(capabilities.NetAdmin) }

func (localHost) detectDataPlane(ctx context.Context) (dataplane.Found, error) {
	return dataplane.Find(ctx, dataplane.Config{Usable: usable})
}

// usable returns an error if a backend cannot be used here.
func usable(name string) error {
	b, err := openBackend(name, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return b.Close()
}

func (localHost) openBackend(name string, log *slog.Logger) (intercept.Backend, error) {
	return openBackend(name, log)
}

func (localHost) mayHaveRules(name string) bool {
	if name == dataplane.BackendNFTables {
		return true // a check costs as much as a read of the rules
	}
	left, err := iptables.Left()
	return err == nil && left // a kernel without ipsets has no leases
}

// openBackend opens the backend of that name. "iptables" and "" mean the variant that this host uses.
func openBackend(name string, log *slog.Logger) (intercept.Backend, error) {
	if name == dataplane.BackendNFTables {
		b, err := nftables.New(nftables.Config{Log: log})
		if err != nil {
			return nil, fmt.Errorf("nftables: %w", err)
		}
		return b, nil
	}
	_, variant, _ := strings.Cut(name, "-")
	b, err := iptables.New(iptables.Config{Variant: iptables.Variant(variant), Log: log, Now: time.Now})
	if err != nil {
		return nil, fmt.Errorf("iptables: %w", err)
	}
	return b, nil
}

func (localHost) newLink(c netif.Config) (link, error) { return netif.New(c) }

func (localHost) selfQueryDialer() func(context.Context, string, netip.AddrPort) (net.Conn, error) {
	return nil
}
