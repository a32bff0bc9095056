// SPDX-License-Identifier: Apache-2.0

// Package intercept directs a node's DNS queries to its agent for as long as the agent
// answers.
//
// A [Keeper] has three loops that never wait for each other:
//
//	rules   State → Apply: at the start, when Watch reports a change, when the fallback
//	        changes, and each minute; after a failure with exponential backoff. With
//	        AwaitLease, the first rules wait for the leases (Prepare)
//	lease   for each address: Probe → Renew, each second; sooner after a failure
//	test    for each address: Tester.Test, at the start, after each change of the rules, and
//	        each five minutes
//
// The lease is in the kernel and ends there by itself. The Keeper renews it only after a
// query through the agent's own listening sockets was answered correctly, and only for
// the rest of the lease since that query was sent. So if the agent fails in any way,
// packets still go to it for at most one lease after its last good answer.
//
// The test says whether the fallback would answer, and changes nothing. Its packets pass the
// lease by a mark. Since packets of the node skip the hooks for those that arrive, Config.PodsWay
// says why they do not prove that pods get answers.
//
// Rules have one owner. A Keeper that finds the rules of another agent at its start takes
// them over. A Keeper that loses its rules to an agent that started later stands down:
// from then on it writes nothing and renews nothing.
package intercept
