// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"math"
	"runtime"
	"strconv"

	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/configsource"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/healthcheck"
	"github.com/nodecache/node-cache/pkg/names/blocklist"
	"github.com/nodecache/node-cache/pkg/names/etcd"
	"github.com/nodecache/node-cache/pkg/names/localdata"
	"github.com/nodecache/node-cache/pkg/names/push"
	"github.com/nodecache/node-cache/pkg/refresh"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/snapshot"
)

func protos() []string { return []string{"udp", "tcp"} }

func ipFamilies() []string { return []string{"ipv4", "ipv6"} }

func results() label { return label{"result", []string{"success", "failure"}} }

// addAll adds all families, in the order of docs/metrics.md.
func (t *table) addAll(s *Sample, upstreams []upstreamSeries) {
	t.section = "Readiness"
	t.truth("ready", "1 while /readyz returns 200.", s.NotReady == nil)
	t.addQueries(&s.Resolve)
	t.addMisses(&s.Resolve)
	t.addCache(s)
	if s.Keep != nil {
		t.addKeep(s.Keep)
	}
	if s.Static != nil {
		t.addStatic(s.Static)
	}
	if s.Block != nil {
		t.addBlock(s.Block)
	}
	if s.Etcd != nil {
		t.addEtcd(s.Etcd)
	}
	if s.Snapshot != nil {
		t.addSnapshot(s.Snapshot)
	}
	t.addMemory(&s.Memory)
	t.addUpstreams(upstreams)
	if s.Zone != nil {
		t.addZone(s.Zone)
	}
	if s.Watch != nil {
		t.addWatch(s.Watch)
		t.addCentral(s.Watch.ServiceWatch.Synced, s.Routes)
	} else if s.Discovery != nil {
		t.addCentral(s.Discovery.Synced, s.Routes)
	}
	if s.Subscribe != nil {
		t.addSubscribe(s.Subscribe)
	}
	if s.Link != nil {
		t.addLink(s.Link)
	}
	if s.Intercept != nil {
		t.addLease(s.Intercept, s.Mode)
		t.addRules(s.Intercept)
	}
	if s.Kernel != nil {
		t.addKernel(s.Kernel)
	}
	if s.Pods != nil {
		t.addPods(s.Pods)
	}
	if s.Notify != nil {
		t.section = "Secondary servers"
		by(t, counter, "notify_total", "NOTIFY messages to secondary servers.", label{"result", []string{"answered", "failed"}}, s.Notify.Answered, s.Notify.Failed)
	}
	if s.Push != nil {
		addPush(t, s.Push)
	}
	if s.Dnstap != nil {
		t.section = "dnstap"
		t.total("dnstap_sent_total", "Messages written to the collector.", s.Dnstap.Sent)
		t.total("dnstap_dropped_total", "Messages dropped because the collector was away or too slow.", s.Dnstap.Dropped)
	}
	t.addProbes(s.Probes)
	t.addServers(s)
	t.addConfig(&s.Config)
	t.addSource(&s.Source)
	if s.Handover != nil {
		t.addHandover(s.Handover)
	}
	t.section = "Problems"
	problems := t.add(gauge, "problems", "Problems that last, as in /status. A reason without one has no series.", label{name: "reason"})
	for reason, n := range s.Problems {
		problems.put(float64(n), string(reason))
	}
	t.section = "Admin server"
	t.total("admin_connections_refused_total", "HTTP connections closed because too many were open.", s.Admin.Refused)
	t.total("admin_requests_refused_total", "HTTP requests over the limit of concurrent pages: answered 503 or cut off.", s.Admin.Busy)
	if r := s.Reviews; r != nil {
		by(t, counter, "admin_reviews_total", "Checks of tokens by the API server, for admin.tls. denied: no permission for the page; failed: it did not answer; limited: too many tokens, so it was not asked.",
			label{"outcome", []string{"allowed", "denied", "invalid", "failed", "limited"}}, r.Allowed, r.Denied, r.Unauthenticated, r.Failed, r.Limited)
	}
	t.section = "Process"
	t.addPanics(s)
	t.add(gauge, "build_info", "The version.", label{name: "version"}, label{name: "commit"}, label{name: "goversion"}).
		put(1, s.Version, s.Commit, runtime.Version())
	t.add(gauge, "node_info", "The names of the node and of the cluster (admin.clusterName).", label{name: "node_name"}, label{name: "cluster_name"}).
		put(1, s.Node, s.Cluster)
}

