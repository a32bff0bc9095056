// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/nodecache/node-cache/pkg/capabilities"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/kernel"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/status"
	"github.com/nodecache/node-cache/pkg/wire"
)

// kernelHits are the answers in the kernel, if the configuration asked for them at the start and the kernel supports them.
type kernelHits struct {
	*kernel.Kernel // nil: there are none

	why string // there are none; empty: they are off
}

// openKernel loads the programs. It must run before the workers are made. With `auto` an error is logged only.
func (a *Agent) openKernel(ctx context.Context) error {
	cfg := a.Config()
	if cfg.Kernel.Hits == config.KernelOff {
		return nil
	}
	k, err := kernel.Open(kernel.Config{
		Source:  a.resolver.NewWorker(),
		Owner:   a.ownerOf,
		Size:    cfg.Kernel.Size,
		Permit:  cfg.Kernel.Permit,
		Lease:   cfg.Intercept.Lease,
		Port:    cfg.Listen.Port,
		Sockets: a.servers.udpSockets,
		Busy:    a.servers.longestBatch,
		Count:   a.countKernel, Attribute: a.attributeKernel, Log: a.log,
	})
	switch {
	case err == nil:
		a.kernel.Kernel = k
		a.watchers.Changed = func() { a.updateKernel(a.running.Load()) }
		a.observeKernel(a.running.Load())
	case cfg.Kernel.Hits == config.KernelOn:
		return &status.HintError{
			Err:  fmt.Errorf("kernel.hits: %w", err),
			Hint: "set kernel.hits to auto or off; `node-cache doctor` shows what this node supports",
		}
	default:
		a.kernel.why = err.Error()
		a.log.WarnContext(ctx, "hits are not answered in the kernel", "why", err)
	}
	return nil
}

// runKernel answers hits in the kernel until ctx ends or another agent has taken over.
func (a *Agent) runKernel(ctx context.Context) error {
	if a.kernel.Kernel == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with ctx
		select {
		case <-a.handover.handedOver():
			cancel()
		case <-ctx.Done():
		}
	}()
	a.observeKernel(a.running.Load())
	return a.kernel.Run(ctx)
}

// kernelCapabilities returns the capabilities for interfaces that come later.
func (a *Agent) kernelCapabilities() []cap.Value {
	if a.kernel.Kernel == nil {
		return nil
	}
	return []cap.Value{capabilities.NetAdmin, capabilities.BPF}
}

// observeKernel makes changes of r's answers end their copies in the kernel.
func (a *Agent) observeKernel(r *generation) {
	if a.kernel.Kernel == nil {
		return
	}
	r.cache.Observe(a.kernel.Changed)
	for _, store := range r.cluster.stores() {
		store.SetGate(a.kernel.Gate())
	}
	a.updateKernel(r)
}

// updateKernel follows the configuration of r. Every answer of an earlier plan ends.
func (a *Agent) updateKernel(r *generation) {
	if a.kernel.Kernel == nil {
		return
	}
	a.kernel.Changed(nil)
	a.kernel.SetPermit(r.config.Kernel.Permit)
	a.kernel.Set(r.config.Kernel.Hits != config.KernelOff && !a.reportsEach(r))
	if err := a.kernel.SetDestinations(r.kernelDestinations()); err != nil {
		a.log.Warn("setting the addresses of the kernel's answers failed", "err", err)
	}
}

// reportsEach reports whether every query is logged, watched, or sent to a collector: the kernel would hide some.
func (a *Agent) reportsEach(r *generation) bool {
	log := r.config.Log
	return log.Dnstap != "" || a.watchers.Any() || slices.Contains([]string{config.QueriesAll, config.QueriesSample}, log.Queries.Mode)
}

// kernelDestinations returns the addresses at which pods ask.
func (r *generation) kernelDestinations() (list []netip.AddrPort) {
	for _, addr := range r.config.Listen.Addresses {
		if !addr.IsUnspecified() {
			list = append(list, netip.AddrPortFrom(addr.WithZone(""), r.config.Listen.Port))
		}
	}
	if r.config.Intercept.Manage && r.config.Intercept.Mode == config.ModeTransparent {
		for _, addr := range r.cluster.interceptTarget(&r.config).Services {
			list = append(list, netip.AddrPortFrom(addr, dnsPort))
		}
	}
	return list
}

// dnsPort is the port of the cluster's DNS service.
const dnsPort = 53

// ownerOf returns the owner of a name in the configuration in use.
func (a *Agent) ownerOf(name []byte) []byte {
	if owner := a.running.Load().cluster.owner; owner != nil {
		return owner(name)
	}
	return nil
}

// countKernel counts hits of one question.
func (a *Agent) countKernel(h kernel.Hits) {
	r := a.running.Load()
	a.resolver.CountCopies(h.Type, h.Rcode, h.IPv4, h.IPv6)
	if h.Source == resolve.SourceCache {
		r.cache.AddHits(h.Key, h.IPv4+h.IPv6)
	}
	if r.cluster.pods != nil {
		n := h.IPv4 + h.IPv6
		c := pods.Counts{pods.FromMemory: n, pods.Bytes: n * uint64(h.Bytes)}
		if h.Rcode == wire.RcodeNXDomain {
			c[pods.Denied] = n
			if h.Inside {
				c[pods.Searched] = n
			}
		}
		r.cluster.pods.CountName(h.Key[:len(h.Key)-3], &c)
	}
}

// attributeKernel counts hits of one client.
func (a *Agent) attributeKernel(c kernel.Client) {
	if index := a.running.Load().cluster.pods; index != nil {
		_, usage := index.UsageOf(c.Addr)
		usage.Add(&pods.Counts{pods.FromMemory: c.Answered, pods.Denied: c.Denied, pods.Searched: c.Searched, pods.Bytes: c.Bytes})
	}
}

// udpSockets returns the open sockets over UDP.
func (s *servers) udpSockets() (list []syscall.RawConn) {
	for _, u := range s.udp {
		list = append(list, u.RawConns()...)
	}
	return list
}
