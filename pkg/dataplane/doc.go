// SPDX-License-Identifier: Apache-2.0

// Package dataplane finds out what carries the traffic of Services on this node.
package dataplane
