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

	// Apply makes the kernel hold r, which is valid, and no other rules of an agent. At any time a packet
	// sees the old rules or the new ones. Apply reports whether anything had to change.
	// Held leases stay held, also those of another agent.
	Apply(ctx context.Context, r rules.Rules) (changed bool, err error)

	// Prepare creates what holds r's leases, without effect on any packet. If a Renew
	// follows, the rules find the lease held from their first packet on.
	Prepare(ctx context.Context, r rules.Rules) error

	// Renew sets the leases on keys to end d from now. It needs an earlier Apply or
	// Prepare. A kernel that counts in whole units rounds d up.
	Renew(ctx context.Context, keys []netip.Addr, d time.Duration) error

	// Release ends the leases on keys at once. Packets of open TCP sessions reach the
	// agent for the time drain. Without an earlier Apply it does nothing.
	Release(ctx context.Context, keys []netip.Addr, drain time.Duration) error

	// Watch calls changed whenever what Apply wrote may be gone, until ctx ends. It calls
	// it once at the start, and may call it without need.
	Watch(ctx context.Context, changed func()) error

	// Remove removes what the agent called owner wrote, or, if owner is empty, what any
	// agent wrote. It leaves what now belongs to another agent, and then returns
	// [rules.ErrOwned].
	Remove(ctx context.Context, owner string) error

	// State reads what the kernel holds. It needs no earlier Apply.
	State(ctx context.Context) (rules.State, error)

	// Close releases the backend's resources. The kernel may remove rules that belong to
	// the process.
	Close() error
}
