// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
	"github.com/nodecache/node-cache/pkg/zone"
)

// A Cluster holds the stats of the Kubernetes cluster's data. A nil part has no series.
type Cluster struct {
	Zone   *zone.Stats  // the names held here
	Source *watch.Stats // watches of objects and of the central resolver's endpoints
}

func zoneFamilies() []family {
	kinds := []label{{"kind", zone.Kinds()}}
	return []family{
		{
			"zone_objects", gauge, "Objects that the cluster zone holds.",
			kinds, readKinds(func(k *zone.KindStats) int64 { return k.Objects }),
		},
		{
			"zone_bytes", gauge, "Memory of their records, without the indexes.",
			kinds, readKinds(func(k *zone.KindStats) int64 { return k.Bytes }),
		},
		{
			"zone_refused_objects", gauge, "Objects over the memory limit of one namespace; only their names are held.",
			kinds, readKinds(func(k *zone.KindStats) int64 { return k.Refused }),
		},
		{
			"zone_index_bytes", gauge, "Memory of the zone's indexes, by name and by address.",
			nil, readZone(func(z *zone.Stats) float64 { return float64(z.Index) }),
		},
		{
			"zone_serial", gauge, "Serial of the zone's SOA record. Each change of an object increases it.",
			nil, readZone(func(z *zone.Stats) float64 { return float64(z.Serial) }),
		},
		{
			"zone_changes_told_total", counter, "Changes of services and namespaces passed to the cache, which then drops older answers.",
			nil, readZone(func(z *zone.Stats) float64 { return float64(z.Notified) }),
		},
		{
			"zone_restored", gauge, "1 while the objects of the kind come from a snapshot and are not synced yet, else 0.",
			kinds, readKinds(func(k *zone.KindStats) int64 { return int64(boolValue(k.Restored)) }),
		},
	}
}

func watchFamilies() []family {
	kinds := []label{{"kind", zone.Kinds()}}
	return []family{
		{
			"watch_synced", gauge, "1 once the objects of the kind are synced, else 0. It stays 1 when they become stale.",
			kinds, readWatch(func(k *watch.KindStats) (float64, bool) { return boolValue(k.Synced), true }),
		},
		{
			"watch_age_seconds", gauge, "Time since the objects of the kind were last confirmed fresh, by an event or a bookmark. Absent before the first sync; 0 for manifests.",
			kinds, readWatch(func(k *watch.KindStats) (float64, bool) { return k.Age.Seconds(), k.Synced }),
		},
		{
			"watch_events_total", counter, "Objects added, updated, or deleted, including those of lists.",
			kinds, readWatch(func(k *watch.KindStats) (float64, bool) { return float64(k.Events), true }),
		},
		{
			"watch_restarts_total", counter, "Watches started after the first.",
			kinds, readWatch(func(k *watch.KindStats) (float64, bool) { return float64(k.Restarts), true }),
		},
		{
			"watch_failures_total", counter, "Requests and watches that failed or were aborted. /status shows the last error.",
			kinds, readWatch(func(k *watch.KindStats) (float64, bool) { return float64(k.Failures), true }),
		},
		{
			"watch_requests_total", counter, "Requests sent to the API server, of every kind; 0 for manifests.",
			nil, func(s *sample, out *sink) {
				if w := s.cluster.Source; w != nil {
					out.count(w.Requests)
				}
			},
		},
		{
			"event_to_answer_seconds", histogram, "Time until answers reflect a change of an object: since the event's arrival, or since the change itself, " +
				"if the object has a timestamp; the latter includes clock skew.",
			[]label{{"from", []string{"arrival", "change"}}},
			readEventLatency,
		},
	}
}

func centralFamilies() []family {
	return []family{
		{
			"central_synced", gauge, "1 once the endpoints of the central resolver's service are synced, else 0. Absent unless a service is watched.",
			nil, func(s *sample, out *sink) {
				if w := s.cluster.Source; w != nil && s.serviceRoute() != nil {
					out.put(boolValue(w.ServiceWatch.Synced))
				}
			},
		},
		{
			"central_endpoints", gauge, "Servers of the central resolver's service: its ready endpoints, those of them in another topology zone (far), " +
				"and its cluster IPs (last_resort). Absent unless a service is watched.",
			[]label{{"state", []string{"ready", "far", "last_resort"}}},
			readEndpoints,
		},
	}
}

func readEndpoints(s *sample, out *sink) {
	r := s.serviceRoute()
	if r == nil {
		return
	}
	last := sum(r.Stats.Servers, func(u *upstream.ServerStats) uint64 { return uint64(boolValue(u.LastResort)) })
	out.put(float64(uint64(len(r.Stats.Servers))-last), "ready")
	out.count(sum(r.Stats.Servers, func(u *upstream.ServerStats) uint64 { return uint64(boolValue(u.Far && !u.LastResort)) }), "far")
	out.put(float64(last), "last_resort")
}

// serviceRoute returns the route whose upstreams are a service's endpoints, nil if there is none.
func (s *sample) serviceRoute() *Route {
	for i := range s.routes {
		if s.routes[i].Service != "" {
			return &s.routes[i]
		}
	}
	return nil
}

// readKinds reads a family with a series for each kind of the zone.
func readKinds(of func(*zone.KindStats) int64) func(*sample, *sink) {
	return func(s *sample, out *sink) {
		if s.cluster.Zone == nil {
			return
		}
		for kind, name := range zone.Kinds() {
			out.put(float64(of(&s.cluster.Zone.Kinds[kind])), name)
		}
	}
}

// readZone reads the only series of a zone family.
func readZone(of func(*zone.Stats) float64) func(*sample, *sink) {
	return func(s *sample, out *sink) {
		if s.cluster.Zone != nil {
			out.put(of(s.cluster.Zone))
		}
	}
}

// readWatch reads a family with a series for each watched kind that has a value.
func readWatch(of func(*watch.KindStats) (value float64, ok bool)) func(*sample, *sink) {
	return func(s *sample, out *sink) {
		if s.cluster.Source == nil {
			return
		}
		for i := range s.cluster.Source.Kinds {
			k := &s.cluster.Source.Kinds[i]
			if value, ok := of(k); ok {
				out.put(value, zone.Kinds()[k.Kind])
			}
		}
	}
}

// readEventLatency merges the histograms of all kinds.
func readEventLatency(s *sample, out *sink) {
	if s.cluster.Source == nil {
		return
	}
	var arrival, change watch.Histogram
	for i := range s.cluster.Source.Kinds {
		k := &s.cluster.Source.Kinds[i]
		for bucket := range arrival.Counts {
			arrival.Counts[bucket] += k.Arrival.Counts[bucket]
			change.Counts[bucket] += k.Change.Counts[bucket]
		}
		arrival.Sum += k.Arrival.Sum
		change.Sum += k.Change.Sum
	}
	bounds := watch.Buckets()
	out.durations(arrival.Counts[:], bounds[:], arrival.Sum, "arrival")
	out.durations(change.Counts[:], bounds[:], change.Sum, "change")
}

// boolValue returns 1 for true, else 0.
func boolValue(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
