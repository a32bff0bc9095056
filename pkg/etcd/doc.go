// SPDX-License-Identifier: Apache-2.0

// Package etcd keeps SkyDNS records as etcd has them.
//
//	connect ─ read: all keys, in pages of one revision ─ follow: a watch from the next revision
//	   ↑                    ↑                                        │
//	   └─ any failure ──────┴─ changes are lost, or there is room again
//
// While etcd does not answer, the records stay. Then the watch goes on after their revision. If etcd no longer has that, or
// an older one, or is another cluster, all keys are read again.
package etcd
