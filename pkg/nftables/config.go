// SPDX-License-Identifier: Apache-2.0

package nftables

import "log/slog"

// A Config configures a Backend.
type Config struct {
	Log *slog.Logger // nil: no logs
}

// A Drop is a place in a node's nftables rules that dropped a packet.
type Drop struct {
	Family string // "inet", "ip", "ip6", "arp", "bridge" or "netdev"
	Table  string
	Chain  string
	Handle uint64 // of the rule, as in nft -a; 0: the chain's policy
	Policy bool   // no rule of the chain matched, and its policy is drop
	Rule   string // the rule in nft syntax, as far as it can be described; else empty
}
