// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/server"
)

// prefix begins the name of every family.
const prefix = "nodecache_"

// sections is the table of all families. docs/metrics.md has its order.
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
			"ready", gauge, "1 while /readyz would say yes, else 0: it starts, waits to take over from another agent or has handed over to one, does not know the cluster yet, " +
				"or does not get the node's queries. /readyz and /status have the reason.",
			nil, func(s *sample, out *sink) { out.put(truth(s.unready == nil)) },
		},
	}
}

func queryFamilies() []family {
	return []family{
		{
			"queries_total", counter, "Queries that could be read, by transport, the client's IP family and the type asked for.",
			[]label{{"proto", protos()}, {"family", ipFamilies()}, {"type", resolve.TypeClasses()}},
			readQueries,
		},
		{
			"responses_total", counter, "Replies, by what they were made from and their response code.",
			[]label{{"source", resolve.Sources()}, {"rcode", resolve.Rcodes()}},
			readResponses,
		},
		{
			"request_duration_seconds", histogram, "Time from a query's arrival to its reply. Replies from memory are timed by the batch they leave in.",
			nil, readDurations,
		},
		{
			"dropped_total", counter, "Packets that got no reply: shorter than a header, or a response themselves.",
			nil, count(func(s *sample) uint64 { return s.resolve.Dropped }),
		},
		{
			"malformed_total", counter, "Packets answered FORMERR.",
			nil, count(func(s *sample) uint64 { return s.resolve.Malformed }),
		},
		{
			"rewritten_total", counter, "Queries for whose name a rule of rewrite had another one looked up.",
			nil, count(func(s *sample) uint64 { return s.resolve.Rewritten }),
		},
		{
			"dns64_made_total", counter, "Replies with IPv6 addresses that were made of IPv4 addresses.",
			nil, count(func(s *sample) uint64 { return s.resolve.Made }),
		},
		{
			"zone_short_total", counter, "Answers of the cluster zone that lack records: an address has more than 32 names, or one answer looked through all that it may.",
			nil, count(func(s *sample) uint64 { return s.resolve.ZoneShort }),
		},
	}
}

func missFamilies() []family {
	return []family{
		{
			"joined_total", counter, "Queries that found their question on its way to an upstream and waited with it.",
			nil, count(func(s *sample) uint64 { return s.resolve.Joined }),
		},
		{
			"prefetches_total", counter, "Refreshes begun in the background before an answer expired.",
			nil, count(func(s *sample) uint64 { return s.resolve.Prefetches }),
		},
		{
			"failures_total", counter, "Questions to which no upstream gave a good answer. However many clients waited, each counts once.",
			nil, count(func(s *sample) uint64 { return s.resolve.Failures }),
		},
		{
			"inflight", gauge, "Questions on their way to an upstream, background refreshes included.",
			nil, level(func(s *sample) int { return s.resolve.Inflight }),
		},
		{
			"waiting", gauge, "Queries that wait for those questions.",
			nil, level(func(s *sample) int { return s.resolve.Waiting }),
		},
		{
			"clients", gauge, "Clients whose queries wait, or whose questions are under way: an address is up to two, by whether it is proven (a cookie, TCP).",
			nil, level(func(s *sample) int { return s.resolve.Clients }),
		},
		{
			"shed_total", counter, "What was turned away at a bound: queries at limits.inflight, at limits.waiting and at what their client may have of these, " +
				"queries of a client that floods, which got no reply, background refreshes and zone transfers at their own. A query that got an answer past its time instead is counted too.",
			[]label{{"reason", resolve.Sheds()}},
			readShed,
		},
	}
}

func cacheFamilies() []family { return append(lookupFamilies(), storeFamilies()...) }

