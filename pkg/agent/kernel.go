// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/capabilities"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/kernelhits"
	"github.com/nodecache/node-cache/pkg/node"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/retry"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/wire"
)

// kernelHits makes the kernel answer cache hits, if the configuration asked for that at the start and the kernel supports it.
// Otherwise it has no Responder, and its methods change nothing.
type kernelHits struct {
	*kernelhits.Responder // nil: the kernel answers nothing

	why      string      // why the kernel does not answer; empty: it does, or kernel.hits is off
	stopped  atomic.Bool // switched off by `node-cache kernel off`
	learner  atomic.Bool // a policy engine that learns names from DNS replies has been seen on this node
	running  *atomic.Pointer[generation]
	resolver *resolve.Resolver
	watchers *resolve.Watchers
	servers  *servers
	node     *node.Node
	handover *socketHandover
	log      *slog.Logger

	mu sync.Mutex // serializes update, so that the latest state is set last
}

// open loads the eBPF programs. It must run before the servers' workers are made. If kernel.hits is auto, it only logs an error.
func (h *kernelHits) open(ctx context.Context) error {
	cfg := h.running.Load().config
	if cfg.Kernel.Hits == config.KernelOff {
		return nil
	}
	k, err := kernelhits.Open(kernelhits.Config{
		Source:  h.resolver.NewWorker(),
		Owner:   h.ownerOf,
		Size:    cfg.Kernel.Size,
		Permit:  cfg.Kernel.Permit,
		Lease:   cfg.Intercept.Lease,
		Port:    cfg.Listen.Port,
		Sockets: h.servers.udpSockets,
		Busy:    h.servers.longestBatch,
		Lapsed:  h.node.Lapsed,
		Count:   h.count, Attribute: h.attribute, Now: time.Now, Log: h.log,
	})
	switch {
	case err == nil:
		h.Responder = k
		_ = h.findLearner(ctx) // watchLearner looks again
		h.watchers.Changed = h.update
		h.running.Load().cache.Observe(h.Changed)
		h.update()
	case cfg.Kernel.Hits == config.KernelOn:
		return &hint.Error{
			Err:  fmt.Errorf("kernel.hits: %w", err),
			Hint: hint.Of(err) + "; or set kernel.hits to auto, which starts without it",
		}
	default:
		h.why = err.Error()
		h.log.WarnContext(ctx, "hits are not answered in the kernel", "why", err, "hint", hint.Of(err))
	}
	return nil
}

// run answers hits in the kernel until ctx ends, or handedOver is closed: another agent has taken over.
func (h *kernelHits) run(ctx context.Context, handedOver <-chan struct{}) {
	if h.Responder == nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with ctx
		select {
		case <-handedOver:
			cancel()
		case <-ctx.Done():
		}
	}()
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { h.watchLearner(ctx) })
	h.Run(ctx)
}

const (
	learnerInterval = 2 * time.Second  // between two looks for a policy engine that learns names
	learnerPermit   = 10 * time.Second // kernel.permitName beside one: kube-network-policies forgets a name after 30 s
)

// findLearner sets h.learner. It stays set: an engine that restarts may remove its table.
func (h *kernelHits) findLearner(ctx context.Context) error {
	found, err := dataplane.HasLearner()
	if found {
		h.learner.Store(true)
		h.log.InfoContext(ctx, "policy engine learns names from replies", "engine", "kube-network-policies")
	}
	return err
}

// watchLearner looks for a policy engine that learns names. Once there is one, a restart of it ends all permits of names: it knows
// none, as if the kernel had answered nothing.
func (h *kernelHits) watchLearner(ctx context.Context) {
	failing := retry.Backoff{First: learnerInterval, Last: 10 * time.Minute} // without nftables each look has the kernel look for a module
	for wait := learnerInterval; !h.learner.Load(); {
		if retry.Sleep(ctx, wait) != nil {
			return
		}
		wait = learnerInterval
		if err := h.findLearner(ctx); err != nil {
			wait = failing.Next()
			h.log.DebugContext(ctx, "looking for a policy engine that learns names failed", "err", err)
		}
	}
	h.update()
	backoff := retry.Backoff{First: 100 * time.Millisecond, Last: 10 * time.Second}
	for ctx.Err() == nil {
		backoff.Begin()
		if err := dataplane.WatchLearner(ctx, h.ForgetNames); err != nil {
			h.log.WarnContext(ctx, "watching the policy engine failed", "err", err)
			_ = retry.Sleep(ctx, backoff.Next())
		}
	}
}

// permitName returns kernel.permitName, or what it is by default on this node.
func (h *kernelHits) permitName() time.Duration {
	switch set := h.running.Load().config.Kernel.PermitName; {
	case set == 0 && h.learner.Load():
		return learnerPermit
	default:
		return set
	}
}

// capabilities returns the capabilities for attaching programs to interfaces that appear later.
func (h *kernelHits) capabilities() []cap.Value {
	if h.Responder == nil {
		return nil
	}
	return []cap.Value{capabilities.NetAdmin, capabilities.BPF}
}

// worker returns a worker that copies answers of w into the kernel.
func (h *kernelHits) worker(w *resolve.Worker) server.Worker {
	if h.Responder == nil {
		return w
	}
	return h.Worker(w)
}

// update makes the kernel follow the running configuration, the address of the DNS service, the watchers and the command
// `node-cache kernel`. It drops all answers that the kernel holds from earlier plans.
func (h *kernelHits) update() {
	if h.Responder == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.running.Load()
	h.Changed(nil)
	h.SetPermit(r.config.Kernel.Permit)
	h.SetNamePermit(h.permitName())
	h.Set(h.state() == status.KernelOn)
	if err := h.SetDestinations(r.kernelDestinations()); err != nil {
		h.log.Warn("setting the addresses of the kernel's answers failed", "err", err)
	}
}

