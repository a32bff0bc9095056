// SPDX-License-Identifier: Apache-2.0

// Package preflight judges from a cluster's objects whether node-cache can be installed, and which variant of it to choose. It reads
// nothing itself, and builds on every operating system.
//
// The objects are those that the API server has before node-cache is installed. Facts of the nodes, such as their sockets and the
// kernel's modules, are not among them: "node-cache doctor" sees those. What cannot be known stays unknown.
package preflight