// lookupFamilies are what the cache gives.
func lookupFamilies() []family {
	return []family{
		{
			"cache_hits_total", counter, "Lookups that found a fresh answer or a remembered failure.",
			nil, count(func(s *sample) uint64 { return s.cache.Hits }),
		},
		{
			"cache_misses_total", counter, "Lookups that found nothing to use.",
			nil, count(func(s *sample) uint64 { return s.cache.Misses }),
		},
		{
			"cache_expired_total", counter, "Those of the misses that found an entry past its time.",
			nil, count(func(s *sample) uint64 { return s.cache.Expired }),
		},
		{
			"cache_stale_total", counter, "Answers given past their time, because nothing better was to be had soon enough (RFC 8767).",
			nil, count(func(s *sample) uint64 { return s.cache.Stale }),
		},
		{
			"cache_cuts_total", counter, "Denials given because a name above is known not to exist (RFC 8020).",
			nil, count(func(s *sample) uint64 { return s.cache.Cut }),
		},
		{
			"cache_invalidated_total", counter, "Lookups that found an answer older than the last change of the service or namespace it is about.",
			nil, count(func(s *sample) uint64 { return s.cache.Invalidated }),
		},
	}
}

// storeFamilies are what the cache takes in, lets go and holds.
func storeFamilies() []family {
	return []family{
		{
			"cache_outdated_total", counter, "Answers not stored because what they are about changed while upstreams were asked.",
			nil, count(func(s *sample) uint64 { return s.cache.Outdated }),
		},
		{
			"cache_removed_total", counter, "Answers taken out: by node-cache cache flush, by a reload that keeps nothing of a route, " +
				"or by a newer answer that may not be kept.",
			nil, count(func(s *sample) uint64 { return s.cache.Removed }),
		},
		{
			"cache_insertions_total", counter, "Answers and failures stored.",
			nil, count(func(s *sample) uint64 { return s.cache.Insertions }),
		},
		{
			"cache_evictions_total", counter, "Entries that could still be used and had to make room.",
			nil, count(func(s *sample) uint64 { return s.cache.Evictions }),
		},
		{
			"cache_expirations_total", counter, "Entries past their time whose room was taken.",
			nil, count(func(s *sample) uint64 { return s.cache.Expirations }),
		},
		{
			"cache_rejected_total", counter, "Answers too large to be stored.",
			nil, count(func(s *sample) uint64 { return s.cache.Rejected }),
		},
		{
			"cache_entries", gauge, "Entries held.",
			nil, level(func(s *sample) int64 { return s.cache.Entries }),
		},
		{
			"cache_bytes", gauge, "What the entries take, their own headers included.",
			nil, level(func(s *sample) int64 { return s.cache.Bytes }),
		},
		{
			"cache_fixed_bytes", gauge, "What the cache takes however many entries it holds: its index and its memory of evicted entries.",
			nil, level(func(s *sample) int64 { return s.cache.Fixed }),
		},
		{
			"cache_capacity_bytes", gauge, "The budget for entries and fixed bytes together.",
			nil, level(func(s *sample) int64 { return s.cache.Capacity }),
		},
	}
}

func listenFamilies() []family {
	return []family{
		{
			"foreign_sockets", gauge, "Sockets of other processes that are bound to the agent's addresses and port. /status names the processes.",
			nil, level(func(s *sample) int { return s.foreign }),
		},
	}
}

func udpFamilies() []family {
	return []family{
		{
			"udp_received_total", counter, "Datagrams received.",
			nil, udp(func(u *server.UDPStats) uint64 { return u.Received }),
		},
		{
			"udp_sent_total", counter, "Replies handed to the kernel.",
			nil, udp(func(u *server.UDPStats) uint64 { return u.Sent }),
		},
		{
			"udp_unsent_total", counter, "Replies that the kernel did not take.",
			nil, udp(func(u *server.UDPStats) uint64 { return u.Unsent }),
		},
		{
			"udp_oversized_total", counter, "Datagrams too long to be a query, dropped.",
			nil, udp(func(u *server.UDPStats) uint64 { return u.Oversize }),
		},
	}
}

