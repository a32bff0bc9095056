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

// A machine is what a node needs of the kernel. Tests have another one.
type machine interface {
	missing() []string // rights
	find(ctx context.Context) (dataplane.Found, error)
	backend(name string, log *slog.Logger) (intercept.Backend, error)
	left(name string) bool // there may be rules of that backend's
	link(c netif.Config) (link, error)
	dialer() func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) // of the self-query; nil: marked
}

// A link has the agent's addresses, see [netif.Link].
type link interface {
	task
	Setup(ctx context.Context) error
	Remove(ctx context.Context) error
	Stats() netif.Stats
}

// thisMachine is the network namespace that the agent runs in.
type thisMachine struct{}

func (thisMachine) missing() []string { return capabilities.Missing(capabilities.NetAdmin) }

func (thisMachine) find(ctx context.Context) (dataplane.Found, error) {
	return dataplane.Find(ctx, dataplane.Config{Usable: usable})
}

// usable says why a backend cannot be used here.
func usable(name string) error {
	b, err := openBackend(name, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return b.Close()
}

func (thisMachine) backend(name string, log *slog.Logger) (intercept.Backend, error) {
	return openBackend(name, log)
}

func (thisMachine) left(name string) bool {
	if name == dataplane.BackendNFTables {
		return true // looking costs no more than asking
	}
	left, err := iptables.Left()
	return err == nil && left // a kernel without ipsets has no leases
}

// openBackend opens the backend that calls itself name; "iptables" or nothing stands
// for the variant that this machine uses.
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

func (thisMachine) link(c netif.Config) (link, error) { return netif.New(c) }

func (thisMachine) dialer() func(context.Context, string, netip.AddrPort) (net.Conn, error) {
	return nil
}
