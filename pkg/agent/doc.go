// SPDX-License-Identifier: Apache-2.0

// Package agent assembles a node agent from the other packages, orders its start and stop, and applies
// reloads.
//
// The start order is upstream pools, resolver, sockets, admin server, configuration watch; the stop reverses
// it. Whatever can fail at the start (configuration, upstreams, sockets) fails in [New] or [Agent.Listen],
// before the first goroutine runs.
//
// The [Agent] is in agent.go, its life from [New] to the end of [Agent.Run] in run.go, its reloads in reload.go, its
// status in status.go. They use the parts: generation.go (what a configuration makes), plan.go (what the resolver
// does with it), kernel.go, snapshots, servers and the handover. parts.go has what all parts share.
package agent
