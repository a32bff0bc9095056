// SPDX-License-Identifier: Apache-2.0

// Package handover passes the listening sockets of a running agent to its successor.
//
// The sockets stay open: the kernel keeps queueing packets and connections in them, whichever
// process reads. So neither agent has to be quick, and no queued query is lost when one of them
// dies:
//
//	new ─ hello ──────────▶ old      one successor at a time, same user, same protocol
//	new ─ snapshot ───────▶ old      writes its cache snapshot
//	new ─ sockets ────────▶ old      sends its sockets, and keeps reading them
//	new                              prepares to serve, for as long as that takes
//	new ◀────────── leaving ─ old    only if the old agent is shutting down: take over now
//	new                              reads the sockets too
//	new ─ take ───────────▶ old      stops reading, leaves link and rules alone
//	new ◀──────────── given ─ old    keeps its open TCP sessions for a while
//	new                              listens at the path for its own successor
//
// If the new agent dies before it sends take, the old one continues. If the old agent dies, the new
// one takes what the sockets hold. Messages use a unix socket that preserves message boundaries.
// They are bounded in size and number, and each has a timeout.
package handover
