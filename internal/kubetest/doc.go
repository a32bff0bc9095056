// SPDX-License-Identifier: Apache-2.0

// Package kubetest runs a real Kubernetes control plane for a test or a benchmark.
//
// [Build] makes kube-apiserver, kube-controller-manager, kube-proxy, etcd and CoreDNS from the modules below test/
// and keeps them in the user's cache folder. [Start] runs them for a test, [Launch] for a program:
//
//	c := kubetest.Start(t, kubetest.Options{Controllers: true})
//	kubetest.Apply(t, c, kubetest.Namespace("shop"), service)
//	services, err := c.Client().CoreV1().Services("shop").List(ctx, metav1.ListOptions{})
//
// Everything listens on 127.0.0.1. The API server speaks TLS with certificates made at start, knows its users by
// token and asks RBAC. It can be killed, paused and started again on the same port with the same data, and
// a [Proxy] in front of it counts bytes. There are no kubelets, so pods have the
// status that a test gives them.
//
// The programs die with the process that started them, however that ends.
package kubetest
