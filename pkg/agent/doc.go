// SPDX-License-Identifier: Apache-2.0

// Package agent assembles a node agent from the other packages, orders its start and stop, and applies reloads.
//
// The order of start is one list, read backwards on stop: upstream pools,
// resolver, sockets, admin server, configuration watcher. Everything that can
// fail at start (configuration, upstreams, sockets) fails in [New] or [Agent.Listen],
// before the first goroutine runs.
package agent
