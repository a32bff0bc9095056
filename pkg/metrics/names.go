// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/server"
)

// prefix starts the name of every family.
const prefix = "nodecache_"

// sections returns the table of all families, in the order of docs/metrics.md.
func sections() []section {
	return []section{
		{"Readiness", func(c *Config) bool { return c.Ready != nil }, readyFamilies()},
		{"Queries", func(c *Config) bool { return c.Resolve != nil }, queryFamilies()},
		{"Misses", func(c *Config) bool { return c.Resolve != nil }, missFamilies()},
		{"Cache", func(c *Config) bool { return c.Cache != nil }, cacheFamilies()},
		{"Answers from the configuration", func(c *Config) bool { return c.Static != nil }, staticFamilies()},
		{"Snapshot", func(c *Config) bool { return c.Snapshot != nil }, snapshotFamilies()},
		{"Memory", func(c *Config) bool { return c.Memory != nil }, memoryFamilies()},
		{"Upstreams", func(c *Config) bool { return c.Upstream != nil }, upstreamFamilies()},
		{"Cluster zone", func(c *Config) bool { return c.Cluster != nil }, zoneFamilies()},
		{"Cluster source", func(c *Config) bool { return c.Cluster != nil }, watchFamilies()},
		{"Central resolver", func(c *Config) bool { return c.Cluster != nil }, centralFamilies()},
		{"Interface", func(c *Config) bool { return c.Node != nil }, linkFamilies()},
		{"Lease", func(c *Config) bool { return c.Node != nil }, leaseFamilies()},
		{"Rules", func(c *Config) bool { return c.Node != nil }, ruleFamilies()},
		{"Probes", func(c *Config) bool { return c.Probes != nil }, probeFamilies()},
		{"Listening", func(c *Config) bool { return c.Foreign != nil }, listenFamilies()},
		{"UDP", func(c *Config) bool { return c.UDP != nil }, udpFamilies()},
		{"TCP", func(c *Config) bool { return c.TCP != nil }, tcpFamilies()},
		{"Configuration", func(c *Config) bool { return c.Config != nil }, configFamilies()},
		{"Configuration source", func(c *Config) bool { return c.Source != nil }, sourceFamilies()},
		{"Hand-over", func(c *Config) bool { return c.Handover != nil }, handoverFamilies()},
		{"Admin server", func(c *Config) bool { return c.Admin != nil }, adminFamilies()},
		{"Process", func(*Config) bool { return true }, processFamilies()},
	}
}

func protos() []string { return []string{"udp", "tcp"} }

func ipFamilies() []string { return []string{"ipv4", "ipv6"} }

func readyFamilies() []family {
	return []family{
		{
			"ready", gauge, "1 while /readyz returns 200, else 0: the agent starts, waits to take over, has handed over, has not synced the cluster, " +
				"or does not receive the node's queries. /readyz and /status show the reason.",
			nil, func(s *sample, out *sink) { out.put(boolValue(s.notReady == nil)) },
		},
	}
}

func queryFamilies() []family {
	return []family{
		{
			"queries_total", counter, "Valid queries, by transport, the client's IP family, and query type.",
			[]label{{"proto", protos()}, {"family", ipFamilies()}, {"type", resolve.TypeClasses()}},
			readQueries,
		},
		{
			"responses_total", counter, "Responses, by the source of the answer and response code.",
			[]label{{"source", resolve.Sources()}, {"rcode", resolve.Rcodes()}},
			readResponses,
		},
		{
			"request_duration_seconds", histogram, "Time from a query's arrival to its response. Responses from memory are timed per batch.",
			nil, readDurations,
		},
		{
			"dropped_total", counter, "Packets dropped without a response: shorter than a DNS header, or responses themselves.",
			nil, counterOf(func(s *sample) uint64 { return s.resolve.Dropped }),
		},
		{
			"malformed_total", counter, "Packets answered FORMERR.",
			nil, counterOf(func(s *sample) uint64 { return s.resolve.Malformed }),
		},
		{
			"rewritten_total", counter, "Queries whose name a rewrite rule changed.",
			nil, counterOf(func(s *sample) uint64 { return s.resolve.Rewritten }),
		},
		{
			"dns64_made_total", counter, "Responses with IPv6 addresses synthesized from IPv4 addresses.",
			nil, counterOf(func(s *sample) uint64 { return s.resolve.Synthesized }),
		},
		{
			"zone_short_total", counter, "Answers of the cluster zone that lack records: an address has more than 32 names, or the answer reached its lookup limit.",
			nil, counterOf(func(s *sample) uint64 { return s.resolve.ZoneShort }),
		},
	}
}

