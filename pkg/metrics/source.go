// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"

	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/source"
)

// sourceFamilies are of where the configuration comes from. They stand among those of
// the configuration.
func sourceFamilies() []family {
	results := []string{"success", "failure"}
	events := []string{"written", "failed", "dropped"}
	return []family{
		{
			"config_source_info", gauge, "Always 1. The labels say where the configuration comes from (none, file or configmap), and whether the folder of a kube-dns ConfigMap is laid over it.",
			[]label{{name: "kind"}, {name: "kube_dns"}},
			func(s *sample, out *sink) {
				out.put(1, s.source.Kind, strconv.FormatBool(s.source.KubeDNS))
			},
		},
		{
			"config_source_reachable", gauge, "1 if the source could be read when that was last tried, else 0. /status has the reason.",
			nil, readSource(func(c *source.Stats, out *sink) { out.put(truth(c.Reachable)) }),
		},
		{
			"config_source_requests_total", counter, "Requests sent to the API server for the configuration.",
			nil, readSource(func(c *source.Stats, out *sink) { out.count(c.Requests) }),
		},
		{
			"config_last_good_in_use", gauge, "1 if the configuration in use is the last good one of an earlier start, because there was no good one at this start; else 0.",
			nil, readSource(func(c *source.Stats, out *sink) { out.put(truth(c.LastGood)) }),
		},
		{
			"config_last_good_saves_total", counter, "Configurations kept for the next start, and attempts that failed.",
			[]label{{"result", results}},
			readSource(func(c *source.Stats, out *sink) {
				out.count(c.Saves, results[0])
				out.count(c.SaveFailures, results[1])
			}),
		},
		{
			"config_events_total", counter, "Events about configurations: those that the API server took, those that it did not, and those that a newer one came before.",
			[]label{{"result", events}},
			readSource(func(c *source.Stats, out *sink) {
				out.count(c.EventsWritten, events[0])
				out.count(c.EventsFailed, events[1])
				out.count(c.EventsDropped, events[2])
			}),
		},
	}
}

// readSource reads a family about the configuration's source.
func readSource(read func(*source.Stats, *sink)) func(*sample, *sink) {
	return func(s *sample, out *sink) { read(&s.source, out) }
}

func handoverFamilies() []family {
	outcomes := []string{handover.OutcomeNone, handover.OutcomeTaken, handover.OutcomeOrphaned, handover.OutcomeRefused}
	reasons := []string{"busy", "mismatch", "abandoned"}
	return []family{
		{
			"handover_listening", gauge, "1 while a successor can ask for the sockets, else 0. Absent without handover.socket, like all of these.",
			nil, readHandover(func(h *handover.Stats, out *sink) { out.put(truth(h.Listening)) }),
		},
		{
			"handover_taken", gauge, "1 for what became of it at the start, else 0: there was no agent to take over from, its sockets were taken, it ended before it was told so, or it did not give them. /status has the reason.",
			[]label{{"outcome", outcomes}},
			readHandover(func(h *handover.Stats, out *sink) {
				is := h.Taken
				if is == "" {
					is = handover.OutcomeNone
				}
				for _, outcome := range outcomes {
					out.put(truth(outcome == is), outcome)
				}
			}),
		},
		{
			"handover_sockets", gauge, "Sockets that were taken over at the start.",
			nil, readHandover(func(h *handover.Stats, out *sink) { out.put(float64(h.Sockets)) }),
		},
		{
			"handover_wait_seconds", gauge, "Time from having them to serving by them, in which queries waited.",
			nil, readHandover(func(h *handover.Stats, out *sink) { out.put(h.Waited.Seconds()) }),
		},
		{
			"handover_given", gauge, "1 once this agent has handed over and serves no more, else 0.",
			nil, readHandover(func(h *handover.Stats, out *sink) { out.put(truth(h.Given)) }),
		},
		{
			"handover_requests_total", counter, "Agents that asked for the sockets.",
			nil, readHandover(func(h *handover.Stats, out *sink) { out.count(h.Asked) }),
		},
		{
			"handover_failures_total", counter, "Those of them that did not take over: told to wait for another one, of another protocol, or ended with the sockets in hand, which were taken back.",
			[]label{{"reason", reasons}},
			readHandover(func(h *handover.Stats, out *sink) {
				out.count(h.Busy, reasons[0])
				out.count(h.Mismatch, reasons[1])
				out.count(h.Abandoned, reasons[2])
			}),
		},
	}
}

// readHandover reads a family about the hand-over, which has no series without one.
func readHandover(read func(*handover.Stats, *sink)) func(*sample, *sink) {
	return func(s *sample, out *sink) {
		if s.handover != nil {
			read(s.handover, out)
		}
	}
}
