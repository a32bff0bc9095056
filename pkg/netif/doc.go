// SPDX-License-Identifier: Apache-2.0

// Package netif keeps the agent's addresses on a link of the node.
//
// The link is a dummy; in a kernel that has none a bridge without ports; in one that
// has neither the addresses are put on lo. [Link.Setup] makes it or adopts what it
// finds. [Link.Run] looks whenever the kernel tells of a change to it, every
// [Config].Poll besides, and repairs. What of the node is an agent's:
//
//	a link      whose alias is "node-cache OWNER". A dummy or a bridge without ports
//	            of the configured name and without alias is adopted: it gets the alias,
//	            and goes with [Link.Remove] like one that was made.
//	an address  of such a link; on lo one whose metric is a mark of its owner's.
//
// Nothing else is changed: neither sysctls nor routes nor other links. The newest
// owner wins. An agent that finds another's alias on its link stops repairing and
// removes nothing.
//
// Addresses are /32 with scope host and /128 without duplicate address detection,
// deprecated and without a route of their prefix, so that the node has a reason to
// choose another source for what it sends to others. Measured on Linux 6.18, the first
// two on 6.1 as well:
//
//   - A pod's first datagram after Setup is answered, on each kind of link, also on a
//     bridge without carrier. Without nodad an IPv6 address is tentative at first.
//   - IPv4 addresses of a link that is set down still answer. IPv6 ones are gone, and
//     have to be added again.
//   - An address of scope global is chosen as the source of what leaves by a link
//     without addresses, such as the veth of a pod of Calico's.
//   - The node answers ARP requests for the IPv4 addresses on all its links, whatever
//     the scope and whichever link has them, lo too, as it does for all its addresses
//     while net.ipv4.conf.*.arp_ignore is 0. With 3 it does not for these, because of
//     their scope, and it does for others; 1 and 2 stop it too. Nobody has a reason to
//     ask: pods and hosts reach 169.254.20.10 by their routes. IPv6 neighbours that ask
//     get no answer, as the address is on another link.
package netif
