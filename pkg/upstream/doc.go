// SPDX-License-Identifier: Apache-2.0

// Package upstream asks other DNS servers until one of them has a good answer.
//
// # A query's journey
//
//	Pool.Ask ─ order.go    the two or three upstreams that are best for it
//	   │
//	 race.go ─┬─ try 1 ─ endpoint A ─ manners.go ─ carrier ─┐  late for A: a hedge, if one is left to spend
//	          ├─ try 2 ─ endpoint B      …                  │  silent for its patience, or failed: the next one
//	          ╎  six at the most                            ▼
//	          ╎                                 wire.SendBatch.Flush: what came in a batch leaves in one
//	          ▼                                             ┊
//	 raceend.go ◄─ endpoint: health.go ◄─ try.carried ◄─ the carrier's reader: all that one read brought
//	   │
//	Asked.Answered         the first good answer, or the [Failure] that tells most
//
// A race has no goroutine and nobody waits in it. What happens to it is called: by
// whoever asks, by a carrier, or by its one timer. [Pool.Exchange] is for those who
// do wait.
//
// # What is what
//
// A [Pool] asks a route's targets, or [Endpoints] that come and go. What there is at
// one moment is a roster, which is replaced whole; races under way take the new one
// over with their next try.
//
// An endpoint is one upstream: its latency, its health, its manners (what it has
// shown not to be able to do), a bucket for its rate, and the ways to it. A way is a
// carrier:
//
//	sockets*.go        UDP; a batch draws a socket, a query an ID and the case of its letters
//	stream*.go, tls.go connections of TCP or TLS that many queries share
//	http*.go           sessions of HTTP/2, a request for each query
//
// What UDP brings cut, or in changed letters, is fetched over TCP within the same
// try.
//
// What comes back is only accepted when it answers the question that was asked (RFC
// 5452 section 9.1) and is well formed from end to end. A datagram that is neither is
// counted and the wait goes on, so nobody ends a query by sending garbage.
//
// # Health
//
// Clients' own queries tell how an upstream fares. One whose last try ended in
// silence or an error of the network fails: it is asked after all others, and by
// probes of our own (probe.go). One that goes on failing is down, and gets nothing but
// probes. A try that lost its race by being late is listened for until its patience
// ends (an orphan), or hedges would hide that an upstream is silent.
//
// One that leads back to this process (loop.go finds out) is left out while it does.
//
// # Locks and goroutines
//
// Locks are taken in this order: race.mu, Pool.mu, endpoint.mu, a carrier's. Those of
// [Loops] and loopGuard are taken last, and nothing is called with them held.
// No lock is held while anybody is told anything; but opening a UDP socket, which
// never waits, happens under those of the race and, for a probe, of the endpoint.
//
// A UDP socket has a goroutine that reads, a connection one that reads and one that
// writes what the kernel did not take at once, a session and a request of HTTPS one
// each. They end with what they serve, and wait, of their carrier, waits for them. Whatever
// panics in one, or in a timer, is counted and costs no more than the queries in hand.
package upstream
