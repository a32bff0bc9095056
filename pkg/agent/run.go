// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/admin/metrics"
	"github.com/nodecache/node-cache/pkg/admin/page"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/admin/timeline"
	"github.com/nodecache/node-cache/pkg/admin/top"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/cluster"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/dnstap"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/listen"
	"github.com/nodecache/node-cache/pkg/logging"
	"github.com/nodecache/node-cache/pkg/memory"
	"github.com/nodecache/node-cache/pkg/node"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/retry"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/suspend"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// New reads the configuration and builds the agent. It starts no goroutine, and opens no socket except the one to a predecessor.
func New(o Options) (*Agent, error) { return NewContext(context.Background(), o) }

// NewContext is New with a context. Reading a configuration from the API may take 30 s.
func NewContext(ctx context.Context, o Options) (*Agent, error) {
	return newAgent(ctx, node.LocalHost{}, o)
}

func newAgent(ctx context.Context, m node.Host, o Options) (*Agent, error) {
	a := &Agent{
		options: o, started: time.Now(), token: newToken(), host: m,
		ready:  make(chan struct{}),
		gate:   &nameGate{open: make(chan struct{})},
		config: configuration{changes: make(chan func(context.Context)), stopped: make(chan struct{})},
	}
	cfg, err := a.load(ctx)
	if err != nil {
		return nil, err
	}
	err = a.assemble(ctx, cfg)
	if err != nil && a.config.source != nil && a.config.startError == nil {
		if cfg, err = a.config.useLastGood(ctx, err); err == nil {
			err = a.assemble(ctx, cfg)
		}
	}
	if err != nil {
		return nil, err
	}
	a.config.succeeded(a.started)
	if a.config.startError != nil {
		a.config.refuse(ctx, a.config.startError)
	}
	return a, nil
}

// newToken returns 32 random bits in hexadecimal.
func newToken() string {
	b := make([]byte, 4)
	_, _ = rand.Read(b) // it never fails
	return hex.EncodeToString(b)
}

// assemble makes all parts for the first configuration, and loads the snapshot.
func (a *Agent) assemble(ctx context.Context, cfg config.Config) (err error) {
	a.timeline = timeline.New(timeline.Config{Log: a.log, Post: a.config.post()})
	a.memory = memory.New(a.log)
	a.memory.Update(ctx, &cfg)
	a.push = newPush(a)
	if err := a.makeServers(&cfg); err != nil {
		return err
	}
	a.node, err = node.New(node.Config{
		Config: cfg, Token: a.token, Host: a.host, LongestBatch: a.servers.longestBatch, Log: a.log,
		Target: func() node.Target {
			r := a.running.Load()
			return r.interceptTarget()
		},
		Cilium: func(ctx context.Context) (*dataplane.CiliumSettings, error) {
			return readCilium(ctx, a.running.Load().cluster)
		},
		Clients: func() []netip.Addr { return recentClients(a.resolver) },
	})
	if err != nil {
		return err
	}
	a.builder = &builder{
		log: a.log, token: a.token, dial: a.options.Dial,
		loops: upstream.NewLoopDetector(nil), memory: a.memory, tap: dnstap.New(nodeName(), a.options.Version, a.log), watchers: &a.watchers, ready: a.ready, stopped: a.config.stopped,
		kernelHas: a.kernel.has,
		ask:       func(name []byte, rrtype uint16) string { return a.resolver.Refresh(name, rrtype) }, //nolint:contextcheck // it does not wait
		inUse:     func() *cache.Cache { return a.running.Load().cache },
		hostsChanged: func() { //nolint:contextcheck // it outlives the start
			a.kernel.update()
			a.push.Reconfigured(context.Background(), a.resolver.Zones()) // the files may have a name that is subscribed to
		},
		blockChanged: func() { a.resolver.PurgeBlocked() }, // the kernel learns of it from the cache
	}
	a.builder.clusters = &cluster.Maker{
		Version: a.options.Version, Pool: a.builder.poolConfig, Memory: a.memory, Now: time.Now, Log: a.log,
		Observer: &storeObserver{kernel: &a.kernel, push: a.push, running: &a.running},
		Cache:    func() *cache.Cache { return a.running.Load().cache },
		TargetChanged: func() {
			a.node.TargetChanged()
			a.kernel.update()
		},
	}
	a.gate.running, a.gate.log, a.gate.check = &a.running, a.log, func(ctx context.Context, r *generation) []*unresolved {
		return a.builder.checkNames(ctx, r, r.config.RequiredNames)
	}
	a.builder.useTap(cfg.Log.Dnstap)
	none := &generation{cluster: new(cluster.Cluster)} // the first generation takes no parts from another one
	r, err := a.builder.build(cfg, none)               //nolint:contextcheck // it reads files and never blocks
	if err != nil {
		return err
	}
	a.snapshots = &snapshots{
		Keeper: snapshot.NewKeeper(a.token, time.Now, a.log), running: &a.running, ready: a.ready, log: a.log, change: make(chan struct{}, 1),
	}
	if a.options.Clocks != nil {
		a.snapshots.Clocks = a.options.Clocks
	}
	a.handover = &socketHandover{
		node: a.node, servers: a.servers, snapshots: a.snapshots, running: &a.running, log: a.log,
	}
	a.snapshots.handover = a.handover
	if err := a.handover.open(handover.Config{Path: cfg.Handover.Socket, Agent: a.token, Version: a.options.Version}); err != nil {
		return err
	}
	a.handover.Find(ctx)
	if cfg.Snapshot.Folder != "" {
		a.handover.RequestSnapshot(ctx)
	}
	a.snapshots.load(ctx, r)
	plan, err := a.builder.plan(r)
	if err == nil {
		a.resolver, err = resolve.New(resolve.Config{Plan: plan, Now: time.Now, Rand: rand.Reader, Log: a.log})
	}
	if err != nil {
		a.handover.Close()
	} else {
		r.adopt(plan)
		a.resolver.PurgeBlocked() // the snapshot is from before
	}
	a.running.Store(r)
	a.kernel = kernelHits{running: &a.running, resolver: a.resolver, watchers: &a.watchers, servers: a.servers, node: a.node, handover: a.handover, log: a.log}
	return err
}

