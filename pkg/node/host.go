// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/capabilities"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept/nftables"
	"github.com/nodecache/node-cache/pkg/iptables"
	"github.com/nodecache/node-cache/pkg/netif"
)

// A Host is the kernel of this node as the agent uses it. Tests have a fake.
type Host interface {
	MissingCapabilities() []string // names of the capabilities that a node needs and this process lacks
	DetectDataPlane(ctx context.Context) (dataplane.Found, error)
	OnCilium() (bool, error)                                     // see [dataplane.OnCilium]
	CiliumLocal(addrs []netip.Addr) (map[netip.Addr]bool, error) // see [dataplane.CiliumLocal]
	Scopes() (map[netip.Addr]bool, error)                        // see [dataplane.Scopes]
	Policies() ([]string, error)                                 // see [dataplane.Policies]
	Notracks(flows dataplane.Flows) ([]dataplane.Notrack, error) // see [dataplane.Notracks]
	OpenBackend(name string, log *slog.Logger) (intercept.Backend, error)
	MayHaveRules(name string) bool // reports whether the kernel may hold rules of the backend called name
	NewLink(c netif.Config) (Link, error)
	SelfQueryDialer() func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) // dials self-queries; nil: [intercept.DialMarked]
	// TestDialer dials tests of the fallback; nil: it is not tested.
	TestDialer() func(ctx context.Context, network string, addr netip.AddrPort, mark uint32) (net.Conn, error)
}

// A Link holds the agent's addresses, see [netif.Link].
type Link interface {
	Run(ctx context.Context) error
	Setup(ctx context.Context) error
	Remove(ctx context.Context) error
	Stats() netif.Stats
}

// LocalHost is the network namespace that the agent runs in.
type LocalHost struct{}

// MissingCapabilities returns the capabilities that a node needs and this process lacks.
func (LocalHost) MissingCapabilities() []string { return capabilities.Missing(capabilities.NetAdmin) }

// DetectDataPlane detects the data plane for Services on this host, and selects the backend.
func (LocalHost) DetectDataPlane(ctx context.Context) (dataplane.Found, error) {
	return dataplane.Find(ctx, usable)
}

// OnCilium reports whether Cilium is this host's data plane.
func (LocalHost) OnCilium() (bool, error) { return dataplane.OnCilium() }

// CiliumLocal reports for each address whether Cilium takes it for one of this host.
func (LocalHost) CiliumLocal(addrs []netip.Addr) (map[netip.Addr]bool, error) {
	return dataplane.CiliumLocal("", addrs)
}

// Scopes returns the addresses of this host, and of each whether its scope is host.
func (LocalHost) Scopes() (map[netip.Addr]bool, error) { return dataplane.Scopes() }

// Policies returns the policy engines of this host.
func (LocalHost) Policies() ([]string, error) { return dataplane.Policies() }

// Notracks returns where programs of this host exempt packets from conntrack.
func (LocalHost) Notracks(flows dataplane.Flows) ([]dataplane.Notrack, error) {
	return dataplane.Notracks(flows)
}