func (t *table) addQueries(r *resolve.Stats) {
	t.section = "Queries"
	types := resolve.TypeClasses()
	f := t.add(counter, "queries_total", "Valid queries.",
		label{"proto", protos()}, label{"family", ipFamilies()}, label{"type", types})
	for proto, families := range r.Queries {
		for family, counts := range families {
			for class, n := range counts {
				f.put(float64(n), protos()[proto], ipFamilies()[family], types[class])
			}
		}
	}
	sources, rcodes := resolve.Sources(), resolve.Rcodes()
	f = t.add(counter, "responses_total", "Responses, by source and response code.", label{"source", sources}, label{"rcode", rcodes})
	for source, counts := range r.Responses {
		for rcode, n := range counts {
			f.put(float64(n), sources[source], rcodes[rcode])
		}
	}
	bounds := resolve.Buckets()
	h := t.add(histogram, "request_duration_seconds", "Time from a query's arrival to its response. kernel counts as 0, in other.",
		label{"source", resolve.TimedSources()})
	for i, source := range resolve.TimedSources() {
		d := &r.Durations[i]
		h.durations(d.Replies[:], bounds[:], d.Total, source)
	}
	t.total("dropped_total", "Packets dropped without a response: shorter than a DNS header, or responses themselves.", r.Dropped)
	t.total("malformed_total", "Packets answered FORMERR.", r.Malformed)
	t.total("rewritten_total", "Queries whose name a rewrite rule changed.", r.Rewritten)
	t.total("dns64_made_total", "Responses with IPv6 addresses synthesized from IPv4 addresses.", r.Synthesized)
	t.total("zone_short_total", "Answers of the cluster zone cut at a limit.", r.ZoneShort)
	by(t, counter, "zone_transfers_total", "Completed zone transfers.", label{"kind", resolve.TransferKinds()}, r.Transfers[:]...)
}

func (t *table) addMisses(r *resolve.Stats) {
	t.section = "Misses"
	t.total("joined_total", "Queries that joined an identical in-flight query.", r.Joined)
	t.total("prefetches_total", "Background refreshes started before an answer expired.", r.Prefetches)
	t.total("failures_total", "Upstream queries without a good answer.", r.Failures)
	t.value("inflight", "In-flight upstream queries, refreshes included.", float64(r.Inflight))
	t.value("waiting", "Client queries that wait for an in-flight upstream query.", float64(r.Waiting))
	t.value("clients", "Clients with waiting or in-flight queries. An address counts up to twice: with and without a cookie or TCP.", float64(r.Clients))
	by(t, counter, "shed_total", "Queries shed at a limit, also those that got a stale answer. client: its share; flood: the same, without a response.",
		label{"reason", resolve.Sheds()}, r.Shed[:]...)
}

func (t *table) addCache(s *Sample) {
	t.section = "Cache"
	c := &s.Cache
	t.total("cache_hits_total", "Lookups that found a fresh answer or a cached failure.", c.Hits)
	t.total("cache_misses_total", "Lookups that found no usable entry.", c.Misses)
	t.total("cache_expired_total", "Misses that found an expired entry.", c.Expired)
	t.total("cache_stale_total", "Stale answers served (RFC 8767).", c.Stale)
	t.total("cache_cuts_total", "NXDOMAIN answers because a parent does not exist (RFC 8020).", c.NXDomainCut)
	t.total("cache_invalidated_total", "Lookups that found an answer older than the last change of its object.", c.Invalidated)
	t.total("cache_outdated_total", "Answers not stored because their object changed during the query.", c.Outdated)
	t.total("cache_removed_total", "Answers removed by a flush, a reload, or a newer answer that is not cached.", c.Removed)
	t.total("cache_insertions_total", "Answers and failures stored.", c.Insertions)
	t.total("cache_evictions_total", "Unexpired entries evicted to make room.", c.Evictions)
	t.total("cache_expirations_total", "Expired entries replaced.", c.Expirations)
	t.total("cache_rejected_total", "Answers too large to be stored.", c.Rejected)
	t.value("cache_entries", "Entries held.", float64(c.Entries))
	t.value("cache_bytes", "Memory of the entries, headers included.", float64(c.Bytes))
	t.value("cache_fixed_bytes", "Memory of the index and of the record of evicted entries.", float64(c.Fixed))
	t.value("cache_capacity_bytes", "Limit for entries and fixed bytes together (cache.size).", float64(c.Capacity))
}

