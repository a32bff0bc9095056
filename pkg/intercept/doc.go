// SPDX-License-Identifier: Apache-2.0

// Package intercept keeps a node's DNS queries with its agent for as long as the
// agent answers.
//
// A [Keeper] has two loops that never wait for each other:
//
//	rules   State ─ Apply, at the start, when Watch says so, when the fallback
//	        changes, each minute; after a failure with a growing pause. The rules
//	        of an agent that answers already wait for its lease (Prepare, Await)
//	lease   for each address: Probe ─ Renew, twice a second; sooner after a probe
//	        that went well beside a reader at work for too long
//
// The lease is the kernel's, and it ends there by itself. It is renewed only after a
// query through the agent's own listening sockets came back right, and only for what
// is left of the lease since that query was sent. So whatever happens to the agent,
// its host's packets are with it for one lease at most after its last good answer.
//
// Rules have one owner. A Keeper that finds those of another agent when it begins
// takes them over; one that loses its own to an agent that came later stands down:
// it writes nothing and renews nothing from then on.
package intercept