func missFamilies() []family {
	return []family{
		{
			"joined_total", counter, "Queries that joined an in-flight upstream query for the same question.",
			nil, counterOf(func(s *sample) uint64 { return s.resolve.Joined }),
		},
		{
			"prefetches_total", counter, "Background refreshes started before an answer expired.",
			nil, counterOf(func(s *sample) uint64 { return s.resolve.Prefetches }),
		},
		{
			"failures_total", counter, "Upstream queries without a good answer. Each counts once, however many clients waited.",
			nil, counterOf(func(s *sample) uint64 { return s.resolve.Failures }),
		},
		{
			"inflight", gauge, "In-flight upstream queries, background refreshes included.",
			nil, gaugeOf(func(s *sample) int { return s.resolve.Inflight }),
		},
		{
			"waiting", gauge, "Client queries that wait for an in-flight upstream query.",
			nil, gaugeOf(func(s *sample) int { return s.resolve.Waiting }),
		},
		{
			"clients", gauge, "Clients with waiting or in-flight queries. An address counts up to twice: with and without proof of its address (a cookie, TCP).",
			nil, gaugeOf(func(s *sample) int { return s.resolve.Clients }),
		},
		{
			"shed_total", counter, "Load shed, by the limit reached: queries over limits.inflight, limits.waiting, or their client's part of these, " +
				"queries of a flooding client (dropped without a response), background refreshes, and zone transfers. Queries answered with a stale answer instead count, too.",
			[]label{{"reason", resolve.Sheds()}},
			readShed,
		},
	}
}

func cacheFamilies() []family { return append(lookupFamilies(), storeFamilies()...) }

// lookupFamilies describe cache lookups.
func lookupFamilies() []family {
	return []family{
		{
			"cache_hits_total", counter, "Lookups that found a fresh answer or a cached failure.",
			nil, counterOf(func(s *sample) uint64 { return s.cache.Hits }),
		},
		{
			"cache_misses_total", counter, "Lookups that found no usable entry.",
			nil, counterOf(func(s *sample) uint64 { return s.cache.Misses }),
		},
		{
			"cache_expired_total", counter, "Misses that found an expired entry.",
			nil, counterOf(func(s *sample) uint64 { return s.cache.Expired }),
		},
		{
			"cache_stale_total", counter, "Stale answers served because no upstream answered in time (RFC 8767).",
			nil, counterOf(func(s *sample) uint64 { return s.cache.Stale }),
		},
		{
			"cache_cuts_total", counter, "NXDOMAIN answers served because a parent name is known not to exist (RFC 8020).",
			nil, counterOf(func(s *sample) uint64 { return s.cache.NXDomainCut }),
		},
		{
			"cache_invalidated_total", counter, "Lookups that found an answer older than the last change of its service or namespace.",
			nil, counterOf(func(s *sample) uint64 { return s.cache.Invalidated }),
		},
	}
}

// storeFamilies describe the cache's contents.
func storeFamilies() []family {
	return []family{
		{
			"cache_outdated_total", counter, "Answers not stored because their service or namespace changed during the upstream query.",
			nil, counterOf(func(s *sample) uint64 { return s.cache.Outdated }),
		},
		{
			"cache_removed_total", counter, "Answers removed by node-cache cache flush, by a reload that turns off caching for a route, " +
				"or by a newer answer that must not be cached.",
			nil, counterOf(func(s *sample) uint64 { return s.cache.Removed }),
		},
		{
			"cache_insertions_total", counter, "Answers and failures stored.",
			nil, counterOf(func(s *sample) uint64 { return s.cache.Insertions }),
		},
		{
			"cache_evictions_total", counter, "Unexpired entries evicted to make room.",
			nil, counterOf(func(s *sample) uint64 { return s.cache.Evictions }),
		},
		{
			"cache_expirations_total", counter, "Expired entries replaced.",
			nil, counterOf(func(s *sample) uint64 { return s.cache.Expirations }),
		},
		{
			"cache_rejected_total", counter, "Answers too large to be stored.",
			nil, counterOf(func(s *sample) uint64 { return s.cache.Rejected }),
		},
		{
			"cache_entries", gauge, "Entries held.",
			nil, gaugeOf(func(s *sample) int64 { return s.cache.Entries }),
		},
		{
			"cache_bytes", gauge, "Memory of the entries, headers included.",
			nil, gaugeOf(func(s *sample) int64 { return s.cache.Bytes }),
		},
		{
			"cache_fixed_bytes", gauge, "Memory of the index and of the record of evicted entries, independent of the number of entries.",
			nil, gaugeOf(func(s *sample) int64 { return s.cache.Fixed }),
		},
		{
			"cache_capacity_bytes", gauge, "Memory limit for entries and fixed bytes together (cache.size).",
			nil, gaugeOf(func(s *sample) int64 { return s.cache.Capacity }),
		},
	}
}

func listenFamilies() []family {
	return []family{
		{
			"foreign_sockets", gauge, "Sockets of other processes that are bound to the agent's addresses and port. /status names the processes.",
			nil, gaugeOf(func(s *sample) int { return s.foreign }),
		},
	}
}