func (t *table) addKeep(answers []refresh.Answer) {
	age := t.add(gauge, "cache_keep_age_seconds",
		"Time since upstream gave the answer to a name of cache.keep; +Inf: there is none that survives an outage. 0: the agent itself has the name.",
		label{name: "name"}, label{"type", []string{"A", "AAAA"}})
	for _, a := range answers {
		seconds := math.Inf(1)
		if a.Held {
			seconds = a.Age.Seconds()
		}
		age.put(seconds, a.Name, status.TypeName(a.Type))
	}
}

func (t *table) addStatic(st *localdata.Stats) {
	t.section = "Answers from the configuration"
	t.value("static_names", "Names in hosts.", float64(st.Names))
	t.value("static_addresses", "Addresses of those names.", float64(st.Addresses))
	t.value("static_templates", "Templates configured.", float64(st.Templates))
	t.total("static_template_failures_total", "Queries that a template failed to answer (SERVFAIL).", st.Failures)
	file := label{name: "file"}
	names := t.add(gauge, "static_file_names", "Names read from a hosts file.", file)
	skipped := t.add(gauge, "static_file_skipped_lines", "Invalid lines of a hosts file.", file)
	reads := t.add(counter, "static_file_reads_total", "Versions of a hosts file loaded.", file)
	readable := t.add(gauge, "static_file_readable", "1 if the last read succeeded. At 0 the previous content is served.", file)
	for i := range st.Files {
		f := &st.Files[i]
		names.put(float64(f.Names), f.Path)
		skipped.put(float64(f.Skipped), f.Path)
		reads.put(float64(f.Reads), f.Path)
		readable.put(boolValue(f.LastError == ""), f.Path)
	}
}

func (t *table) addBlock(st *blocklist.Stats) {
	t.section = "Block lists"
	t.value("block_names", "Names on the block lists.", float64(st.Names))
	t.value("block_bytes", "Memory of the block lists.", float64(st.Bytes))
	file := label{name: "file"}
	names := t.add(gauge, "block_file_names", "Names on a block list.", file)
	skipped := t.add(gauge, "block_file_skipped_lines", "Lines of a block list that are not used: invalid, or records that are not supported.", file)
	replies := t.add(counter, "block_file_replies_total", "Replies that a block list decided.", file)
	reads := t.add(counter, "block_file_reads_total", "Versions of a block list loaded.", file)
	age := t.add(gauge, "block_file_age_seconds", "Time since a block list was written.", file)
	readable := t.add(gauge, "block_file_readable", "1 if the last read succeeded. At 0 the previous content is used.", file)
	for i := range st.Files {
		f := &st.Files[i]
		names.put(float64(f.Names), f.Path)
		skipped.put(float64(f.Skipped+f.Unsupported), f.Path)
		replies.put(float64(f.Replies), f.Path)
		reads.put(float64(f.Reads), f.Path)
		age.put(f.Age, f.Path)
		readable.put(boolValue(f.LastError == ""), f.Path)
	}
}

func (t *table) addEtcd(e *etcd.Stats) {
	t.section = "Records of etcd"
	t.truth("etcd_up", "1 while the records follow those of etcd. At 0 the last ones are served.", e.Synced && e.LastError == "")
	t.truth("etcd_synced", "1 once the records were read. Before that, queries get SERVFAIL.", e.Synced)
	by(t, gauge, "etcd_records", "Records: served, with a useless key or value, or over the memory bound.",
		label{"state", []string{"valid", "invalid", "refused"}}, e.Records, e.Invalid, e.Refused)
	t.value("etcd_bytes", "Memory of the records.", float64(e.Bytes))
	t.value("etcd_revision", "Revision of etcd that the records have.", float64(e.Revision))
	t.total("etcd_reads_total", "Reads of all records.", e.Reads)
	t.total("etcd_failures_total", "Connections, reads and watches that failed.", e.Failures)
	t.total("etcd_query_failures_total", "Queries answered SERVFAIL: too many records, or endless aliases.", e.Failed)
}