func tcpFamilies() []family {
	limits := []string{"sessions", "per_client"}
	ends := []string{"idle", "shed", "slow", "short_frame", "write_timeout", "overflow", "memory", "drain"}
	return []family{
		{"tcp_sessions", gauge, "Sessions open.", nil, readSessions},
		{
			"tcp_sessions_accepted_total", counter, "Sessions admitted.",
			nil, tcp(func(t *server.TCPStats) uint64 { return t.Accepted }),
		},
		{
			"tcp_sessions_refused_total", counter, "Connections closed at once: at limits.tcpSessions with no session of a client that has more, or at limits.tcpPerClient.",
			[]label{{"reason", limits}},
			tcpBy(
				limits,
				func(t *server.TCPStats) uint64 { return t.RefusedSessions },
				func(t *server.TCPStats) uint64 { return t.RefusedPerClient },
			),
		},
		{
			"tcp_sessions_closed_total", counter, "Sessions ended from this side: idle for long, in the place of a new one at limits.tcpSessions, a frame not finished in time, " +
				"a frame too short for a header, answers not taken in time, too many answers unread, too much held for all clients together, not done when the agent stopped.",
			[]label{{"reason", ends}},
			tcpBy(
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
			"tcp_accept_errors_total", counter, "Connections that the kernel could not hand over, as with no file descriptor left.",
			nil, tcp(func(t *server.TCPStats) uint64 { return t.AcceptErrors }),
		},
		{
			"tcp_received_total", counter, "Whole frames received.",
			nil, tcp(func(t *server.TCPStats) uint64 { return t.Queries }),
		},
		{
			"tcp_oversized_total", counter, "Replies too long for a frame, not sent.",
			nil, tcp(func(t *server.TCPStats) uint64 { return t.Oversized }),
		},
		{
			"tcp_stalls_total", counter, "Times that a session was read no further because too many of its misses were under way.",
			nil, tcp(func(t *server.TCPStats) uint64 { return t.Stalls }),
		},
	}
}

func configFamilies() []family {
	results := []string{"success", "failure"}
	return []family{
		{
			"config_generation", gauge, "Number of the configuration in use, 1 at the start.",
			nil, level(func(s *sample) uint64 { return s.config.Generation }),
		},
		{
			"config_last_reload_successful", gauge, "1 if the last configuration that was read is the one in use, else 0.",
			nil, readLastOK,
		},
		{
			"config_reloads_total", counter, "Configurations put to work, the one at the start included, or refused.",
			[]label{{"result", results}},
			func(s *sample, out *sink) {
				out.count(s.config.Succeeded, results[0])
				out.count(s.config.Failed, results[1])
			},
		},
		{
			"config_last_reload_success_timestamp_seconds", gauge, "When a configuration was last put to work, in Unix time.",
			nil, readLastSuccess,
		},
	}
}

func adminFamilies() []family {
	return []family{
		{
			"admin_connections_refused_total", counter, "HTTP connections closed because too many were open: as a rule not the new one, but one that nothing is being done for.",
			nil, count(func(s *sample) uint64 { return s.admin.Refused }),
		},
		{
			"admin_requests_refused_total", counter, "HTTP requests that found too many pages on their way: one that was taken slowly was cut short for them, or they were answered 503.",
			nil, count(func(s *sample) uint64 { return s.admin.Busy }),
		},
	}
}

func processFamilies() []family {
	return []family{
		{
			"panics_total", counter, "Defects that cut short the handling of one query, session, exchange, object, file, configuration, snapshot or request. The log has a stack for each.",
			[]label{{"where", []string{"resolve", "udp", "tcp", "upstream", "watch", "intercept", "probe", "source", "config", "static", "handover", "snapshot", "admin"}}},
			readPanics,
		},
		{
			"build_info", gauge, "Always 1. The labels say what runs.",
			[]label{{name: "version"}, {name: "commit"}, {name: "goversion"}},
			readBuild,
		},
	}
}
