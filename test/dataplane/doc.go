// SPDX-License-Identifier: Apache-2.0

// Package dataplane runs the agent beside real Cilium or a real policy engine on one node. It looks at what pods get in each of Cilium's
// settings: while the agent serves, while it is dead, stopped or restarted, when it hands over to one of the same version and of another,
// and where a policy denies it. In one setting a namespace opts in and out, with the component's real policy.
//
//	upstream ──veth── node: etcd and API server by a proxy, cilium-agent, node-cache with 169.254.20.10 on lo
//	                   ├─ dns       a Cilium endpoint, which the Service kube-dns has: the fallback
//	                   └─ clients   Cilium endpoints, made by cilium-cni
//
// The programs come from module test/cilium, BPF from its sources by Debian's clang 19. There is no kubelet, no operator and no
// container: the test writes the objects that they would, and a pod is a network namespace.
//
// Cilium has a mount namespace of its own, with a file system for its pins, and a control group of its own for its programs at sockets.
// So nothing reaches the machine, and each test looks whether it does.
//
// The tests of policy engines have no Cilium: kube-network-policies or kube-router runs on the node, and routes lead to the pods.
//
// A check that fails for a known reason asserts just that it fails: see the fields of setting that begin with "no". Once the product is
// right, it is the test that fails, until the reason is removed.
package dataplane
