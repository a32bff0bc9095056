// SPDX-License-Identifier: Apache-2.0

// Package iptables writes a node's interception rules to iptables, with the leases in
// ipsets.
//
// A [Backend] adds up to seven chains for each IP family, and jumps to them at the front of
// built-in chains:
//
//	raw     PREROUTING              NODE-CACHE-PRE     notrack, or a conntrack zone
//	raw     OUTPUT                  NODE-CACHE-OUT     the same, and the agent's answers
//	nat     PREROUTING, OUTPUT      NODE-CACHE-DNAT    to the fallback, or to the agent
//	nat     POSTROUTING             NODE-CACHE-SNAT    the node's source for the fallback
//	mangle  POSTROUTING             NODE-CACHE-MARK    the host's mark, see rules.Rules.MarkHost
//	filter  INPUT                   NODE-CACHE-IN      accept; reset sessions without a server
//	filter  OUTPUT                  NODE-CACHE-REPLY   accept
//
// One function renders [rules.Rules] to the text of the rules, which is compared with the
// output of iptables. One iptables-restore writes all differences in a table, and the
// kernel applies them in one step. Two tables cannot be changed in one step. So nat comes
// first: a packet must not get the zone of a fallback list before its DNAT exists.
//
// A lease is an element with a timeout in the set node-cache-lease4 or node-cache-lease6.
// Sets are changed over netlink without any lock, so a lease can be renewed and released
// while another program holds the xtables lock. The set node-cache-owner names the owner.
//
// With [rules.Rules.Track] our chain in raw has to come before Cilium's, because only the first target CT counts. Where Cilium puts
// its jump in front, the next check puts ours there again, at most 30 s later. Cilium must use the same variant: the kernel runs the
// two in the order in which they were loaded. The nftables backend has neither limit.
//
// It needs the capabilities NET_ADMIN and NET_RAW: both variants of iptables find a set
// with a raw socket. The legacy variant also needs the node's /run/xtables.lock, or the
// file in XTABLES_LOCKFILE.
//
// A flow that reuses its ports would match its conntrack entry and take its earlier path.
// So UDP packets to the fallback and those in transparent mode use a conntrack zone, in the
// original direction only. When the fallback list changes, or the lease starts or ends,
// they match no entry and follow the current rules.
package iptables
