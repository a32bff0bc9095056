// SPDX-License-Identifier: Apache-2.0

// Package cache stores whole DNS answers by question, in shards, within a byte budget.
//
// Each shard keeps its entries in two logs outside the Go heap: a small one for new answers, and a
// main one for answers that were used again before they reached the end of the small log (S3-FIFO,
// SOSP 2023). A log is written at its head and freed at its tail. So there is no fragmentation and
// no work for the garbage collector, and the budget is exact: it includes index, ghosts, headers and
// answers. docs/adr/0002-eviction-policy.md has the measurements.
//
// All entries of one name are in one shard. One lock is enough to choose between the answer to a
// question, the denial of its name, a stale answer and a cached failure.
// docs/adr/0008-what-a-cache-may-say.md gives the reasons for that order.
//
// An answer may have an owner, such as a Service. [Cache.OwnerChanged] invalidates all answers that
// were queried before the owner's last change.
//
// An answer may be kept: a server has promised to report each change of it. It does not expire while
// [Cache.Vouch] says that the promise holds, see kept.go.
package cache
