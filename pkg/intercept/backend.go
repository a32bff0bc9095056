// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// A Backend writes rules to the kernel in the network namespace in which it was opened.
// Its methods may be called from several goroutines. A method that waits, for example
// for a lock of another program, does not delay Renew and Release.
type Backend interface {
	fmt.Stringer // "nftables", "iptables-nft" or "iptables-legacy"

	// Apply makes the kernel hold r, which is valid, and no other rules of an agent. A packet sees the old rules or
	// the new ones; with iptables this holds for each table alone. Apply reports whether anything had to change.
	// Held leases stay held, also those of another agent.
	Apply(ctx context.Context, r rules.Rules) (changed bool, err error)

	// Prepare creates the kernel sets for r's leases. This affects no packet. If a Renew follows, the
	// lease is already held when Apply writes the rules.
	Prepare(ctx context.Context, r rules.Rules) error

	// Renew sets the leases on keys to end d from now. It needs an earlier Apply or
	// Prepare. The iptables backends round d up to whole seconds.
	Renew(ctx context.Context, keys []netip.Addr, d time.Duration) error

	// Release ends the leases on keys at once. Packets of open TCP sessions reach the
	// agent for the time drain. Without an earlier Apply or Prepare it does nothing.
	Release(ctx context.Context, keys []netip.Addr, drain time.Duration) error

	// Watch calls changed at the start, and whenever another program may have changed what
	// Apply wrote, until ctx ends. It may also call changed when nothing changed.
	Watch(ctx context.Context, changed func()) error

	// Remove removes what the agent called owner wrote, or, if owner is empty, what any
	// agent wrote. It leaves what now belongs to another agent, and then returns
	// [rules.ErrOwned].
	Remove(ctx context.Context, owner string) error

	// State reads what the kernel holds. It needs no earlier Apply.
	State(ctx context.Context) (rules.State, error)

	// Close releases the backend's resources. The kernel then deletes nftables rules that
	// the process owns; iptables rules stay.
	Close() error
}
