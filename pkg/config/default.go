// SPDX-License-Identifier: Apache-2.0

package config

import (
	"log/slog"
	"net/netip"
	"time"
)

// The port of the admin server.
const adminPort = 9253

// The bounds on TTLs, of the cache and so of each route.
const (
	defaultMinTTL      = 5 * time.Second
	defaultMaxTTL      = time.Hour
	defaultNegativeTTL = 30 * time.Second
)

// Default returns the plan of an empty file in a role. It shares nothing with other calls.
func Default(role Role) Config {
	c := Config{
		Listen: Listen{
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})},
			Port:      1053,
			UDPSize:   1232,
		},
		Forward:       []Route{DefaultRoute(".", Target{Kind: ResolvConf, Path: "/etc/resolv.conf"})},
		ClusterDomain: "cluster.local.",
		Cluster: Cluster{
			Central:    Central{Connections: 2},
			Pods:       PodsInsecure,
			TTL:        5 * time.Second,
			StaleAfter: 90 * time.Second,
			NodeZone:   "auto",
		},
		Hosts:     Hosts{TTL: 30 * time.Second},
		Interface: Interface{Name: "nodelocaldns"},
		Intercept: Intercept{Lease: 3 * time.Second, Fallback: Fallback{Central: true}},
		Cache: Cache{
			Size:        64 << 20,
			MinTTL:      defaultMinTTL,
			MaxTTL:      defaultMaxTTL,
			NegativeTTL: defaultNegativeTTL,
			FailureTTL:  5 * time.Second,
			Prefetch:    Prefetch{Hits: 2, Remaining: 0.1},
			ServeStale:  ServeStale{For: time.Hour, TTL: 30 * time.Second, After: 200 * time.Millisecond},
			NXDomainCut: true,
		},
		Snapshot: Snapshot{Period: time.Minute, Size: 16 << 20, MaxAge: 24 * time.Hour},
		Limits: Limits{
			Inflight:     4096,
			Waiting:      16384,
			Deadline:     4 * time.Second,
			TCPSessions:  1024,
			TCPPerClient: 128,
			TCPIdle:      10 * time.Second,
		},
		Admin: Admin{Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), adminPort)},
		Log:   Log{Level: slog.LevelInfo, Format: "json"},
	}
	if role == Resolver {
		// It runs in a pod of its own, and what asks it, scrapes it and probes it does not.
		c.Listen.Addresses = []netip.Addr{netip.IPv6Unspecified()}
		c.Admin.Address = netip.AddrPortFrom(netip.IPv6Unspecified(), adminPort)
		c.Cluster.Resolver = ResolverLocal
		c.Cluster.Endpoints = EndpointsAll
	}
	return c
}

// DefaultRoute returns the route of a zone, which must be lower-case and absolute, with every other key at its default,
// the bounds on its TTLs at those of a cache at its defaults.
func DefaultRoute(zone string, to ...Target) Route {
	return Route{
		Zone: zone, To: to, Connections: 2,
		MinTTL: defaultMinTTL, MaxTTL: defaultMaxTTL, NegativeTTL: defaultNegativeTTL,
	}
}
