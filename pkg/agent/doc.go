// SPDX-License-Identifier: Apache-2.0

// Package agent assembles a node agent from the other packages, orders its start and stop, and applies
// reloads.
//
// The start order is upstream pools, resolver, sockets, admin server, configuration watch; the stop reverses
// it. Whatever can fail at the start (configuration, upstreams, sockets) fails in [New] or [Agent.Listen],
// before the first goroutine runs.
package agent
