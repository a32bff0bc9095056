// SPDX-License-Identifier: Apache-2.0

package nftables

import "log/slog"

// A Config says how to make a Backend.
type Config struct {
	Log *slog.Logger // nil: nothing is logged
}

// A Drop is a place in a node's rules that dropped a packet.
type Drop struct {
	Family string // "inet", "ip", "ip6", "arp", "bridge" or "netdev"
	Table  string
	Chain  string
	Handle uint64 // of the rule, as nft -a lists it; 0: the chain's policy did it
	Policy bool   // no rule of the chain said otherwise, and its policy is to drop
	Rule   string // what the rule says, as far as can be told; else empty
}
