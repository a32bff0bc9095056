// SPDX-License-Identifier: Apache-2.0

// Package nodelab builds a node with its pods and a host beyond it out of network namespaces, for tests.
//
// Nothing of a [Lab] touches the machine's own network: its links, routes, rules and sockets live in namespaces that
// have no name, and that end with the process that made them. Making one needs root.
//
//	pod 0  10.200.0.2     ──veth──┐
//	       fd00:200::2            │ node  10.201.0.1   ──veth── upstream  10.201.0.2
//	pod 1  10.200.1.2     ──veth──┘       fd00:201::1                     fd00:201::2
//	       fd00:200:1::2                                                  10.96.0.10, fd00:96::a (the DNS service)
//
// The node forwards. The upstream host holds the addresses of the DNS service too, so that a server there can stand
// for the service without kube-proxy.
package nodelab
