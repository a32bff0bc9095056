// SPDX-License-Identifier: Apache-2.0

// Package doctor examines how this node's DNS queries get to its agent.
//
// Everything is looked at twice: from the node, and from a network namespace behind
// a veth, as a pod would. What was seen is in [Facts]; what it means is decided by
// functions of the facts alone.
package doctor
