// SPDX-License-Identifier: Apache-2.0

// Package dataplane detects the data plane for Services on this node, such as kube-proxy.
package dataplane
