// SPDX-License-Identifier: Apache-2.0

// Package kubenode runs a whole Kubernetes cluster on one machine, for tests: nodes with kubelet, containerd and
// kube-proxy, and a control plane, all of them the real programs.
//
// Every node is a process with namespaces of its own for network, mounts and processes, so that paths such as
// /var/lib/kubelet, /run/node-cache and /etc/resolv.conf are the node's. That process is the first of its namespace and
// dies with the test, and the kernel then ends all others in it and removes its mounts and links. Only its control
// groups remain; the next cluster removes those of a test that was killed.
//
//	control  10.10.0.1    API server, etcd, controllers, scheduler, kubectl
//	    │    192.0.2.53   a DNS that stands for the Internet's
//	    ├── node1  10.10.0.11, pods in 10.244.1.0/24
//	    └── node2  10.10.0.12, pods in 10.244.2.0/24      Services in 10.96.0.0/16
//
// With two families each also has an IPv6 address: fd00:10:10::1, fd00:10:10::11 and so on, pods in
// fd00:10:244:1::/64 and so on, Services in fd00:10:96::/112. A cluster without IPv4 has only these.
//
// It needs root, and Debian's packages runc, containernetworking-plugins, iptables or nftables, and busybox-static.
package kubenode
