// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/rules"
)

// A Backend writes rules into the kernel of the network namespace in which it was
// made. Its methods may be called from several goroutines; one that waits, for a
// lock that another program holds say, does not keep Renew and Release waiting.
type Backend interface {
	fmt.Stringer // "nftables", "iptables-nft" or "iptables-legacy"

	// Apply makes the kernel hold r and nothing else of an agent's, without a moment
	// in which a packet meets neither the old rules nor the new ones, and says whether
	// anything had to change. A lease that is held stays held, whoever took it.
	Apply(ctx context.Context, r rules.Rules) (changed bool, err error)

	// Prepare makes what holds r's leases, and nothing that any packet meets. With a
	// Renew after it, rules find the lease held from their first packet on.
	Prepare(ctx context.Context, r rules.Rules) error

	// Renew has the leases on keys end d from now. It needs an Apply or a Prepare
	// before. A kernel that counts in whole units rounds d up.
	Renew(ctx context.Context, keys []netip.Addr, d time.Duration) error

	// Release ends the leases on keys at once. Packets of TCP sessions that the agent
	// has still reach it for the time drain. Without an Apply before there is none to
	// end.
	Release(ctx context.Context, keys []netip.Addr, drain time.Duration) error

	// Watch calls changed whenever what Apply wrote may no longer be there, until ctx
	// ends. It may call it for nothing, and it calls it once at the start.
	Watch(ctx context.Context, changed func()) error

	// Remove takes away what the agent called owner put there, or, if owner is empty,
	// all that any agent did. What now belongs to another agent stays; Remove then
	// returns [rules.ErrOwned].
	Remove(ctx context.Context, owner string) error

	// State reads what is there, without an Apply before.
	State(ctx context.Context) (rules.State, error)

	// Close gives up what the backend holds open. A backend may keep rules that end
	// with the agent that made them.
	Close() error
}