func addPush(t *table, p *push.Stats) {
	t.section = "Push"
	t.value("push_sessions", "Sessions of DNS stateful operations.", float64(p.Sessions))
	t.value("push_subscriptions", "Subscriptions of these sessions.", float64(p.Subscriptions))
	t.value("push_names", "Distinct names of the subscriptions.", float64(p.Names))
	t.value("push_bytes", "Estimated memory of the subscriptions.", float64(p.Bytes))
	t.total("push_messages_total", "PUSH messages sent.", p.Pushes)
	t.total("push_names_total", "Names in PUSH messages sent.", p.Pushed)
	by(t, counter, "push_refused_total", "Subscriptions refused: the name is not of the zones alone, the session or the memory is full, or the request is malformed.",
		label{"reason", []string{"name", "count", "memory", "malformed"}}, p.Refused.Name, p.Refused.Count, p.Refused.Memory, p.Refused.Malformed)
	by(t, counter, "push_ended_total", "Sessions ended: the client violated the protocol, did not read for 5 s, or made room for another one.",
		label{"reason", []string{"protocol", "slow", "memory"}}, p.Ended.Protocol, p.Ended.Slow, p.Ended.Memory)
}

func (t *table) addSnapshot(k *snapshot.Stats) {
	t.section = "Snapshot"
	by(t, counter, "snapshot_saves_total", "Attempts to save.",
		results(), k.Saved, k.Failed)
	if f := t.add(gauge, "snapshot_last_save_timestamp_seconds", "Unix time of the last saved snapshot."); !k.LastSaved.IsZero() {
		f.put(unixSeconds(k.LastSaved))
	}
	t.value("snapshot_last_save_duration_seconds", "Duration of the last save.", k.Duration.Seconds())
	t.value("snapshot_bytes", "Size of the last saved snapshot.", float64(k.Bytes))
	t.state("snapshot_load", "1 for the outcome at the start.",
		label{"outcome", []string{snapshot.OutcomeNone, snapshot.OutcomeLoaded, snapshot.OutcomeRefused}}, cmp.Or(k.Loaded.Outcome, snapshot.OutcomeNone))
	by(t, gauge, "snapshot_restored", "Restored at the start.",
		label{"kind", []string{"answers", "objects"}}, k.Loaded.Entries, k.Loaded.Objects)
	t.value("snapshot_restored_age_seconds", "Age of the loaded snapshot at the start.", k.Loaded.Age.Seconds())
}

func (t *table) addMemory(m *status.Memory) {
	t.section = "Memory"
	if f := t.add(gauge, "memory_container_limit_bytes", "Memory limit of the container."); m.Cgroup > 0 {
		f.put(float64(m.Cgroup))
	}
	limit := t.add(gauge, "memory_go_limit_bytes", "Memory limit of the Go runtime (GOMEMLIMIT).")
	if m.GoLimit > 0 {
		limit.put(float64(m.GoLimit))
	}
	t.value("memory_go_bytes", "Memory used by the Go runtime, without the cache.", float64(m.GoUsed))
	t.value("memory_snapshot_bytes", "Memory used by snapshots on a tmpfs.", float64(m.Snapshot))
	t.value("inflight_limit", "Limit of in-flight queries: limits.inflight, or less if memory is short.", float64(m.Inflight))
	t.value("waiting_limit", "Limit of waiting queries, likewise.", float64(m.Waiting))
}

