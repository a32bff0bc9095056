// SPDX-License-Identifier: Apache-2.0

// Package pods names the pods of this node by their addresses.
//
// Addresses are reused. A pod may end before the API server reports it, and another pod may have its address by then. An [Index]
// therefore never guesses: an address of two pods belongs to neither, and the caller passes only pods that can still use their
// addresses. An address without a pod is unknown.
package pods
