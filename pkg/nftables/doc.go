// SPDX-License-Identifier: Apache-2.0

// Package nftables keeps a node's interception rules in nftables, over netlink.
//
// There are two tables of the family inet. That of the leases is the agent's alone,
// owned by its netlink socket: it vanishes in the moment in which the process ends,
// however that ends, and nobody else can change it, `nft flush ruleset` included. That
// of the fallback outlives the agent:
//
//	table node-cache-NAME (owned)         what is the agent's NAME
//	  sets lease4, lease6                 addresses that it holds, with time-outs
//	  sets drain4, drain6                 addresses that it lets go of, likewise
//	  sets moved4, moved6                 TCP sessions that began since: not the agent's
//	  prerouting, output (raw)            by port to the chains below
//	  query, reply                        not tracked: what is the agent's
//	  rewrite, output-route               transparent: the service's address becomes
//	                                      the agent's, without conntrack
//	table node-cache                      what is nobody's, link-local with a fallback
//	  owner-NAME                          an empty chain: who put it there last
//	  fallback, fallback-*                DNAT to a random target, and masquerading
//	  input                               resets sessions that are nobody's
//
// The second table need not know of leases. A packet that the first one leaves
// untracked never comes by NAT.
//
// Kernels before 5.12 do not know owned tables. There a lease ends by its time alone,
// and the next Apply takes away what agents have left that are no more.
//
// A change is one transaction: a packet meets the old rules or the new ones. Nothing
// here accepts packets against another table's will, which nftables does not know:
// [Trace] finds who drops them.
//
// Expressions are those of github.com/google/nftables. Transactions are sent by this
// package, as the library's cannot own a table, and does not say which message of a
// transaction the kernel refused.
package nftables