func udpFamilies() []family {
	return []family{
		{
			"udp_received_total", counter, "Datagrams received.",
			nil, udpCounter(func(u *server.UDPStats) uint64 { return u.Received }),
		},
		{
			"udp_sent_total", counter, "Responses passed to the kernel.",
			nil, udpCounter(func(u *server.UDPStats) uint64 { return u.Sent }),
		},
		{
			"udp_unsent_total", counter, "Responses that the kernel did not accept.",
			nil, udpCounter(func(u *server.UDPStats) uint64 { return u.Unsent }),
		},
		{
			"udp_oversized_total", counter, "Datagrams too long to be a query, dropped.",
			nil, udpCounter(func(u *server.UDPStats) uint64 { return u.Oversize }),
		},
	}
}

func tcpFamilies() []family {
	limits := []string{"sessions", "per_client"}
	ends := []string{"idle", "shed", "slow", "short_frame", "write_timeout", "overflow", "memory", "drain"}
	return []family{
		{"tcp_sessions", gauge, "Sessions open.", nil, readSessions},
		{
			"tcp_sessions_accepted_total", counter, "Sessions accepted.",
			nil, tcpCounter(func(t *server.TCPStats) uint64 { return t.Accepted }),
		},
		{
			"tcp_sessions_refused_total", counter, "Connections closed at once: limits.tcpSessions was reached and no client had more sessions, or limits.tcpPerClient was reached.",
			[]label{{"reason", limits}},
			tcpCounterBy(
				limits,
				func(t *server.TCPStats) uint64 { return t.RefusedSessions },
				func(t *server.TCPStats) uint64 { return t.RefusedPerClient },
			),
		},
		{
			"tcp_sessions_closed_total", counter, "Sessions closed by the agent: idle timeout, replaced by a new one at limits.tcpSessions, a frame not completed in time, " +
				"a frame shorter than a DNS header, write timeout, too many unread responses, memory limit of all sessions reached, unfinished when the agent stopped.",
			[]label{{"reason", ends}},
			tcpCounterBy(
				ends,
				func(t *server.TCPStats) uint64 { return t.IdleClosed },
				func(t *server.TCPStats) uint64 { return t.ShedIdle },
				func(t *server.TCPStats) uint64 { return t.SlowClosed },
				func(t *server.TCPStats) uint64 { return t.ShortFrames },
				func(t *server.TCPStats) uint64 { return t.WriteTimeouts },
				func(t *server.TCPStats) uint64 { return t.Overflows },
				func(t *server.TCPStats) uint64 { return t.ShedMemory },
				func(t *server.TCPStats) uint64 { return t.DrainCut },
			),
		},
		{
			"tcp_accept_errors_total", counter, "Failed accept calls, for example because no file descriptor is left.",
			nil, tcpCounter(func(t *server.TCPStats) uint64 { return t.AcceptErrors }),
		},
		{
			"tcp_received_total", counter, "Complete frames received.",
			nil, tcpCounter(func(t *server.TCPStats) uint64 { return t.Queries }),
		},
		{
			"tcp_oversized_total", counter, "Responses too long for a frame, not sent.",
			nil, tcpCounter(func(t *server.TCPStats) uint64 { return t.Oversized }),
		},
		{
			"tcp_stalls_total", counter, "Times that reading from a session paused because too many of its misses were in flight.",
			nil, tcpCounter(func(t *server.TCPStats) uint64 { return t.Stalls }),
		},
	}
}

func configFamilies() []family {
	results := []string{"success", "failure"}
	return []family{
		{
			"config_generation", gauge, "Generation of the configuration in use, 1 at the start.",
			nil, gaugeOf(func(s *sample) uint64 { return s.config.Generation }),
		},
		{
			"config_last_reload_successful", gauge, "1 if the configuration read last is in use, else 0.",
			nil, readLastOK,
		},
		{
			"config_reloads_total", counter, "Configurations applied, including the one at the start, or refused.",
			[]label{{"result", results}},
			func(s *sample, out *sink) {
				out.count(s.config.Succeeded, results[0])
				out.count(s.config.Failed, results[1])
			},
		},
		{
			"config_last_reload_success_timestamp_seconds", gauge, "Unix time when a configuration was last applied.",
			nil, readLastSuccess,
		},
	}
}

func adminFamilies() []family {
	return []family{
		{
			"admin_connections_refused_total", counter, "HTTP connections closed because too many were open: usually an idle one, not the new one.",
			nil, counterOf(func(s *sample) uint64 { return s.admin.Refused }),
		},
		{
			"admin_requests_refused_total", counter, "HTTP requests over the limit of concurrent pages: they were answered 503, or a slow client's page was cut off.",
			nil, counterOf(func(s *sample) uint64 { return s.admin.Busy }),
		},
	}
}

func processFamilies() []family {
	return []family{
		{
			"panics_total", counter, "Recovered panics, by component. Each one failed a single query, session, exchange, object, file, configuration, snapshot, or request. The log has the stack traces.",
			[]label{{"where", []string{"resolve", "udp", "tcp", "upstream", "watch", "intercept", "probe", "source", "config", "static", "handover", "snapshot", "admin"}}},
			readPanics,
		},
		{
			"build_info", gauge, "Always 1. The labels show the version.",
			[]label{{name: "version"}, {name: "commit"}, {name: "goversion"}},
			readBuild,
		},
	}
}
