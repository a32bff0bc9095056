// SPDX-License-Identifier: Apache-2.0

package config

import (
	"log/slog"
	"net/netip"
	"time"
)

// Config is the configuration of one agent or resolver. [Default] has the value of every absent key.
type Config struct {
	Listen        Listen
	Forward       []Route // in the order of the file, zones unique; the root zone is always there
	ClusterDomain string  // lower-case and absolute, not the root; default "cluster.local."
	Cluster       Cluster
	Hosts         Hosts
	Rewrite       []Rewrite  // the first that matches a name applies; default empty
	Templates     []Template // the first that matches a question applies; default empty
	DNS64         DNS64
	Interface     Interface
	Intercept     Intercept
	Cache         Cache
	Snapshot      Snapshot
	Handover      Handover
	Limits        Limits
	Identity      Identity
	Admin         Admin
	Probes        []Probe // at most 32, their labels unique; default empty
	Log           Log
}

// Listen sets where DNS queries are received, over UDP and TCP.
type Listen struct {
	// Addresses are unique and never empty; default 127.0.0.1, for a resolver ::.
	// 0.0.0.0 stands for every IPv4 address, :: for every address, and nothing they
	// cover is listed beside them. An IPv6 address may carry a zone (fe80::1%eth0).
	Addresses []netip.Addr
	Port      uint16 // 1..65535; default 1053
	UDPSize   int    // bytes of the largest answer over UDP, 512..4096; default 1232 (DNS Flag Day 2020)
}

// Route sets the upstreams of the names at and below a zone. [DefaultRoute] has the value of every absent key.
type Route struct {
	Zone string   // lower-case and absolute: "." or "example.com."
	To   []Target // unique and never empty; no address twice over the same transport

	// Bootstrap are the addresses of the one HTTPS target that has a host name in place of an address, unique; empty
	// if there is none.
	Bootstrap []netip.Addr

	Policy       Policy     // default PolicyFastest
	Connections  int        // to each upstream over TCP, TLS and HTTPS, 1..16; default 2
	Rate         int        // queries a second to each upstream, 1..1000000; 0, the default: no bound
	PlainCase    bool       // send names in lower case; default false: over UDP in random case, which must come back
	TrustAD      bool       // believe the AD flag of upstreams over UDP and TCP; default false
	CA           string     // file of the certificates (PEM) that those of TLS and HTTPS must lead to, absolute unless Parse read a relative path; default empty: the system's
	Method       HTTPMethod // of HTTPS; default MethodPost
	NoFallback   bool       // never ask the servers of Intercept.Fallback; default false: they are asked while all upstreams are down
	ClientSubnet bool       // pass the client's EDNS client-subnet option (RFC 7871); default false: remove it

	MinTTL      time.Duration // as in Cache, for the names of this route; default: that of Cache
	MaxTTL      time.Duration // likewise
	NegativeTTL time.Duration // likewise
	NoCache     bool          // cache only failures of this route; default false
}

// Cache bounds the cache, in bytes and in time. All its TTLs but MinTTL are at least a second, all are whole seconds.
type Cache struct {
	Size        int64         // bytes, 1 MiB..1 TiB; default 64 MiB
	MinTTL      time.Duration // shorter TTLs are raised to it, 0..1h and at most MaxTTL; default 5s
	MaxTTL      time.Duration // longer TTLs are cut to it, up to 7 days (RFC 8767 section 4); default 1h
	NegativeTTL time.Duration // longest life of a denial (RFC 2308), up to a day; default 30s
	FailureTTL  time.Duration // life of a failure (RFC 9520), up to 5m; default 5s
	Prefetch    Prefetch
	ServeStale  ServeStale

	// NXDomainCut: the denial of a name stands for every name below it (RFC 8020); default true.
	NXDomainCut bool
}

// Prefetch sets which answers are refreshed before they expire.
type Prefetch struct {
	Hits      int     // lookups that make an answer worth it, 0..1000000; 0: no prefetch; default 2
	Remaining float64 // part of the TTL that is left when it is due, 0.01..0.9, in steps of 0.0001; default 0.1
}

// ServeStale sets when a stale answer is served (RFC 8767).
type ServeStale struct {
	For   time.Duration // how long after expiry, whole seconds, 0..72h; 0: never; default 1h
	TTL   time.Duration // that of all its records, whole seconds, 1s..5m; default 30s
	After time.Duration // time that upstreams have to answer first, 10ms..30s and below Limits.Deadline unless For is 0; default 200ms
}

// Snapshot sets how the cache and the cluster objects survive a restart.
type Snapshot struct {
	Folder string        // absolute unless Parse read a relative path; default empty: there is no snapshot
	Period time.Duration // from one to the next, 10s..1h and at most MaxAge; default 1m
	Size   int64         // bytes at most, 1 MiB..1 GiB; default 16 MiB
	MaxAge time.Duration // an older one is not loaded, 1m..168h; default 24h
}

// Limits bounds concurrent work.
type Limits struct {
	Inflight     int           // upstream exchanges, 1..1048576; default 4096
	Waiting      int           // client queries that wait for them, Inflight..16777216; default 16384
	PerClient    int           // of these those of one address, 1..16777216; 0, the default: no bound of its own
	Deadline     time.Duration // longest time for one client query, 100ms..1m; default 4s
	TCPSessions  int           // open TCP sessions, 1..1048576; default 1024
	TCPPerClient int           // open TCP sessions of one address, 1..TCPSessions; default 128
	TCPIdle      time.Duration // a TCP session without a query ends after it, 1s..1h; default 10s
}

// Identity holds the answers to queries of class CH. An empty string refuses the query.
type Identity struct {
	Version  string // TXT of version.bind, up to 255 bytes; default empty
	Hostname string // TXT of hostname.bind and id.server, up to 255 bytes; "auto": the host name; default empty
}

// Admin sets where /metrics, /livez, /readyz, /status and the cache pages are served.
type Admin struct {
	Address netip.AddrPort // the zero value: nowhere; default 127.0.0.1:9253, for a resolver [::]:9253
	Socket  string         // path of a unix socket, absolute, at most 107 bytes; default empty: none

	// Hosts are the names, lower-case and without a dot at the end, that a request may have in its Host header, besides
	// addresses and localhost; default none.
	Hosts []string
}

// Log sets what is logged.
type Log struct {
	Level   slog.Level // one of slog's four; default info
	Format  string     // "json" or "text"; default "json"
	Queries QueryLog   // default off
}