// makeServers makes the DNS servers and the admin server.
func (a *Agent) makeServers(cfg *config.Config) (err error) {
	var handler server.Handler = a
	if a.options.WrapHandler != nil {
		handler = a.options.WrapHandler(a)
	}
	if a.servers, err = newServers(cfg, a.memory.Share(), handler, statefulServer{a.push}, a.log); err != nil {
		return err
	}
	if !cfg.Admin.Address.IsValid() && cfg.Admin.Socket == "" && !cfg.Admin.TLSAddress.IsValid() {
		return nil
	}
	if a.servers.tls, err = newSecureAdmin(cfg, "node-cache/"+a.options.Version, a.log); err != nil {
		return err
	}
	series, err := metrics.Handler(metrics.New(a.sample), a.log)
	if err != nil {
		return err
	}
	index := func() *pods.Index { return a.running.Load().cluster.Pods }
	recent := func() *top.Recent { return status.RecentOf(index(), a.resolver, time.Now()) }
	a.page, err = page.New(page.Config{
		Status:     a.Status,
		Stats:      func() resolve.Stats { return a.resolver.Stats() },
		Recent:     recent,
		SearchPath: func() bool { return a.Config().Pods.SearchPath },
		Now:        time.Now,
	})
	if err != nil {
		return err
	}
	var kernel *admin.Kernel
	if a.options.Role == config.Agent {
		kernel = a.kernel.page()
	}
	a.servers.admin, err = admin.New(admin.Config{
		Addr:     cfg.Admin.Address,
		FreeBind: cfg.Interface.Manage,
		Secure:   a.servers.tls.config(),
		Socket:   cfg.Admin.Socket,
		Hosts:    cfg.Admin.Hosts,
		Metrics:  series,
		Ready:    a.notReady,
		Live:     a.notAlive,
		Status: func(named bool) any {
			s := a.Status()
			if !named {
				s.HideClients()
			}
			return s
		},
		Cache:  status.CachePages(func() *cache.Cache { return a.running.Load().cache }, a.kernel.has, a.log),
		Kernel: kernel,
		Top:    status.TopPage(index, recent),
		Watch:  status.WatchPage(&a.watchers, index, logging.JSONOptions(slog.LevelInfo)),
		Front:  a.page.Serve,
		Checks: a.checks,
		Log:    a.log,
	})
	return err
}

// nodeName returns the name of the node, else of the host.
func nodeName() string {
	name, _ := os.Hostname()
	return cmp.Or(os.Getenv("NODE_NAME"), name)
}

