// SPDX-License-Identifier: Apache-2.0

// Package nftables writes a node's interception rules to nftables over netlink.
//
// There are two tables of the family inet. The lease table belongs to the agent's
// netlink socket: the kernel deletes it as soon as the process ends, for any reason, and
// no other process can change it, not even with `nft flush ruleset`. The fallback table
// outlives the agent:
//
//	table node-cache-NAME (owned)         the packets of agent NAME
//	  sets lease4, lease6                 addresses whose lease it holds, with timeouts
//	  sets drain4, drain6                 addresses that it releases, with timeouts
//	  sets moved4, moved6                 TCP sessions that began during a drain: not the agent's
//	  prerouting, output (before raw)     jump by port to the chains below
//	  query, reply                        notrack for the agent's packets
//	  rewrite, output-route               transparent mode: rewrite the Service's address to
//	                                      the agent's, without conntrack
//	table node-cache                      all other queries, if there is a fallback
//	  owner-NAME                          an empty chain that names the last writer
//	  fallback, fallback-*                DNAT to a random target, and masquerading
//	  track-*, mark                       on Cilium: rules.Rules.Track and MarkHost
//	  input, forward, own                 reset TCP sessions that no process has
//
// The second table does not match leases: an untracked packet never reaches NAT.
//
// Kernels before 5.12 do not support owned tables. There a lease ends by its timeout
// only, and the next Apply deletes the tables of agents that have ended.
//
// Each change is one transaction: a packet sees the old rules or the new ones. An accept
// here does not override a drop in another table, which is how nftables works. With a
// [Tracer] the kernel reports such drops.
//
// Expressions are those of github.com/google/nftables. This package sends its own
// transactions, because those of the library cannot own a table, and do not report which
// message the kernel refused.
package nftables
