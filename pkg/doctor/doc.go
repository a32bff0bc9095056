// SPDX-License-Identifier: Apache-2.0

// Package doctor checks how this node's DNS queries reach its agent.
//
// It tests everything twice: from the node, and from a network namespace behind a veth,
// like a pod. The observations are in [Facts]. The checks are functions of the facts alone.
package doctor
