// SPDX-License-Identifier: Apache-2.0

// Package hits compares the replies of the kernel with those of the process: the same packets of pods, with hits in the kernel
// and without.
//
// The tests need root, and a kernel that takes the programs. Each is the process of a node in a network namespace, whose pods
// are behind a routed veth and at a bridge. With SOAK=1 they take longer.
package hits
