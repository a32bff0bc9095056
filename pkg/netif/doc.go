// SPDX-License-Identifier: Apache-2.0

// Package netif keeps the agent's addresses on a link of the node.
//
// The link is a dummy. If the kernel has no dummy links, it is a bridge without ports,
// unless [Config].NoBridge says otherwise; else the addresses are on lo. [Link.Setup] creates the link or adopts an
// existing one. [Link.Run] checks the link on each kernel event that concerns it and
// every [Config].Poll, and repairs it. An agent owns:
//
//	a link      whose alias is "node-cache OWNER". Setup adopts a dummy or a bridge
//	            without ports that has the configured name and no alias: it sets the
//	            alias, and [Link.Remove] deletes the link like one that Setup created.
//	an address  on such a link, or an address on lo whose metric is the owner's mark.
//
// The package changes nothing else: no sysctls, no routes, no other links. The newest
// owner wins: an agent that finds another agent's alias on its link stops repairing and
// removes nothing.
//
// IPv4 addresses are /32 with scope host. IPv6 addresses are /128, deprecated, without
// duplicate address detection and without a prefix route. So the node prefers another
// source address for its own traffic. Measured on Linux 6.18, the first two on 6.1 too:
//
//   - A pod's first datagram after Setup is answered, on each kind of link, also on a
//     bridge without carrier. Without nodad an IPv6 address is tentative at first.
//   - IPv4 addresses of a link that is down still answer. IPv6 addresses are removed
//     and have to be added again.
//   - The node selects an address of scope global as the source for packets that leave
//     by a link without addresses, such as the veth of a Calico pod.
//   - While net.ipv4.conf.*.arp_ignore is 0, the node answers ARP requests for all its
//     IPv4 addresses on all links, whatever their scope and link. The values 1 and 2
//     stop that. The value 3 stops it for these addresses, because of their scope, but
//     not for others. Pods and hosts need no ARP: they reach 169.254.20.10 by a route.
//     IPv6 neighbors get no answer, because the address is on another link.
package netif
