// SPDX-License-Identifier: Apache-2.0

package config

import (
	"log/slog"
	"net/netip"
	"time"
)

// The port of the admin server.
const adminPort = 9253

// The default bounds on TTLs, of the cache and of each route.
const (
	defaultMinTTL      = 5 * time.Second
	defaultMaxTTL      = time.Hour
	defaultNegativeTTL = 30 * time.Second
)

// Default returns the configuration of an empty file in a role. It shares nothing with other calls.
func Default(role Role) Config {
	c := Config{
		Listen: Listen{
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})},
			Port:      1053,
			UDPSize:   1232,
			ListenTLS: ListenTLS{TLSPort: 853},
		},
		Forward:       []Route{DefaultRoute(".", Target{Kind: ResolvConf, Path: "/etc/resolv.conf"})},
		ClusterDomain: "cluster.local.",
		Cluster: Cluster{
			Resolver:   ResolverNone,
			Central:    Central{Connections: 2, CentralTLS: CentralTLS{TLSPort: 853}},
			Endpoints:  EndpointsHeadless,
			Pods:       PodsInsecure,
			TTL:        5 * time.Second,
			StaleAfter: 90 * time.Second,
			NodeZone:   "auto",
			External:   External{TTL: 5 * time.Second},
		},
		Pods:  NodePods{Identity: IdentityOff},
		Hosts: Hosts{TTL: 30 * time.Second},
		Etcd:  Etcd{Prefix: "/skydns"},
		DNS64: DNS64{Clients: DNS64IPv6},

		SpecialNames: []string{"localhost", "invalid", "onion", "resolver.arpa"},

		Interface: Interface{Name: "nodelocaldns", Kind: LinkAuto},
		Intercept: Intercept{
			Mode: ModeLinkLocal, Backend: BackendAuto, OnExit: ExitAuto,
			Lease: 3 * time.Second, Fallback: Fallback{Central: true},
		},
		Kernel: Kernel{Hits: KernelOff, Size: 4 << 20, Permit: 5 * time.Second},
		Cache: Cache{
			Size:        64 << 20,
			MinTTL:      defaultMinTTL,
			MaxTTL:      defaultMaxTTL,
			NegativeTTL: defaultNegativeTTL,
			FailureTTL:  5 * time.Second,
			Prefetch:    Prefetch{Hits: 2, Remaining: 0.1},
			ServeStale:  ServeStale{For: time.Hour, TTL: 30 * time.Second, After: 200 * time.Millisecond},
			Keep:        Keep{For: 24 * time.Hour},
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
		Log:   Log{Level: slog.LevelInfo, Format: "json", Queries: QueryLog{Mode: QueriesOff}},
	}
	if role == Resolver {
		// The resolver runs in a pod of its own. Its clients, scrapes and probes come from outside.
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
		Zone: zone, To: to, Policy: PolicyFastest, Connections: 2, RouteHTTPS: RouteHTTPS{Method: MethodPost},
		MinTTL: defaultMinTTL, MaxTTL: defaultMaxTTL, NegativeTTL: defaultNegativeTTL,
	}
}

// DefaultProbe returns the probe of a label and a name, which must be lower-case and absolute, with every other key at
// its default.
func DefaultProbe(label, name string) Probe {
	return Probe{Label: label, Name: name, Type: 1, Interval: 5 * time.Second, Timeout: time.Second}
}
