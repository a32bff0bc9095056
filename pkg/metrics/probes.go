// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/nodecache/node-cache/pkg/probe"
)

// A Probe is a configured probe.
type Probe struct {
	Label string
	Stats probe.Stats
}

func probeFamilies() []family {
	each := label{name: "probe"}
	return []family{
		{
			"probe_up", gauge, "1 if the latest query of the probe got a good answer with a record, else 0. Absent before the first result, and without probes, like all probe metrics.",
			[]label{each},
			readUp,
		},
		{
			"probe_duration_seconds", histogram, "Time of the good answers.",
			[]label{each},
			readProbed,
		},
		{
			"probe_failures_total", counter, "Probe queries without a good answer, by reason. nodata: no record; nxdomain: no such name.",
			[]label{each, {"reason", probe.Reasons()}},
			readProbeFailures,
		},
	}
}

func readUp(s *sample, out *sink) {
	for i := range s.probes {
		if p := &s.probes[i]; p.Stats.Known {
			out.put(boolValue(p.Stats.Up), p.Label)
		}
	}
}

func readProbed(s *sample, out *sink) {
	bounds := probe.Buckets()
	for i := range s.probes {
		p := &s.probes[i]
		out.durations(p.Stats.Took[:], bounds[:], p.Stats.TookSum, p.Label)
	}
}

func readProbeFailures(s *sample, out *sink) {
	for i := range s.probes {
		p := &s.probes[i]
		for reason, name := range probe.Reasons() {
			out.count(p.Stats.Failures[reason], p.Label, name)
		}
	}
}
