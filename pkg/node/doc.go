// SPDX-License-Identifier: Apache-2.0

// Package node keeps the state of one agent in the kernel of its node: the link with its addresses, the rules
// that lead queries there, the lease without which the rules lead to the fallback, and what a predecessor left.
package node
