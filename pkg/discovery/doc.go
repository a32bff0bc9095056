// SPDX-License-Identifier: Apache-2.0

// Package discovery finds the endpoints of the central resolver by DNS, so that an agent needs no watch at the API server.
//
// It asks the address of the resolver's Service for the names of a headless Service with the same pods:
//
//	_dns-tcp._tcp.SERVICE. SRV       the endpoints, with their addresses as additional records
//	ZONE.pin._zone.SERVICE. SRV      those in the topology zone of this node
//
// It asks again when a change is reported, and soon after that once more, because another resolver may have answered that does not know
// of the change yet. Otherwise it asks once a minute while changes are reported, else when the TTL has passed.
//
// It never asks the endpoints themselves: the data plane knows the Service's pods from the API server, so a server that lies is asked
// until it is no longer one of them, and not as long as it lies.
package discovery
