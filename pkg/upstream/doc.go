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
//	exchange.go ◄─ endpoint.go: health ◄─ attempt.deliver ◄─ the transport's reader, with all answers of one read
//	   │
//	AnswerReceiver.Answered   the first good answer, or the most specific [Failure]
//
// An exchange has no goroutine and nothing blocks in it. The caller, transports and its timer call it. [Pool.Exchange]
// is the blocking form.
//
// # Parts
//
// A [Pool] asks the targets of a route, or [Endpoints], which change over time. The list at one time is a snapshot,
// which is replaced as a whole. A running exchange uses the new snapshot from its next attempt on.
//
// An endpoint is one upstream: its latency, health, learned capabilities, rate limit and transports. The transports:
//
//	udp.go                     UDP; each batch gets a random socket, each query a random ID and random case (0x20)
//	connpool.go, conn.go       connections that many queries share: opened, chosen, aged, replaced and closed
//	stream.go                  what they carry over TCP and TLS: messages with a length
//	https.go                   what they carry over HTTPS: HTTP/2 requests, one per query
//
// If a UDP answer is truncated or its name has another case, the same attempt asks again over TCP.
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
