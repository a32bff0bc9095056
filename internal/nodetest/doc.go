// SPDX-License-Identifier: Apache-2.0

// Package nodetest builds a node, its pods and an upstream host from network namespaces, for tests.
//
// A [Network] does not touch the machine's own network. Its links, routes, rules and sockets live in unnamed
// namespaces, which end with the process that created them. Creating one needs root.
//
//	pod 0  10.200.0.2     ──veth──┐
//	       fd00:200::2            │ node  10.201.0.1   ──veth── upstream  10.201.0.2
//	pod 1  10.200.1.2     ──veth──┘       fd00:201::1                     fd00:201::2
//	       fd00:200:1::2                                                  10.96.0.10, fd00:96::a (the DNS service)
//
// The node forwards packets. The upstream host also has the addresses of the DNS service, so a server there can
// replace the service without kube-proxy.
package nodetest
