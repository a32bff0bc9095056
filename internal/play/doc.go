// SPDX-License-Identifier: Apache-2.0

// Command play builds a node with two pods on this machine, without Kubernetes, and leaves its user in a shell of a pod.
//
// The hosts are network namespaces (see [github.com/nodecache/node-cache/internal/nodetest]); their processes live in a
// namespace of process IDs, their files in a file system of their own. So everything ends with the program, however it
// ends: when the first process of a namespace of process IDs dies, the kernel kills all others there, and the
// kernel frees what is no longer in use.
//
//	make, or a person ── play              waits, and passes signals on
//	                      └─ play inside   process 1: builds the hosts, serves the external DNS, collects children
//	                          ├─ node-cache resolver    in the host "upstream"
//	                          ├─ node-cache agent       in the host "node", started by the command "agent"
//	                          └─ the shell              in the host "pod1"
package main
