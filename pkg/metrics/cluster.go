// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
	"github.com/nodecache/node-cache/pkg/zone"
)

// A Cluster is what this process knows of the Kubernetes cluster around it. A part
// that is nil is not there, and has no series.
type Cluster struct {
	Zone   *zone.Stats  // the names held here
	Source *watch.Stats // who tells of changes, and of the central resolver's endpoints
}

func zoneFamilies() []family {
	kinds := []label{{"kind", zone.Kinds()}}
	return []family{
		{
			"zone_objects", gauge, "Objects that the cluster zone holds.",
			kinds, readKinds(func(k *zone.KindStats) int64 { return k.Objects }),
		},
		{
			"zone_bytes", gauge, "What their records take, without the indexes.",
			kinds, readKinds(func(k *zone.KindStats) int64 { return k.Bytes }),
		},
		{
			"zone_refused_objects", gauge, "Of them, those that are more than one namespace may take, and are held by name alone.",
			kinds, readKinds(func(k *zone.KindStats) int64 { return k.Refused }),
		},
		{
			"zone_index_bytes", gauge, "What the zone's indexes take: by name and by address.",
			nil, readZone(func(z *zone.Stats) float64 { return float64(z.Index) }),
		},
		{
			"zone_serial", gauge, "Serial of the zone's SOA record. Each change of an object moves it.",
			nil, readZone(func(z *zone.Stats) float64 { return float64(z.Serial) }),
		},
		{
			"zone_changes_told_total", counter, "Changes of services and namespaces that the cache was told of, so that nothing older is given.",
			nil, readZone(func(z *zone.Stats) float64 { return float64(z.Notified) }),
		},
		{
			"zone_restored", gauge, "1 while the objects of the kind are those of a snapshot and nobody has told all of them since, else 0.",
			kinds, readKinds(func(k *zone.KindStats) int64 { return int64(truth(k.Restored)) }),
		},
	}
}

func watchFamilies() []family {
	kinds := []label{{"kind", zone.Kinds()}}
	return []family{
		{
			"watch_synced", gauge, "1 once every object of the kind was told, else 0. It stays 1 while the view grows old.",
			kinds, readWatch(func(k *watch.KindStats) (float64, bool) { return truth(k.Synced), true }),
		},
		{
			"watch_age_seconds", gauge, "Time since the view of the kind was last proven right, by an event or a bookmark. Absent before it is in sync; 0 for manifests.",
			kinds, readWatch(func(k *watch.KindStats) (float64, bool) { return k.Age.Seconds(), k.Synced }),
		},
		{
			"watch_events_total", counter, "Objects put or deleted, those of lists included.",
			kinds, readWatch(func(k *watch.KindStats) (float64, bool) { return float64(k.Events), true }),
		},
		{
			"watch_restarts_total", counter, "Watches begun after the first.",
			kinds, readWatch(func(k *watch.KindStats) (float64, bool) { return float64(k.Restarts), true }),
		},
		{
			"watch_failures_total", counter, "Requests and watches that failed or were given up. /status has the last reason.",
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
			"event_to_answer_seconds", histogram, "Time until a change of an object is in the answers: from the event's arrival here, or from the change, " +
				"where the object carries its time and as far as both clocks agree.",
			[]label{{"from", []string{"arrival", "change"}}},
			readLag,
		},
	}
}

func centralFamilies() []family {
	return []family{
		{
			"central_synced", gauge, "1 once the endpoints of the central resolver's service were told, else 0. Absent unless a service is followed.",
			nil, func(s *sample, out *sink) {
				if w := s.cluster.Source; w != nil && s.followed() != nil {
					out.put(truth(w.ServiceWatch.Synced))
				}
			},
		},
		{
			"central_endpoints", gauge, "Who can be asked for the central resolver's service: its ready endpoints, of which those in another topology zone " +
				"are counted as far too, and its own addresses, which are the last resort. Absent unless a service is followed.",
			[]label{{"state", []string{"ready", "far", "last_resort"}}},
			readEndpoints,
		},
	}
}

func readEndpoints(s *sample, out *sink) {
	r := s.followed()
	if r == nil {
		return
	}
	last := sum(r.Stats.Servers, func(u *upstream.ServerStats) uint64 { return uint64(truth(u.LastResort)) })
	out.put(float64(uint64(len(r.Stats.Servers))-last), "ready")
	out.count(sum(r.Stats.Servers, func(u *upstream.ServerStats) uint64 { return uint64(truth(u.Far && !u.LastResort)) }), "far")
	out.put(float64(last), "last_resort")
}

// followed is the route whose upstreams are a service's endpoints; nil: there is
// none.
func (s *sample) followed() *Route {
	for i := range s.routes {
		if s.routes[i].Service != "" {
			return &s.routes[i]
		}
	}
	return nil
}

// readKinds reads a family with a series for each kind that the zone holds.
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

// readZone reads the only series of a family about the zone.
func readZone(of func(*zone.Stats) float64) func(*sample, *sink) {
	return func(s *sample, out *sink) {
		if s.cluster.Zone != nil {
			out.put(of(s.cluster.Zone))
		}
	}
}

// readWatch reads a family with a series for each kind that is followed and has a
// value.
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

// readLag adds up the histograms of all kinds.
func readLag(s *sample, out *sink) {
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

// truth is 1 for true.
func truth(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
