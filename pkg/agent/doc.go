// SPDX-License-Identifier: Apache-2.0

// Package agent assembles a node agent from the other packages, orders its start and stop, and applies
// reloads.
//
// The start order is upstream pools, resolver, sockets, admin server, configuration watch; the stop reverses
// it. Whatever can fail at the start (configuration, upstreams, sockets) fails in [New] or [Agent.Listen],
// before the first goroutine runs.
//
// The parts are what all of them share (parts.go), the cluster (cluster.go), the plan of a configuration (plan.go),
// snapshots, servers, the answers in the kernel (kernel.go) and the handover. Above them are the [Agent] (agent.go), its
// status (status.go), its reloads (reload.go), and its life from [New] to the end of [Agent.Run] (run.go).
package agent
