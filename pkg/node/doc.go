// SPDX-License-Identifier: Apache-2.0

// Package node keeps the state of one agent in the kernel of its node: the link with its addresses, the rules that redirect
// queries there, the leases without which queries go to the fallback, and the rules that a predecessor left.
package node
