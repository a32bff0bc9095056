// SPDX-License-Identifier: Apache-2.0

// Package rules describes which packets of a node are its DNS agent's, as data
// that a backend writes into the kernel.
//
// A query belongs to the agent while the agent's lease on the queried address is
// held, and to the cluster's central DNS otherwise. The lease is an element with a
// time-out in a set of the kernel: nothing has to run for it to end. What the rules
// decide for a packet to an address that the agent serves, by the mode:
//
//	                  lease held                       lease not held
//	LinkLocal         to the agent, not tracked        to one of Fallback, by DNAT and
//	                                                   with the node's source address
//	Transparent       to the agent: the service's      left to whoever serves the
//	                  address becomes the agent's      service's address, mostly kube-proxy
//
// Packets with [Mark] are the agent's own. They go where they are addressed to,
// never to a fallback and never through the service's address, and those to an
// address of the agent are not tracked, lease or not: the query that the agent sends
// itself must prove the agent's own socket.
package rules
