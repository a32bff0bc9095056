// SPDX-License-Identifier: Apache-2.0

// Package refresh asks for the addresses of the names in cache.keep before their answers in the cache expire.
//
// One goroutine looks at one question at a time, A or AAAA of a name, and asks at most one each [pace]. A question is looked at when
// a quarter of its answer's lifetime is left, and each [look] at least, because an operator may have flushed the cache. It is not
// asked again within [firstPause], whatever the TTL is, and after failures within pauses that grow to [lastPause]. A random part of each pause
// keeps the questions of a node, and the nodes of a cluster, apart. So neither a TTL of a second nor the end of an outage makes a burst.
//
// A denial of the name counts as a failure: it is served, as RFC 8767 section 4 demands, and checked soon.
package refresh
