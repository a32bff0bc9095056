// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/netif"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/watch"
)

func (t *table) addZone(z *zone.Stats) {
	t.section = "Cluster zone"
	kinds := label{"kind", zone.Kinds()}
	by(t, gauge, "zone_objects", "Objects that the cluster zone holds.", kinds,
		column(z.Kinds[:], func(k *zone.KindStats) int64 { return k.Objects })...)
	by(t, gauge, "zone_bytes", "Memory of their records.", kinds,
		column(z.Kinds[:], func(k *zone.KindStats) int64 { return k.Bytes })...)
	by(t, gauge, "zone_refused_objects", "Objects over the memory limit of their namespace.", kinds,
		column(z.Kinds[:], func(k *zone.KindStats) int64 { return k.Refused })...)
	t.value("zone_index_bytes", "Memory of the zone's indexes.", float64(z.Index))
	t.value("zone_serial", "Serial of the zone's SOA record.", float64(z.Serial))
	t.total("zone_changes_told_total", "Changes passed to the cache, which then drops older answers.", z.Notified)
	by(t, gauge, "zone_restored", "1 while the objects of the kind come from a snapshot.", kinds,
		column(z.Kinds[:], func(k *zone.KindStats) float64 { return boolValue(k.Restored) })...)
}

func (t *table) addWatch(w *watch.Stats) {
	t.section = "Cluster source"
	kinds := label{"kind", append(zone.Kinds(), "node-pod")}
	synced := t.add(gauge, "watch_synced", "1 once the objects of the kind are synced. It stays 1 when they become stale.", kinds)
	age := t.add(gauge, "watch_age_seconds", "Time since the objects of the kind were last confirmed fresh; 0 for manifests.", kinds)
	events := t.add(counter, "watch_events_total", "Objects added, updated, or deleted.", kinds)
	restarts := t.add(counter, "watch_restarts_total", "Watches started after the first.", kinds)
	failures := t.add(counter, "watch_failures_total", "Failed requests and watches.", kinds)
	invalid := t.add(gauge, "watch_invalid_objects", "Objects that are not served in full; /status names them.", kinds)
	var arrival, change watch.Histogram
	put := func(name string, k *watch.KindStats) {
		synced.put(boolValue(k.Synced), name)
		if k.Synced {
			age.put(k.Age.Seconds(), name)
		}
		events.put(float64(k.Events), name)
		restarts.put(float64(k.Restarts), name)
		failures.put(float64(k.Failures), name)
		invalid.put(float64(k.Invalid), name)
		merge(&arrival, &k.Arrival)
		merge(&change, &k.Change)
	}
	for i := range w.Kinds {
		put(kinds.values[w.Kinds[i].Kind], &w.Kinds[i])
	}
	if w.OwnPods != nil {
		put("node-pod", w.OwnPods)
	}
	t.total("watch_requests_total", "Requests sent to the API server.", w.Requests)
	latency := t.add(histogram, "event_to_answer_seconds", "Time until answers reflect a change of an object: since the event's arrival, or since the change (with clock skew).", label{"from", []string{"arrival", "change"}})
	bounds := watch.Buckets()
	latency.durations(arrival.Counts[:], bounds[:], arrival.Sum, "arrival")
	latency.durations(change.Counts[:], bounds[:], change.Sum, "change")
}

// merge adds one histogram to another.
func merge(to, from *watch.Histogram) {
	for bucket, n := range from.Counts {
		to.Counts[bucket] += n
	}
	to.Sum += from.Sum
}

func (t *table) addPods(namespaces map[string]*pods.Counts) {
	t.section = "Pods of the node"
	namespace, outcomes := label{name: "namespace"}, []string{"memory", "upstream", "failed", "shed"}
	queries := t.add(counter, "pod_queries_total", "Queries of pods of the first 50 namespaces that the agent saw, of (other) ones, and of clients with (no pod).", namespace, label{"outcome", outcomes})
	denied := t.add(counter, "pod_nxdomain_total", "NXDOMAIN answers to them.", namespace)
	searched := t.add(counter, "pod_search_nxdomain_total", "Those in the cluster domain: most are a name with a search suffix.", namespace)
	size := t.add(counter, "pod_reply_bytes_total", "Bytes of the replies to them.", namespace)
	wait := t.add(counter, "pod_wait_seconds_total", "Time until the replies; 0 for those from memory.", namespace)
	for name, c := range namespaces {
		for outcome, count := range []pods.Count{pods.FromMemory, pods.FromUpstream, pods.Failed, pods.Shed} {
			queries.put(float64(c[count]), name, outcomes[outcome])
		}
		denied.put(float64(c[pods.Denied]), name)
		searched.put(float64(c[pods.Searched]), name)
		size.put(float64(c[pods.Bytes]), name)
		wait.put((time.Duration(c[pods.Waited]) * time.Microsecond).Seconds(), name) //nolint:gosec // less than 292 years
	}
}

