// SPDX-License-Identifier: Apache-2.0

// Command policy replays two DNS traces through simulated caches and compares what their eviction policies keep.
//
// Time is virtual: a trace is asked at a fixed rate, and every entry expires at its TTL. An answer is there as soon as
// it was missed. Every cache is bounded by the bytes of its entries alone: an index, lists and ghosts come on top for
// all of them and are not counted. The traces and the random choices come from fixed seeds, so two runs print the same.
//
// A question's way through the program: trace → replay → policy → report.
package main
