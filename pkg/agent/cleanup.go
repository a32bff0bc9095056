// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/capabilities"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/iptables"
	"github.com/nodecache/node-cache/pkg/netif"
)

// look is between two looks at a lease that may lapse or be renewed.
const look = 100 * time.Millisecond

// Cleanup takes away the rules and the link that agents left on this machine, by any
// backend, and says what that was. The link's name and, where they are on the
// loopback link, the addresses are those of cfg. A lease that is held is given the
// time to lapse; if it is renewed an agent lives, and without force nothing is
// touched. Without force the link stays, too, when rules could not be removed.
func Cleanup(ctx context.Context, cfg *config.Config, force bool) (removed []string, err error) {
	if missing := capabilities.Missing(capabilities.NetAdmin); len(missing) > 0 {
		return nil, &HintError{Err: fmt.Errorf("cleanup: missing right: %s", strings.Join(missing, ", ")), Hint: "run it as root"}
	}
	backends := openBackends() //nolint:contextcheck // it runs programs that tell their version
	defer func() {
		for _, b := range backends {
			err = errors.Join(err, b.Close())
		}
	}()
	if !force {
		if err := unseen(backends); err != nil {
			return nil, err
		}
		for _, b := range backends {
			if err := unheld(ctx, b); err != nil {
				return nil, err
			}
		}
	}
	removed, err = removeRules(ctx, backends)
	if err != nil && !force {
		return removed, err // an agent that lives without a lease, say: its link is not to go from under it
	}
	addrs := slices.DeleteFunc(slices.Clone(cfg.Listen.Addresses), func(a netip.Addr) bool { return a.IsLoopback() || a.IsUnspecified() })
	links, linkErr := netif.Cleanup(ctx, cfg.Interface.Name, addrs)
	if linkErr != nil {
		err = errors.Join(err, fmt.Errorf("cleanup: %w", linkErr))
	}
	return append(removed, links...), err
}

// removeRules takes away what is there, whoever put it there.
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

// openBackends opens every backend that this machine has.
func openBackends() []intercept.Backend {
	var list []intercept.Backend
	for _, name := range []string{dataplane.BackendNFTables, dataplane.BackendIPTablesNFT, dataplane.BackendIPTablesLegacy} {
		b, err := openBackend(name, slog.New(slog.DiscardHandler))
		if err == nil { // what cannot be used was not used
			list = append(list, b)
		}
	}
	return list
}

// unseen returns an error if an agent noted rules of iptables, and there are no programs here to see them with.
func unseen(backends []intercept.Backend) error {
	able := slices.ContainsFunc(backends, func(b intercept.Backend) bool { return b.String() != dataplane.BackendNFTables })
	if left, _ := iptables.Left(); able || !left { // a kernel that does not tell has no ipsets, thus no leases
		return nil
	}
	return &HintError{
		Err:  errors.New("cleanup: an agent made rules with iptables, which is not here to remove them"),
		Hint: "take the image that has it, as daemonset/uninstall-iptables does; --force leaves the rules",
	}
}

// unheld waits for the leases in b to lapse, and returns an error if they do not.
func unheld(ctx context.Context, b intercept.Backend) error {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	var before map[netip.Addr]time.Duration
	for {
		state, err := b.State(ctx)
		if err != nil || len(state.Leases) == 0 {
			return nil // what cannot be read is reported where it is removed
		}
		for addr, left := range state.Leases {
			if old, known := before[addr]; known && left > old {
				return &HintError{
					Err:  fmt.Errorf("cleanup: an agent is running: it renews its lease on %s", addr),
					Hint: "stop the agent first, such as by deleting the DaemonSet; --force cleans up under it",
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
