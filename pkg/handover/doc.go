// SPDX-License-Identifier: Apache-2.0

// Package handover passes the listening sockets of a running agent to the one that
// takes its place.
//
// The sockets stay what they are: the kernel goes on to queue packets and sessions in
// them, whoever reads. So neither agent has to be quick, and nothing that a socket
// holds is lost when either of them dies:
//
//	new ─ hello ──────────▶ old      one taker at a time, the same user, one protocol
//	new ─ snapshot ───────▶ old      writes what it knows
//	new ─ sockets ────────▶ old      sends them, and goes on reading
//	new                              makes itself ready, for as long as that takes
//	new ◀────────── leaving ─ old    only if it is to end: now or never
//	new                              reads the sockets too
//	new ─ take ───────────▶ old      reads no more, leaves the node alone
//	new ◀──────────── given ─ old    and keeps its open sessions for a while
//	new                              listens in the old one's place for its own successor
//
// A new agent that dies before it says take was never there; one that finds the old one
// dead takes what it holds. Messages are those of a unix socket that keeps them apart,
// bounded in size and in number, and each has its time.
package handover