// Listen opens all sockets or takes over those of a predecessor. If a predecessor does not hand over its
// sockets, Listen waits until they are free. After an error no socket stays open. If ctx ends, the error
// wraps the context's.
func (a *Agent) Listen(ctx context.Context) (err error) {
	cfg := a.Config()
	defer func() {
		if err == nil {
			return
		}
		a.handover.Close()
		a.servers.close()
		a.node.Close()
		if ctx.Err() != nil {
			err = fmt.Errorf("stopped before serving: %w", ctx.Err())
		}
	}()
	if err := a.node.Open(ctx); err != nil {
		return err
	}
	if err := a.kernel.open(ctx); err != nil {
		return err
	}
	open := func() error {
		a.handover.Receive(ctx, a.servers.addrs)
		return a.servers.listenDNS(ctx, a.handover.Adopt)
	}
	err = open()
	for err != nil && a.handover.Retry(ctx, err) {
		err = open()
	}
	if err != nil {
		return listen.Problem(err, cfg.Listen.Port)
	}
	if err := a.servers.listenAdmin(ctx, &cfg.Admin, a.handover.Adopt); err != nil {
		return err
	}
	a.handover.Discard()
	return nil
}

// Run serves until ctx ends. Listen must have been called.
//
// Run reads as the life of the process: its parts start from top to bottom, and the deferred calls stop them
// from bottom to top. So queries first go to the fallback, then the servers answer what they have accepted,
// and then the configuration's watch, the upstream pools, the rules, the link, and the admin server end. An
// agent that has handed over leaves rules and link, and waits for the end of ctx before the admin server ends.
func (a *Agent) Run(ctx context.Context) (err error) {
	group, ctx := errgroup.WithContext(ctx) // from here on, ctx also ends when a task fails
	defer func() { err = errors.Join(err, group.Wait()) }()
	defer a.servers.close() // closes the sockets of servers that never ran
	stopAdmin := a.servers.runAdmin(ctx)
	defer func() { err = errors.Join(err, a.handover.idle(ctx), stopAdmin()) }()
	defer a.node.End(ctx)
	defer a.snapshots.saveLast(ctx)

	defer startStage(ctx, group, a.builder.tap.Run).stop()
	a.parts = &partSet{group: group, running: map[part]*stage{}}
	defer a.parts.stopAll()
	a.parts.start(ctx, a.running.Load().parts())
	defer startStage(ctx, group, a.resolver.Run, a.push.Run, noError(a.snapshots.run), noError(a.watchSuspends),
		noError(a.servers.tls.run), noError(a.servers.runCertificate), noError(func(ctx context.Context) {
			if a.page != nil {
				a.page.Run(ctx)
			}
		})).stop()
	reloads := startStage(ctx, group, noError(a.config.run), a.config.runSource)
	defer reloads.stop()

	defer a.handover.Close() // drops a takeover that did not complete
	a.awaitCluster(ctx)
	if ctx.Err() != nil { // stopped while waiting; a predecessor, if there is one, continues to serve
		return nil
	}
	if err := a.node.Setup(ctx, a.handover.takesOver()); err != nil || ctx.Err() != nil {
		return err
	}
	a.dropCapabilities(ctx)
	keeper := startStage(ctx, group, a.runNode)
	defer keeper.stop()
	a.handover.stopNode = keeper.cancel

	defer a.log.InfoContext(ctx, "stopped serving")
	servers := startStage(ctx, group, a.servers.tasks()...)
	defer servers.stop()
	a.handover.takeOver(ctx)
	a.gate.openUnlessNeeded(a.config.source != nil && a.config.source.Served())
	if a.servers.admin != nil {
		a.servers.admin.Open()
	}
	defer startStage(ctx, group, a.handover.run, noError(a.watchTopology), noError(a.takeLease), noError(a.watchProblems),
		noError(func(ctx context.Context) { a.servers.foreign.Run(ctx, a.handover.handedOver()) }),
		noError(func(ctx context.Context) { a.memory.Watch(ctx, a.Config, a.replan) })).stop()
	defer a.leave(ctx)
	if err := memory.UnmapProgram(); err != nil {
		a.log.DebugContext(ctx, "unmapping the program failed", "err", err)
	}
	defer startStage(ctx, group, noError(func(ctx context.Context) { a.kernel.run(ctx, a.handover.handedOver()) })).stop()
	a.log.InfoContext(ctx, "serving", "addresses", a.Addrs(), "version", a.options.Version)
	close(a.ready)
	a.serveUntilEnd(ctx, servers, reloads)
	return nil
}

// firstSyncWait bounds the wait for the first cluster sync before the agent serves. It is long enough for a
// folder or a small cluster, and shorter than a client's retry.
const firstSyncWait = 200 * time.Millisecond

