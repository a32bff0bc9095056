// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"

	"github.com/nodecache/node-cache/pkg/config"
)

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
	w.from, w.nowhere = to.String(), !to.Central && len(to.Addresses) == 0
	switch {
	case !to.Central:
		w.fallback = to.Addresses
	case r.config.Cluster.Central.Service != config.ServiceName{}:
		w.fallback = known.ready
	default:
		w.fallback = r.config.Cluster.Central.Addresses
	}
	return w
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
