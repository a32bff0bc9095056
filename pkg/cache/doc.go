// SPDX-License-Identifier: Apache-2.0

// Package cache stores whole DNS answers by question, in shards, within a number of bytes.
//
// The bytes live in two logs per shard, outside the Go heap: a small one where
// every new answer starts, and a main one for those that were asked for again
// before the small log came round (S3-FIFO, SOSP 2023). A log is written at its
// head and freed at its tail, so there is no fragmentation, nothing for the
// garbage collector to walk, and the budget is exact: index, ghosts, headers and
// answers are all inside it. docs/adr/0002-eviction-policy.md has the figures.
//
// All that is known of a name is in one shard, so that one lock is enough to choose
// between the answer to a question, the denial of its name, what is past its time but
// better than nothing, and a remembered failure. docs/adr/0008-what-a-cache-may-say.md
// says why in that order.
//
// An answer may have an owner, whose changes are events that the cache is told of: what
// was asked for before an event is not there any more, see owners.go.
package cache
