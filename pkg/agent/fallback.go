// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"hash/maphash"
	"net/netip"
	"slices"

	"github.com/nodecache/node-cache/pkg/config"
)

// maxFallback is over how many endpoints a node spreads its queries while nobody
// answers them here. Each is a rule with iptables. Which of more they are is each
// node's own choice, so that all are somebody's.
const maxFallback = 16

// wants is what of the interception may change, by the running configuration and what
// is known of the cluster.
func (a *Agent) wants() wants {
	r := a.running.Load()
	var w wants
	var known followed
	if r.cluster != nil && r.cluster.followed != nil {
		if told := r.cluster.followed.Load(); told != nil {
			known = *told
		}
	}
	w.services = r.config.Intercept.Services
	if len(w.services) == 0 {
		w.services = serviceAddresses(known.own, r.config.Listen)
	}
	if r.config.Intercept.Mode == config.ModeTransparent {
		return w // kube-proxy is the fallback
	}
	to := r.config.Intercept.Fallback
	w.from = to.String()
	switch {
	case !to.Central:
		w.fallback = to.Addresses
	case r.config.Cluster.Central.Service != config.ServiceName{}:
		w.fallback = known.ready
	default:
		w.fallback = r.config.Cluster.Central.Addresses
	}
	w.fallback = a.some(slices.DeleteFunc(slices.Clone(w.fallback), func(to netip.AddrPort) bool {
		return slices.Contains(r.config.Listen.Addresses, to.Addr())
	}))
	return w
}

// some are at most maxFallback of the endpoints, always the same for this agent.
func (a *Agent) some(endpoints []netip.AddrPort) []netip.AddrPort {
	if len(endpoints) > maxFallback {
		rank := func(e netip.AddrPort) uint64 { return maphash.Comparable(a.seed, e) }
		slices.SortFunc(endpoints, func(x, y netip.AddrPort) int { return cmp.Compare(rank(x), rank(y)) })
		endpoints = endpoints[:maxFallback]
	}
	slices.SortFunc(endpoints, netip.AddrPort.Compare)
	return slices.Compact(endpoints)
}

// serviceAddresses are the first of own of each family that the agent listens on.
func serviceAddresses(own []netip.AddrPort, listen config.Listen) []netip.Addr {
	var addrs []netip.Addr
	for _, o := range own {
		sameFamily := func(a netip.Addr) bool { return a.Is4() == o.Addr().Is4() }
		if slices.ContainsFunc(listen.Addresses, sameFamily) && !slices.ContainsFunc(addrs, sameFamily) {
			addrs = append(addrs, o.Addr())
		}
	}
	return addrs
}
