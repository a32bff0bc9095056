// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"

	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/source"
)

// sourceFamilies describe the configuration's source.
func sourceFamilies() []family {
	results := []string{"success", "failure"}
	events := []string{"written", "failed", "dropped"}
	return []family{
		{
			"config_source_info", gauge, "Always 1. The labels show where the configuration comes from (none, file, or configmap), and whether a kube-dns ConfigMap is merged into it.",
			[]label{{name: "kind"}, {name: "kube_dns"}},
			func(s *sample, out *sink) {
				out.put(1, s.source.Kind, strconv.FormatBool(s.source.KubeDNS))
			},
		},
		{
			"config_source_reachable", gauge, "1 if the last read of the source succeeded, else 0. /status shows the reason.",
			nil, readSource(func(c *source.Stats, out *sink) { out.put(boolValue(c.Reachable)) }),
		},
		{
			"config_source_requests_total", counter, "Requests sent to the API server for the configuration.",
			nil, readSource(func(c *source.Stats, out *sink) { out.count(c.Requests) }),
		},
		{
			"config_last_good_in_use", gauge, "1 if the last good configuration of an earlier start is in use, because this start found no valid one; else 0.",
			nil, readSource(func(c *source.Stats, out *sink) { out.put(boolValue(c.LastGood)) }),
		},
		{
			"config_last_good_saves_total", counter, "Last good configurations saved for the next start, and failed attempts.",
			[]label{{"result", results}},
			readSource(func(c *source.Stats, out *sink) {
				out.count(c.Saves, results[0])
				out.count(c.SaveFailures, results[1])
			}),
		},
		{
			"config_events_total", counter, "Kubernetes events about configurations: written, failed, and dropped for a newer one.",
			[]label{{"result", events}},
			readSource(func(c *source.Stats, out *sink) {
				out.count(c.EventsWritten, events[0])
				out.count(c.EventsFailed, events[1])
				out.count(c.EventsDropped, events[2])
			}),
		},
	}
}

// readSource reads a family of the configuration's source.
func readSource(read func(*source.Stats, *sink)) func(*sample, *sink) {
	return func(s *sample, out *sink) { read(&s.source, out) }
}

func handoverFamilies() []family {
	outcomes := []string{handover.OutcomeNone, handover.OutcomeTaken, handover.OutcomeOrphaned, handover.OutcomeRefused}
	reasons := []string{"busy", "mismatch", "abandoned"}
	return []family{
		{
			"handover_listening", gauge, "1 while a successor can request the sockets, else 0. Absent without handover.socket, like all handover metrics.",
			nil, readHandover(func(h *handover.Stats, out *sink) { out.put(boolValue(h.Listening)) }),
		},
		{
			"handover_taken", gauge, "1 for the outcome of the takeover at the start, else 0: no predecessor, sockets taken over, predecessor ended during the takeover, or predecessor refused. /status shows the reason.",
			[]label{{"outcome", outcomes}},
			readHandover(func(h *handover.Stats, out *sink) {
				is := h.Taken
				if is == "" {
					is = handover.OutcomeNone
				}
				for _, outcome := range outcomes {
					out.put(boolValue(outcome == is), outcome)
				}
			}),
		},
		{
			"handover_sockets", gauge, "Sockets taken over at the start.",
			nil, readHandover(func(h *handover.Stats, out *sink) { out.put(float64(h.Sockets)) }),
		},
		{
			"handover_wait_seconds", gauge, "Time from receiving the sockets to serving. Queries wait meanwhile.",
			nil, readHandover(func(h *handover.Stats, out *sink) { out.put(h.Waited.Seconds()) }),
		},
		{
			"handover_given", gauge, "1 once this agent has handed over and no longer serves, else 0.",
			nil, readHandover(func(h *handover.Stats, out *sink) { out.put(boolValue(h.Given)) }),
		},
		{
			"handover_requests_total", counter, "Agents that requested the sockets.",
			nil, readHandover(func(h *handover.Stats, out *sink) { out.count(h.Asked) }),
		},
		{
			"handover_failures_total", counter, "Requests without a takeover: another agent was first (busy), the protocol version differs (mismatch), or the agent ended with the sockets (abandoned).",
			[]label{{"reason", reasons}},
			readHandover(func(h *handover.Stats, out *sink) {
				out.count(h.Busy, reasons[0])
				out.count(h.Mismatch, reasons[1])
				out.count(h.Abandoned, reasons[2])
			}),
		},
	}
}

// readHandover reads a family of handover metrics. It has no series if handover is off.
func readHandover(read func(*handover.Stats, *sink)) func(*sample, *sink) {
	return func(s *sample, out *sink) {
		if s.handover != nil {
			read(s.handover, out)
		}
	}
}
