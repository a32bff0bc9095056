// SPDX-License-Identifier: Apache-2.0

// Package rules describes the interception rules of a node as data that a backend
// writes into the kernel.
//
// The agent receives a query while it holds the lease on the queried address. Otherwise
// the central DNS of the cluster receives it. A lease is an element with a timeout in a
// kernel set: it ends without any process that has to run. The mode decides what the
// rules do with a packet to an address that the agent serves:
//
//	                  lease held                       lease not held
//	LinkLocal         to the agent, untracked          to one of Fallback, by DNAT and
//	                                                   with the node's source address
//	Transparent       to the agent: the Service's      unchanged: kube-proxy or another
//	                  address is rewritten to          data plane serves the Service's
//	                  the agent's                      address
//	  with Excluded   the same                         to one of Fallback, as in LinkLocal
//	Servers           to the agent's address for it    unchanged: the server
//
// Other servers ([Rules].Servers) are redirected in each mode. So Transparent is a case of [Rules.Redirects].
//
// Packets with [Mark] are the agent's own. The rules never send them to a fallback and
// never rewrite the address of a Service or server in them. Those to an address of the agent are
// untracked with or without a lease: the agent's self-query must test the agent's own
// socket.
//
// Two fields say what the data plane needs so that the fallback works. Cilium can exempt the
// pods' packets from conntrack, and then DNAT does not apply ([Rules].Track). Its host firewall
// drops replies to packets that do not leave as the node's own ([Rules].MarkHost).
//
// Packets of the node with [TestMark] test the fallback: where there is one, they are treated as if the lease were not held. In mode
// Transparent without Excluded, packets with Mark to the Service's address do that already.
package rules