// state returns [status.KernelOn], or why the kernel does not answer. It is paused while all queries are logged, watched, or sent
// to a dnstap collector, since its answers would be missing there.
func (h *kernelHits) state() string {
	cfg := &h.running.Load().config
	switch mode := cfg.Log.Queries.Mode; {
	case cfg.Kernel.Hits != config.KernelOff && h.why != "":
		return "not supported: " + h.why
	case cfg.Kernel.Hits == config.KernelOff, h.Responder == nil:
		return status.KernelOffConfigured
	case h.stopped.Load():
		return "off by `node-cache kernel off`"
	case h.handover.hasHandedOver():
		return "off: another agent has taken over"
	case cfg.Log.Dnstap != "":
		return "paused: dnstap is on"
	case h.watchers.Any():
		return "paused: a watcher is attached"
	case mode == config.QueriesAll, mode == config.QueriesSample:
		return "paused: log.queries is " + mode
	}
	return status.KernelOn
}

// status returns nil if kernel.hits was off at the start.
func (h *kernelHits) status() *status.Kernel {
	if h.Responder == nil {
		if h.why != "" {
			return &status.Kernel{State: h.state()}
		}
		return nil
	}
	state := h.state()
	if state == status.KernelOn && h.node.Lapsed() {
		state = "paused: the agent holds no lease"
	}
	s := status.KernelOf(h.Responder, state, time.Now())
	s.PermitName = h.permitName().Seconds()
	return s
}

// page returns the handlers of the page /kernel.
func (h *kernelHits) page() *admin.Kernel {
	shown := func() any { return cmp.Or(h.status(), &status.Kernel{State: status.KernelOffConfigured}) }
	return &admin.Kernel{Status: shown, Set: func(on bool) (any, error) {
		if h.Responder == nil {
			if on {
				return nil, errors.New(h.state() + "\nhint: set kernel.hits to auto, and restart the agent; `node-cache doctor` shows what this node supports")
			}
			return shown(), nil
		}
		h.stopped.Store(!on)
		h.update()
		h.log.Info("kernel hits switched", "on", on, "state", h.state())
		return shown(), nil
	}}
}

// has reports whether the kernel answers a question: a name in canonical wire form and its type.
func (h *kernelHits) has(name []byte, rrtype uint16) bool {
	return h.Responder != nil && h.state() == status.KernelOn && h.Has(name, rrtype)
}

// kernelDestinations returns the addresses to which pods send their queries.
func (r *generation) kernelDestinations() (list []netip.AddrPort) {
	for _, addr := range r.config.Listen.Addresses {
		if !addr.IsUnspecified() {
			list = append(list, netip.AddrPortFrom(addr.WithZone(""), r.config.Listen.Port))
		}
	}
	if r.config.Intercept.Manage && r.config.Intercept.Mode == config.ModeTransparent {
		for _, addr := range r.interceptTarget().Services {
			list = append(list, netip.AddrPortFrom(addr, dnsPort))
		}
	}
	return list
}

// dnsPort is the port of the cluster's DNS service.
const dnsPort = 53

// ownerOf returns the part of a name whose changes invalidate its answers, see zone.Owner; nil: nothing in the cluster does.
func (h *kernelHits) ownerOf(name []byte) []byte {
	if owner := h.running.Load().cluster.Owner; owner != nil {
		return owner(name)
	}
	return nil
}

// count adds hits that the kernel answered for one question to the counters of the resolver, the cache and the pods' names.
func (h *kernelHits) count(hits kernelhits.Hits) {
	r := h.running.Load()
	h.resolver.CountCopies(hits.Type, hits.Rcode, hits.IPv4, hits.IPv6)
	if hits.Source == resolve.SourceCache {
		r.cache.AddHits(hits.Key, hits.IPv4+hits.IPv6)
	}
	name := hits.Key[:len(hits.Key)-3]
	recent := resolve.RecentCounts{Queries: uint32(hits.IPv4 + hits.IPv6)} //nolint:gosec // of a second
	if hits.Inside && hits.Rcode == wire.RcodeNXDomain {
		recent.Search = recent.Queries
	}
	h.resolver.CountRecent(netip.Addr{}, name, recent)
	if r.cluster.Pods != nil {
		var c pods.Counts
		c.Count(hits.IPv4+hits.IPv6, pods.FromMemory, hits.Rcode, hits.Inside, hits.Bytes)
		r.cluster.Pods.CountName(name, &c)
	}
}

// attribute adds hits that the kernel answered for one client to the counters of that client's pod.
func (h *kernelHits) attribute(c kernelhits.Client) {
	h.resolver.CountRecent(c.Addr, nil, resolve.RecentCounts{Queries: uint32(c.Answered), Search: uint32(c.Searched)}) //nolint:gosec // of a second
	if index := h.running.Load().cluster.Pods; index != nil {
		_, usage := index.UsageOf(c.Addr)
		usage.Add(&pods.Counts{pods.FromMemory: c.Answered, pods.Denied: c.Denied, pods.Searched: c.Searched, pods.Bytes: c.Bytes})
	}
}

// udpSockets returns the open UDP sockets.
func (s *servers) udpSockets() (list []syscall.RawConn) {
	for _, u := range s.udp {
		list = append(list, u.RawConns()...)
	}
	return list
}
