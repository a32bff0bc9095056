// SPDX-License-Identifier: Apache-2.0

// Package upstream asks other DNS servers over UDP and TCP behind one Exchange.
//
// One client query becomes a race of at most six tries:
//
//	Exchange ─ choose the two or three upstreams with the best score
//	    │
//	    ├─ try 1 ─ upstream A ─ a fresh UDP socket, or a place on a TCP connection
//	    │            silent for its patience, or failed
//	    ├─ try 2 ─ upstream B     (try 1 keeps listening)
//	    │            …
//	    └─ the first good answer wins; the other tries are cancelled and joined
//
// What comes back is only accepted when it answers the question that was asked
// (RFC 5452 section 9.1) and is well formed from end to end. A datagram that is
// neither is counted and the wait goes on, so nobody ends a query by sending
// garbage. An answer with TC set is asked for again over TCP, within the same
// try.
//
// A pool's upstreams are a route's targets, or [Endpoints] that come and go. Of
// these three are chosen, and one race shares its six tries among them. When the
// list changes, so do the races under way: what is still to be tried is tried
// with those that are there now.
//
// Upstreams are ordered by measured latency. Failing makes one slower, not
// being asked makes it faster again; there is no other notion of health, and no
// probe but the clients' own queries.
package upstream
