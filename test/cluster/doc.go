// SPDX-License-Identifier: Apache-2.0

// Package cluster shows the cluster zone at work against a real Kubernetes control plane, beside CoreDNS.
//
// The programs come from internal/kubetest: kube-apiserver, kube-controller-manager, etcd and CoreDNS, built from
// their modules. They are built once and kept in the user's cache folder; the first time takes several minutes.
//
// One half compares the answers with CoreDNS's. The other holds docs/cluster.md true: the modes and the roll-out of
// the central resolvers, an API server that is absent, killed, silent or set back, missing permissions, changes under load,
// events that drop answers, and a node with kube-proxy.
//
// The environment may set:
//
//	E2E_BINARY  a node-cache to test in place of one built from this tree
//	E2E_RACE    not empty: build node-cache with the race detector
package cluster