// awaitCluster waits for the records of etcd, for at most firstSyncWait, and for the first cluster sync: while a predecessor
// answers, and then for the required names, else for at most firstSyncWait. Meanwhile queries wait in the socket buffers, which is better than a SERVFAIL for a
// name that is known shortly after.
func (a *Agent) awaitCluster(ctx context.Context) {
	if e := a.running.Load().etcd; e != nil {
		_ = e.AwaitRead(ctx, firstSyncWait) // an error is in /status
	}
	if from := a.handover.Predecessor(); from != nil {
		a.handover.awaitSync(ctx, from)
		a.gate.awaitBefore(ctx, from, &a.handover.recorder, a.timeline)
		return
	}
	_ = a.running.Load().cluster.AwaitSync(ctx, firstSyncWait)
}

// dropCapabilities calls Options.DropCapabilities with the capabilities that the agent still needs.
func (a *Agent) dropCapabilities(ctx context.Context) {
	if a.options.DropCapabilities == nil {
		return
	}
	keep := append(a.node.RequiredCapabilities(), a.handover.requiredCapabilities()...)
	keep = append(keep, a.kernel.capabilities()...)
	if err := a.options.DropCapabilities(keep); err != nil {
		a.log.WarnContext(ctx, "capabilities not dropped", "err", err)
		return
	}
	a.log.DebugContext(ctx, "capabilities dropped", "kept", keep)
}

// runNode maintains link and rules, once no other agent does.
func (a *Agent) runNode(ctx context.Context) error {
	if !a.handover.awaitClear(ctx) {
		return nil
	}
	return a.node.Run(ctx)
}

// watchSuspends ages the cache and the cluster's objects by each suspend until ctx ends.
func (a *Agent) watchSuspends(ctx context.Context) {
	suspend.Watch(ctx, func(d time.Duration) {
		r := a.running.Load()
		r.cache.AddSuspend(d)
		for _, store := range r.cluster.Stores() {
			store.AddSuspend(d)
		}
		a.log.InfoContext(ctx, "host was suspended", "for", d.Round(time.Millisecond))
	})
}

// The API server is asked for this node's topology zone at these intervals. The wait doubles after each error, because a
// missing permission usually stays missing, and clusters have many nodes.
const (
	zoneRetry      = 30 * time.Second
	zoneRetryLimit = 16 * time.Minute // longest wait, reached by doubling
)

// watchTopology asks the API server for this node's topology, if that is needed, until it is known. Then the zones and the choice
// of central endpoints use it. It also warns of federations without aliases, until ctx ends.
func (a *Agent) watchTopology(ctx context.Context) {
	warned := false
	for wait := zoneRetry; ; {
		r := a.running.Load()
		switch found, err := r.cluster.LearnTopology(ctx, &r.config.Cluster, time.Now, a.log); {
		case err != nil:
			a.log.DebugContext(ctx, "reading topology zone failed", "err", err)
			wait = min(2*wait, zoneRetryLimit)
		case found:
			a.replan(ctx)
			wait = zoneRetry
		}
		p, unknown := status.FederationProblem(r.cluster.FederationStatus(&r.config.Cluster))
		if unknown && !warned {
			a.log.WarnContext(ctx, "federations have no aliases", "problem", p.What, "hint", p.Hint)
		}
		warned = unknown
		if retry.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// zoneWait bounds the lease's wait for the first cluster sync while a fallback answers. After it the agent takes the queries, and
// forwards the names that it does not know: other names must not wait for an API server.
const zoneWait = 10 * time.Second

// takeLease takes the lease once the zone is known, if only from a snapshot, or after zoneWait without it, and once the required
// names resolve. Until then the fallback answers the node's queries. Without a fallback they arrive here, lease or not.
func (a *Agent) takeLease(ctx context.Context) {
	if c := a.running.Load().cluster; a.node.Managed() && !c.Restored() {
		_ = c.AwaitSync(ctx, zoneWait)
	}
	if !a.gate.isOpen() {
		if a.gate.await(ctx, nil, func(error) {}) == nil {
			return
		}
		close(a.gate.open)
	}
	if ctx.Err() == nil {
		a.node.Serve()
	}
}

// serveUntilEnd waits until ctx ends, or until another agent has taken over and the TCP sessions have ended. After a takeover,
// this agent no longer watches the configuration.
func (a *Agent) serveUntilEnd(ctx context.Context, servers, reloads *stage) {
	select {
	case <-ctx.Done():
		return
	case <-a.handover.handedOver():
	}
	reloads.cancel()
	select {
	case <-ctx.Done():
	case <-servers.ended:
	}
}

// leave moves the queries to the fallback, or to a successor that has the sockets. The servers continue meanwhile.
func (a *Agent) leave(ctx context.Context) {
	a.handover.announceExit(ctx)
	a.node.Leave(ctx, a.Config().Limits.Deadline+time.Second)
}
