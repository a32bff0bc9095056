// SPDX-License-Identifier: Apache-2.0

// Package node tests the real binary on a node of network namespaces: link, rules and lease, and what clients see when
// something goes wrong.
//
// The tests need root. Each has a node of its own. What they measure they print in lines that begin with "figure:";
// docs/reliability.md has those of one run with SOAK=1, which takes longer.
package node
