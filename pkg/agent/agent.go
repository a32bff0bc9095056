// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/nodecache/node-cache/pkg/admin/page"
	"github.com/nodecache/node-cache/pkg/admin/timeline"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/configsource"
	"github.com/nodecache/node-cache/pkg/memory"
	"github.com/nodecache/node-cache/pkg/names/push"
	"github.com/nodecache/node-cache/pkg/node"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/snapshot"
)

// Options configures an [Agent].
type Options struct {
	// Source is where the configuration comes from, if it has a File or a ConfigMap. The agent sets its Role, UserAgent, Apply,
	// Serving, Log and Now.
	Source  configsource.Config
	Role    config.Role    // selects the defaults: an agent's or a central resolver's
	Config  *config.Config // used when there is no source; nil: the defaults
	Version string
	Commit  string    // the commit that the program is built from; empty if unknown
	Log     io.Writer // receives the log
	// Dial opens the sockets to upstreams; nil: the net package's dialer.
	Dial func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	// Clocks, if not nil, reads the clocks that date snapshots, in place of the host's clocks. It serves virtual time.
	Clocks func() snapshot.ClockState
	// DropCapabilities, if not nil, is called once sockets and link are set up. It may drop all capabilities
	// but keep, which the agent still needs. Its error is logged.
	DropCapabilities func(keep []cap.Value) error
	// WrapHandler, if not nil, returns the handler that the servers use in place of the agent's own. Tests
	// use it to stall the agent.
	WrapHandler func(server.Handler) server.Handler
}

// An Agent is one node's DNS cache, or a cluster's central resolver.
type Agent struct {
	options   Options
	log       *slog.Logger
	started   time.Time
	token     string // identifies this agent, also in the kernel objects that it creates
	host      node.Host
	memory    *memory.Keeper
	node      *node.Node
	servers   *servers
	page      *page.Page // status page of the admin server; nil: there is none
	timeline  *timeline.Timeline
	builder   *builder
	snapshots *snapshots
	handover  *socketHandover
	resolver  *resolve.Resolver
	push      *push.Server
	ready     chan struct{}
	gate      *nameGate
	config    configuration
	running   atomic.Pointer[generation]
	parts     *partSet // parts of the running configuration; only configuration.run uses them once it runs
	watchers  resolve.Watchers
	kernel    kernelHits
}

// NewWorker implements [server.Handler].
func (a *Agent) NewWorker() server.Worker {
	return a.kernel.worker(a.resolver.NewWorker())
}

// Ready returns a channel that is closed once the agent serves.
func (a *Agent) Ready() <-chan struct{} { return a.ready }

// Config returns the configuration in use.
func (a *Agent) Config() config.Config { return a.running.Load().config }

// Addrs returns the addresses served. Listen must have been called.
func (a *Agent) Addrs() []netip.AddrPort {
	addrs := make([]netip.AddrPort, 0, len(a.servers.udp))
	for _, u := range a.servers.udp {
		addrs = append(addrs, u.Addr())
	}
	return addrs
}

// AdminAddr returns the admin server's address. It is invalid without an admin server.
func (a *Agent) AdminAddr() netip.AddrPort {
	if a.servers.admin == nil {
		return netip.AddrPort{}
	}
	return a.servers.admin.Addr()
}
