// SPDX-License-Identifier: Apache-2.0

// Package iptables keeps a node's interception in the tables of iptables, with the
// lease in ipsets.
//
// A [Backend] adds up to six chains of its own for each IP family, and jumps to them
// from the front of built-in chains:
//
//	raw     PREROUTING              NODE-CACHE-PRE     what is not tracked, or has a zone
//	raw     OUTPUT                  NODE-CACHE-OUT     the same, and the agent's answers
//	nat     PREROUTING, OUTPUT      NODE-CACHE-DNAT    to the fallback, or to the agent
//	nat     POSTROUTING             NODE-CACHE-SNAT    the node's source for the fallback
//	filter  INPUT                   NODE-CACHE-IN      accept; end sessions nobody has
//	filter  OUTPUT                  NODE-CACHE-REPLY   accept
//
// The rules of the chains are text, made from [rules.Rules] by one function and
// compared with what iptables prints. What differs in a table is written by one
// iptables-restore, which the kernel takes over in one step. Between two tables there
// is no such step, so nat comes first: a packet must not get the zone of a fallback
// list whose DNAT is not there yet.
//
// A lease is an element with a time-out in the set node-cache-lease4 or
// node-cache-lease6. Sets are changed over netlink without any lock, so that a lease
// is renewed and released while another program holds the lock of iptables. The set
// node-cache-owner says whose all this is.
//
// It takes the capabilities NET_ADMIN and NET_RAW: iptables of either variant finds a
// set by a raw socket. The legacy variant takes the node's /run/xtables.lock too, or the
// file that XTABLES_LOCKFILE names.
//
// A flow that keeps its ports would keep its connection, and with it the way that it
// once took. Packets of the fallback (UDP) and of the transparent mode therefore look
// for their connection in a zone, in the original direction only: when the fallback
// list changes, or the lease is taken or lapses, they find none and choose anew.
package iptables
