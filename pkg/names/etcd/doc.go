// SPDX-License-Identifier: Apache-2.0

// Package etcd keeps a copy of the SkyDNS records in etcd.
//
//	connect ─ read: all keys, in pages of one revision ─ follow: a watch from the next revision
//	   ↑                    ↑                                        │
//	   └─ any failure ──────┴─ changes are lost, or there is room again
//
// While etcd does not answer, the last records stay. Once it answers, the watch continues after their revision. All keys are
// read again if etcd has compacted that revision, is at an older one, or is another cluster.
package etcd