func (t *table) addProbes(probes []healthcheck.Stats) {
	t.section = "Probes"
	each, reason, bounds := label{name: "probe"}, label{"reason", healthcheck.Reasons()}, healthcheck.Buckets()
	up := t.add(gauge, "probe_up",
		"1 if the latest query of the probe got a good answer with a record.", each)
	took := t.add(histogram, "probe_duration_seconds", "Time of the good answers.", each)
	failures := t.add(counter, "probe_failures_total", "Probe queries without a good answer.", each, reason)
	for i := range probes {
		p := &probes[i]
		if p.Known {
			up.put(boolValue(p.Up), p.Label)
		}
		took.durations(p.Took[:], bounds[:], p.TookSum, p.Label)
		for r, name := range reason.values {
			failures.put(float64(p.Failures[r]), p.Label, name)
		}
	}
}

func (t *table) addServers(s *Sample) {
	t.section = "Listening"
	t.value("foreign_sockets", "Sockets of other processes at the agent's addresses and port.", float64(s.Foreign))
	t.section = "UDP"
	udp := func(of func(*server.UDPStats) uint64) uint64 { return sum(s.UDP, of) }
	t.total("udp_received_total", "Datagrams received.", udp(func(u *server.UDPStats) uint64 { return u.Received }))
	t.total("udp_sent_total", "Responses passed to the kernel.", udp(func(u *server.UDPStats) uint64 { return u.Sent }))
	t.total("udp_unsent_total", "Responses that the kernel did not accept.", udp(func(u *server.UDPStats) uint64 { return u.Unsent }))
	t.total("udp_oversized_total", "Datagrams too long to be a query, dropped.", udp(func(u *server.UDPStats) uint64 { return u.Oversize }))
	t.section = "TCP"
	tcp := func(of func(*server.TCPStats) uint64) uint64 { return sum(s.TCP, of) }
	t.value("tcp_sessions", "Sessions open.", float64(tcp(func(t *server.TCPStats) uint64 { return uint64(t.Open) })))
	t.total("tcp_sessions_accepted_total", "Sessions accepted.", tcp(func(t *server.TCPStats) uint64 { return t.Accepted }))
	by(t, counter, "tcp_sessions_refused_total",
		"Connections closed at once, at limits.tcpSessions or limits.tcpPerClient.",
		label{"reason", []string{"sessions", "per_client"}},
		tcp(func(t *server.TCPStats) uint64 { return t.RefusedSessions }),
		tcp(func(t *server.TCPStats) uint64 { return t.RefusedPerClient }))
	by(t, counter, "tcp_sessions_closed_total",
		"Sessions closed by the agent. shed: replaced at limits.tcpSessions; overflow: unread responses; drain: the agent stops.",
		label{"reason", []string{"idle", "shed", "slow", "handshake", "short_frame", "write_timeout", "overflow", "memory", "drain"}},
		tcp(func(t *server.TCPStats) uint64 { return t.IdleClosed }),
		tcp(func(t *server.TCPStats) uint64 { return t.ShedIdle }),
		tcp(func(t *server.TCPStats) uint64 { return t.SlowClosed }),
		tcp(func(t *server.TCPStats) uint64 { return t.Handshakes }),
		tcp(func(t *server.TCPStats) uint64 { return t.ShortFrames }),
		tcp(func(t *server.TCPStats) uint64 { return t.WriteTimeouts }),
		tcp(func(t *server.TCPStats) uint64 { return t.Overflows }),
		tcp(func(t *server.TCPStats) uint64 { return t.ShedMemory }),
		tcp(func(t *server.TCPStats) uint64 { return t.DrainCut }))
	t.total("tcp_accept_errors_total", "Failed accept calls.",
		tcp(func(t *server.TCPStats) uint64 { return t.AcceptErrors }))
	t.total("tcp_received_total", "Complete frames received.", tcp(func(t *server.TCPStats) uint64 { return t.Queries }))
	t.total("tcp_oversized_total", "Responses too long for a frame, not sent.", tcp(func(t *server.TCPStats) uint64 { return t.Oversized }))
	t.total("tcp_stalls_total", "Pauses in reading from a session with too many misses in flight.",
		tcp(func(t *server.TCPStats) uint64 { return t.Stalls }))
}

