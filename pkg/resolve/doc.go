// SPDX-License-Identifier: Apache-2.0

// Package resolve decides how one query is answered.
//
// # Path of a query
//
//	packet ─ Worker.AnswerFromMemory, lookup.ask
//	   ├─ odd.go          malformed, other opcodes, class CH, ANY: answered or dropped. AXFR and IXFR:
//	   │                  refused, or sent by a goroutine of their own, transfer.go
//	   ├─ extras.go       only if the configuration has one of these:
//	   │   ├─ redirect.go another name is looked up
//	   │   ├─ static      hosts and templates: an answer, or an alias of another name
//	   │   ├─ dns64.go    reverse name of a NAT64 address: an alias of the IPv4 reverse name
//	   │   └─ skydns      records of etcd: an answer, or an alias of another name
//	   ├─ zone            cluster name: an answer, a denial, or an alias of an external name
//	   ├─ cache           fresh, in backoff, or a cached failure: answered
//	   ├─ answerFromCut   a cached denial of a parent name: answered NXDOMAIN
//	   └─ Worker.Resolve ─ inflight.go  identical misses share one upstream query
//	                        ├─ querytable.go a client with too many queries is shed
//	                        ├─ route       longest matching suffix
//	                        └─ Asker.Ask   with a deadline; sent by Worker.Flush
//
//	answer ─ inFlight.Answered
//	   ├─ validate.go   what may be cached, and for how long
//	   └─ response.go   replies to all waiters
//	       └─ redirect.go  restores the client's name; DNS64 may query A records in the remaining time
//	no answer within StaleAfter, or a failure: a stale answer, if there is one
//
// [Worker.AnswerFromMemory], (*lookup).ask, [Worker.Resolve] and (*inFlight).Answered define this order.
//
// The files are layers, the lowest first. Only a DNS64 retry and a walk call a higher layer:
//
//	validate, sanitize, stats, cookie, dns64, redirect   parts that do not depend on in-flight queries
//	plan, resolver, querytable                           shared state
//	inflight, response, transfer                         the course of one in-flight query or transfer
//	waiter, explain, report                              clients that wait for one; the query log, dnstap and watchers
//	odd, extras, search, lookup, worker                  the order of decision; search walks the search path of a pod
//	shared                                               replies for the answers in the kernel
//
// AnswerFromMemory runs on the goroutine that read the packet. It takes no lock except a cache
// shard's, and allocates nothing. An in-flight query is one memory block and not a goroutine. The
// goroutine that reads from upstreams completes it, by its deadline at the latest. A waiting client
// costs the bytes of its question and an address. Upstream queries and replies are collected in a
// [wire.SendBatch] and sent with the current batch.
//
// An answer that is due for prefetch is returned at once and refreshed by an in-flight query without
// waiters. If that fails the answer keeps its original expiry.
package resolve
