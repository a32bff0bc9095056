// SPDX-License-Identifier: Apache-2.0

// Package upstream sends queries to other DNS servers until one of them has a good answer.
//
// # A query's path
//
//	Pool.Ask ─ selection.go   the two or three best upstreams for the query: its candidates
//	   │
//	exchange.go ─┬─ attempt 1 ─ endpoint A ─ capabilities.go ─ transport ─┐  late: a hedge, if the budget allows one
//	             ├─ attempt 2 ─ endpoint B         …                      │  timed out or failed: the next candidate
//	             ╎  six at most                                           ▼
//	             ╎                               wire.SendBatch.Flush sends all queries of a batch at once
//	             ▼                                                        ┊
//	exchange.go ◄─ endpoint.go: health ◄─ handleReply ◄─ the transport's reader, with all answers of one read
//	   │
//	AnswerReceiver.Answered   the first good answer, or the most specific [Failure]
//
// An exchange has no goroutine and nothing blocks in it. The caller, transports and its timer call it.
//
// # Layers
//
// Each file uses those below it:
//
//	pool.go                    New and Run: reads targets and files, replaces the list of upstreams
//	exchange.go, timers.go     one client query, and the timers of all
//	selection.go               a snapshot of the list, and the upstreams that a query asks
//	endpoint.go                one upstream: its health, rate limit and transports
//	capabilities.go, loop.go   what was learned about it: limitations, latency, whether it leads back here
//	case.go                    whether an answer to a name in random case (0x20) is believed
//	https.go, stream.go        what connections carry: HTTP/2 requests, or messages with a length
//	conn.go, choice.go         connections that many queries share: opened, chosen, aged, replaced and closed
//	udp.go, udpsocket.go, …    UDP; each batch gets a random socket, each query a random ID and random case (0x20)
//	transport.go               what transports take and deliver: an attempt and its reply
//	config.go, endpoints.go    what a pool is configured with; its [Endpoints] change over time
//	stats.go, failure.go       counters, reasons, causes
//
// If a UDP answer is truncated, or one to the random case is not believed, the same attempt asks again over TCP. A
// running exchange uses a new snapshot from its next attempt on.
//
// An answer is accepted only if it matches the question (RFC 5452 section 9.1) and is well formed from end to end. Any
// other datagram is counted and ignored, so that garbage cannot end a query.
//
// # Health
//
// Client queries measure an upstream's health. After a timeout or a network error it is failing: it is asked after all
// others, and probed (endpoint.go). If it goes on failing it is down, and gets only probes. An attempt that lost to a
// hedge stays pending until its timeout: otherwise hedges would hide that an upstream does not answer.
//
// An upstream that leads back to this process (loop.go) gets only loop probes.
//
// # Order
//
// With the policy fastest, the latency for most names decides. An answer does not count if another upstream is late with
// the same question too. An attempt without an answer counts as lost only if another upstream answered in time. Errors do
// not count. Some queries go to a second upstream as well, to measure it; the client gets the first answer.
//
// # Locks and goroutines
//
// Locks are taken in this order: exchange.mu, Pool.mu, endpoint.mu, a transport's. The locks of [LoopDetector] and
// loopMonitor come last, and nothing is called with them held. No lock is held during callbacks. Opening a UDP socket,
// which never blocks, happens under the locks of the exchange and, for a probe, of the endpoint.
//
// A UDP socket has a reading goroutine. A connection has one too. Over TCP and TLS it also has a writer for what the
// kernel did not accept at once; over HTTPS each request has its own goroutine. They end with what they serve, and
// their transport's wait joins them. A panic in a goroutine or timer is counted and fails only the queries it handled.
package upstream
