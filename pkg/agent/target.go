// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/node"
)

// interceptTarget returns the part of the interception that changes while the agent runs: services and fallback. The node does not use
// the fallback where the data plane serves the Service.
func (r *generation) interceptTarget() (t node.Target) {
	cfg := &r.config
	t.Standby = cfg.Standby
	var ready, own []netip.AddrPort
	if r.cluster.Endpoints != nil {
		ready, own = r.cluster.Endpoints.Confirmed()
	}
	t.Excluded = r.cluster.ServiceExcluded != nil && r.cluster.ServiceExcluded.Load()
	t.Services = cfg.Intercept.Services
	if len(t.Services) == 0 {
		t.Services = serviceAddresses(own, cfg.Listen)
	}
	to := cfg.Intercept.Fallback
	t.From, t.None = to.String(), !to.Central && len(to.Addresses) == 0
	switch {
	case !to.Central:
		t.Fallback = to.Addresses
	case cfg.Cluster.Central.Endpoints() != config.ServiceName{}:
		t.Fallback = ready
	default:
		t.Fallback = cfg.Cluster.Central.Addresses
	}
	return t
}

// serviceAddresses returns the first address in own for each of IPv4 and IPv6 that the agent listens on.
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