func (t *table) addLink(l *netif.Stats) {
	t.section = "Interface"
	info := t.add(gauge, "interface_info", "Kind of the link: dummy, bridge, or lo.", label{name: "kind"})
	if l.Kind != "" {
		info.put(1, string(l.Kind))
	}
	by(t, gauge, "interface_addresses", "Listen addresses on the link, missing, or also on another link.",
		label{"state", []string{"held", "missing", "elsewhere"}}, len(l.Held), len(l.Missing), len(l.Duplicates))
	t.total("interface_repairs_total", "Repairs of the link or its addresses.", l.Repairs)
	t.truth("interface_right", "1 if link and addresses were correct at the last check.", l.LastError == "")
	t.truth("interface_contested", "1 while another program undoes the repairs.", l.Contested)
	t.truth("interface_stood_down", "1 once a newer agent owns the link.", l.StoodDown)
}

func (t *table) addLease(i *intercept.Stats, mode string) {
	t.section = "Lease"
	t.add(gauge, "intercept_info", "Mode and backend of the rules.",
		label{name: "mode"}, label{name: "backend"}).put(1, mode, i.Backend)
	held := t.add(gauge, "intercept_lease_held", "1 while the agent holds the lease on all its addresses of the family. At 0 their queries go to the fallback.", label{"family", ipFamilies()})
	families := map[string]bool{} // by IP family: whether the leases on all its addresses are held
	for _, lease := range i.Leases {
		name := ipFamilies()[0]
		if lease.Address.Is6() {
			name = ipFamilies()[1]
		}
		all, known := families[name]
		families[name] = lease.Held && (all || !known)
	}
	for name, all := range families {
		held.put(boolValue(all), name)
	}
	t.value("intercept_lease_lost_seconds", "Time since the agent last held the lease on all its addresses; 0 while it does.", i.NotHeldFor.Seconds())
	t.total("intercept_lease_renewals_total", "Lease renewals.", i.Renewals)
	by(t, counter, "intercept_lease_failures_total", "Failed lease renewals. Runbook NodeCacheLeaseNotHeld explains the reasons.",
		label{"reason", names[intercept.Cause](intercept.NumCauses)}, i.RenewalFailures[:]...)
	t.truth("intercept_released", "1 once the agent has released its leases because it stops.", i.Released)
	t.truth("intercept_standby", "1 while the leases are released because the configuration has standby.", i.Standby)
	t.truth("intercept_stood_down", "1 once a newer agent owns the rules.", i.StoodDown)
}

func (t *table) addRules(i *intercept.Stats) {
	t.section = "Rules"
	t.truth("intercept_rules_right", "1 if the rules were correct at the last check.", i.LastError == "")
	t.total("intercept_rule_checks_total", "Successful checks of the rules.", i.Applies)
	t.total("intercept_rule_repairs_total", "Checks that changed the rules.", i.Changes)
	t.total("intercept_rule_failures_total", "Failed checks of the rules.", i.ApplyFailures)
	t.total("intercept_watch_failures_total", "Restarts of the rules' watch.", i.WatchFailures)
	by(t, gauge, "intercept_fallback_targets", "Fallback servers.",
		label{"state", []string{"used", "unused"}}, len(i.Fallback), i.FallbackOmitted)
	t.addFallback(i)
}

// addFallback adds the worst state of the fallback for each IP family.
func (t *table) addFallback(i *intercept.Stats) {
	order := []string{string(intercept.FallbackWorks), string(intercept.FallbackUnverified), string(intercept.FallbackBroken)} // the worst is last
	state := t.add(gauge, "intercept_fallback_state", "1 for the worst state of the fallback of the family's addresses; /status says why.",
		label{"family", ipFamilies()}, label{"state", order})
	worst := map[string]int{}
	for _, lease := range i.Leases {
		name := ipFamilies()[0]
		if lease.Address.Is6() {
			name = ipFamilies()[1]
		}
		index := slices.Index(order, string(lease.Fallback))
		if index < 0 { // it is unknown
			index = slices.Index(order, string(intercept.FallbackUnverified))
		}
		worst[name] = max(worst[name], index)
	}
	for name, index := range worst {
		for k, value := range order {
			state.put(boolValue(k == index), name, value)
		}
	}
}

func (t *table) addKernel(k *status.Kernel) {
	t.section = "Kernel"
	t.truth("kernel_enabled", "1 while the kernel answers hits; /status has the reason why not.", k.State == status.KernelOn)
	by(t, gauge, "kernel_interfaces", "Interfaces of pods that can have hits, and others; /status has the reasons.",
		label{"state", []string{"attached", "failed"}}, k.Interfaces, len(k.Failed))
	t.value("kernel_permit_name_seconds", "How long a pod gets the answer for a name after the agent has given it; 0: no limit.", k.PermitName)
	t.value("kernel_answers", "Answers in the kernel.", float64(k.Answers))
	t.value("kernel_capacity", "Answers that fit kernel.size.", float64(k.Capacity))
	t.total("kernel_filled_total", "Answers written to the kernel.", k.Filled)
	t.total("kernel_full_total", "Names not taken because all answers were in use.", k.Full)
}
