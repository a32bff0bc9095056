// SPDX-License-Identifier: Apache-2.0

// Package cluster makes what an agent knows of its Kubernetes cluster: the source of objects, the stores that it fills and the zones
// made of them, the pods of this node, and the central resolver for all other names.
//
// A [Maker] makes one [Cluster] for each configuration. After a reload the new one shares with the old one what the configuration
// has not changed.
package cluster
