// SPDX-License-Identifier: Apache-2.0

// Package cluster shows the cluster zone at work against a real Kubernetes control plane, beside CoreDNS.
//
// The programs come from internal/kubetest: kube-apiserver, kube-controller-manager, etcd and CoreDNS, built from
// their modules. They are built once and kept in the user's cache folder; the first time takes several minutes.
package cluster