func (t *table) addConfig(c *Config) {
	t.section = "Configuration"
	t.value("config_generation", "Generation of the configuration in use, 1 at the start.", float64(c.Generation))
	t.truth("config_last_reload_successful", "1 if the configuration read last is in use.", c.LastOK)
	t.truth("config_restart_needed", "1 if changed keys need a restart; /status names them.", c.NeedRestart)
	by(t, counter, "config_reloads_total", "Configurations applied or refused.", results(), c.Succeeded, c.Failed)
	if f := t.add(gauge, "config_last_reload_success_timestamp_seconds", "Unix time when a configuration was last applied."); !c.LastSuccess.IsZero() {
		f.put(unixSeconds(c.LastSuccess))
	}
}

func (t *table) addSource(c *configsource.Status) {
	t.section = "Configuration source"
	t.add(gauge, "config_source_info",
		"The source (none, file, or configmap), and whether a kube-dns ConfigMap is merged in.",
		label{name: "kind"}, label{name: "kube_dns"}).put(1, c.Kind, strconv.FormatBool(c.KubeDNS != ""))
	t.truth("config_source_reachable", "1 if the last read of the source succeeded.", c.Reachable)
	t.total("config_source_requests_total", "Requests to the API server for the configuration.", c.Requests)
	t.truth("config_last_good_in_use",
		"1 while the last good configuration of an earlier start is in use.", c.LastGoodInUse)
	by(t, counter, "config_last_good_saves_total", "Attempts to save the last good configuration.", results(), c.Saves, c.SaveFailures)
	by(t, counter, "config_events_total", "Kubernetes events about configurations.",
		label{"result", []string{"written", "failed", "dropped"}}, c.EventsWritten, c.EventsFailed, c.EventsDropped)
}

func (t *table) addHandover(h *handover.Stats) {
	t.section = "Hand-over"
	t.truth("handover_listening", "1 while a successor can request the sockets.", h.Listening)
	t.state("handover_taken",
		"1 for the outcome at the start. none: no predecessor; orphaned: it ended meanwhile; refused: by it.",
		label{"outcome", []string{handover.OutcomeNone, handover.OutcomeTaken, handover.OutcomeOrphaned, handover.OutcomeRefused}},
		cmp.Or(h.Taken, handover.OutcomeNone))
	t.value("handover_sockets", "Sockets taken over at the start.", float64(h.Sockets))
	t.value("handover_wait_seconds", "Time from receiving the sockets to serving.", h.Waited.Seconds())
	t.truth("handover_given", "1 once this agent has handed over.", h.Given)
	t.total("handover_requests_total", "Agents that requested the sockets.", h.Asked)
	by(t, counter, "handover_failures_total",
		"Requests without a takeover. busy: another was first; mismatch: of protocol versions; abandoned: the agent ended.",
		label{"reason", []string{"busy", "mismatch", "abandoned"}}, h.Busy, h.Mismatch, h.Abandoned)
}

func (t *table) addPanics(s *Sample) {
	parts := []struct {
		where string
		n     uint64
	}{
		{"resolve", s.Resolve.Panics},
		{"udp", sum(s.UDP, func(u *server.UDPStats) uint64 { return u.Panics })},
		{"tcp", sum(s.TCP, func(t *server.TCPStats) uint64 { return t.Panics })},
		{"upstream", sum(s.Routes, func(r *Route) uint64 { return r.Stats.Panics })},
		{"watch", orZero(s.Watch).Panics},
		{"intercept", orZero(s.Intercept).Panics},
		{"probe", sum(s.Probes, func(p *healthcheck.Stats) uint64 { return p.Panics })},
		{"source", s.Source.Panics},
		{"config", s.Config.Panics},
		{"static", orZero(s.Static).Panics},
		{"block", orZero(s.Block).Panics},
		{"etcd", orZero(s.Etcd).Panics},
		{"handover", orZero(s.Handover).Panics},
		{"snapshot", orZero(s.Snapshot).Panics},
		{"admin", s.Admin.Panics},
		{"kernel", orZero(s.Kernel).Panics},
		{"push", orZero(s.Push).Panics},
	}
	where := label{name: "where"}
	counts := make([]uint64, len(parts))
	for i, p := range parts {
		where.values, counts[i] = append(where.values, p.where), p.n
	}
	by(t, counter, "panics_total", "Recovered panics. Each failed one unit of work, such as a query.", where, counts...)
}

// orZero returns p, or the zero value if p is nil.
func orZero[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	return p
}