// usable returns an error if a backend cannot be used here.
func usable(name string) error {
	b, err := LocalHost{}.OpenBackend(name, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return b.Close()
}

// MayHaveRules reports whether an earlier agent may have left rules of the backend.
func (LocalHost) MayHaveRules(name string) bool {
	if name == dataplane.BackendNFTables {
		return true // a check costs as much as a read of the rules
	}
	left, err := iptables.Left()
	return err == nil && left // an error most likely means that the kernel has no ipsets, and thus no such rules
}

// OpenBackend opens the backend of that name. "iptables" and "" mean the variant that this host uses.
func (LocalHost) OpenBackend(name string, log *slog.Logger) (intercept.Backend, error) {
	if name == dataplane.BackendNFTables {
		b, err := nftables.New(log)
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

// NewLink returns the link that c describes. It changes nothing on the node.
func (LocalHost) NewLink(c netif.Config) (Link, error) { return netif.New(c) }

// SelfQueryDialer returns nil: self-queries use [intercept.DialMarked].
func (LocalHost) SelfQueryDialer() func(context.Context, string, netip.AddrPort) (net.Conn, error) {
	return nil
}

// TestDialer returns [intercept.DialWithMark].
func (LocalHost) TestDialer() func(context.Context, string, netip.AddrPort, uint32) (net.Conn, error) {
	return intercept.DialWithMark
}

// leasePollInterval is the time between two reads of the leases.
const leasePollInterval = 100 * time.Millisecond

// Cleanup removes the rules and the link that agents left on this host, by any backend, and returns what it
// removed. cfg gives the link's name and, on the loopback link, the addresses.
//
// Cleanup waits for a held lease to expire. If an agent renews it, Cleanup changes nothing, unless force is
// set. Without force the link stays, too, if rules could not be removed.
func Cleanup(ctx context.Context, cfg *config.Config, force bool) (removed []string, err error) {
	if missing := capabilities.Missing(capabilities.NetAdmin); len(missing) > 0 {
		return nil, &hint.Error{Err: fmt.Errorf("cleanup: missing capability: %s", strings.Join(missing, ", ")), Hint: "run the command as root"}
	}
	backends := openBackends() //nolint:contextcheck // it runs programs that print their version
	defer func() {
		for _, b := range backends {
			err = errors.Join(err, b.Close())
		}
	}()
	if !force {
		if err := checkIPTables(backends); err != nil {
			return nil, err
		}
		for _, b := range backends {
			if err := waitLeases(ctx, b); err != nil {
				return nil, err
			}
		}
	}
	removed, err = removeRules(ctx, backends)
	if err != nil && !force {
		return removed, err // an agent may run without a lease: it still needs its link
	}
	addrs := slices.DeleteFunc(slices.Clone(cfg.Listen.Addresses), func(a netip.Addr) bool { return a.IsLoopback() || a.IsUnspecified() })
	links, linkErr := netif.Cleanup(ctx, cfg.Interface.Name, addrs)
	if linkErr != nil {
		err = errors.Join(err, fmt.Errorf("cleanup: %w", linkErr))
	}
	return append(removed, links...), err
}

// removeRules removes the rules of any owner.
func removeRules(ctx context.Context, backends []intercept.Backend) (removed []string, err error) {
	for _, b := range backends {
		state, bad := b.State(ctx)
		if bad == nil && state.Present {
			if bad = b.Remove(ctx, ""); bad == nil {
				removed = append(removed, b.String()+" rules")
			}
		}
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("cleanup: %s: %w", b, bad))
		}
	}
	return removed, err
}

// openBackends opens every backend that this host supports.
func openBackends() []intercept.Backend {
	var list []intercept.Backend
	for _, name := range []string{dataplane.BackendNFTables, dataplane.BackendIPTablesNFT, dataplane.BackendIPTablesLegacy} {
		b, err := LocalHost{}.OpenBackend(name, slog.New(slog.DiscardHandler))
		if err == nil { // an unusable backend has no rules
			list = append(list, b)
		}
	}
	return list
}

// checkIPTables returns an error if an agent recorded iptables rules and this image has no iptables programs.
func checkIPTables(backends []intercept.Backend) error {
	able := slices.ContainsFunc(backends, func(b intercept.Backend) bool { return b.String() != dataplane.BackendNFTables })
	if left, _ := iptables.Left(); able || !left { // an error means no ipsets in the kernel, thus no leases
		return nil
	}
	return &hint.Error{
		Err:  errors.New("cleanup: an agent made iptables rules, but this image has no iptables"),
		Hint: "use the image with iptables, as in daemonset/uninstall-iptables; --force skips these rules",
	}
}

// waitLeases waits for the leases in b to expire. It returns an error if an agent renews them.
func waitLeases(ctx context.Context, b intercept.Backend) error {
	ticker := time.NewTicker(leasePollInterval)
	defer ticker.Stop()
	var before map[netip.Addr]time.Duration
	for {
		state, err := b.State(ctx)
		if err != nil || len(state.Leases) == 0 {
			return nil // no lease is held, or removeRules gets the same error and reports it
		}
		for addr, left := range state.Leases {
			if old, known := before[addr]; known && left > old {
				return &hint.Error{
					Err:  fmt.Errorf("cleanup: an agent is running and renews its lease on %s", addr),
					Hint: "stop the agent first, for example by deleting the DaemonSet; --force removes link and rules while it runs",
				}
			}
		}
		before = state.Leases
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
