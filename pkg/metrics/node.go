// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/netif"
)

// A Node is what the agent does on its machine besides answering. A part that is
// nil is not managed, and has no series.
type Node struct {
	Link      *netif.Stats
	Intercept *intercept.Stats
	Mode      string // of Intercept, as in the configuration
}

func linkFamilies() []family {
	return []family{
		{
			"interface_info", gauge, "Always 1. The label says what carries the listen addresses: a dummy link, a bridge without ports or the loopback link. " +
				"Absent until something does.",
			[]label{{name: "kind"}},
			func(s *sample, out *sink) {
				if l := s.node.Link; l != nil && l.Kind != "" {
					out.put(1, l.Kind)
				}
			},
		},
		{
			"interface_addresses", gauge, "Listen addresses that the node has on the link, that it does not have there, and that another link has as well.",
			[]label{{"state", []string{"held", "missing", "elsewhere"}}},
			func(s *sample, out *sink) {
				if l := s.node.Link; l != nil {
					out.put(float64(len(l.Held)), "held")
					out.put(float64(len(l.Missing)), "missing")
					out.put(float64(len(l.Elsewhere)), "elsewhere")
				}
			},
		},
		{
			"interface_repairs_total", counter, "Times that the link or its addresses were not as they should be and were put right.",
			nil, readLink(func(l *netif.Stats) float64 { return float64(l.Repairs) }),
		},
		{
			"interface_right", gauge, "1 if link and addresses were as they should be when they were last looked at, else 0. /status has the reason.",
			nil, readLink(func(l *netif.Stats) float64 { return truth(l.LastError == "") }),
		},
		{
			"interface_contested", gauge, "1 while something undoes the repairs, which are made less often then, else 0.",
			nil, readLink(func(l *netif.Stats) float64 { return truth(l.Contested) }),
		},
		{
			"interface_stood_down", gauge, "1 once a newer agent has the link, which this one leaves alone then, else 0.",
			nil, readLink(func(l *netif.Stats) float64 { return truth(l.StoodDown) }),
		},
	}
}

func leaseFamilies() []family {
	return []family{
		{
			"intercept_info", gauge, "Always 1. The labels say which queries the rules hand to the agent, and what writes the rules.",
			[]label{{name: "mode"}, {name: "backend"}},
			func(s *sample, out *sink) {
				if i := s.node.Intercept; i != nil {
					out.put(1, s.node.Mode, i.Backend)
				}
			},
		},
		{
			"intercept_lease_held", gauge, "1 while the agent has the queries of all its addresses of the IP family, else 0: they go elsewhere. " +
				"Absent for a family without an address.",
			[]label{{"family", ipFamilies()}},
			readHeld,
		},
		{
			"intercept_lease_lost_seconds", gauge, "Time since the agent last had the queries of all its addresses, or since its start; 0 while it has them.",
			nil, readIntercept(func(i *intercept.Stats) float64 { return i.SinceHeld.Seconds() }),
		},
		{
			"intercept_lease_renewals_total", counter, "Times that the agent answered itself and the lease on an address was renewed.",
			nil, readIntercept(func(i *intercept.Stats) float64 { return float64(i.Renewals) }),
		},
		{
			"intercept_lease_failures_total", counter, "Times that a lease was not renewed: the agent's own query was not answered in time, refused, answered by somebody else, " +
				"could not be sent or failed otherwise; a reader of the agent's hangs; the proof came too late; the kernel did not take it.",
			[]label{{"reason", leaseCauses()}},
			readLeaseFailures,
		},
		{
			"intercept_released", gauge, "1 once the agent has given its leases up because it ends, else 0.",
			nil, readIntercept(func(i *intercept.Stats) float64 { return truth(i.Released) }),
		},
		{
			"intercept_stood_down", gauge, "1 once a newer agent has the rules, which this one leaves alone then, else 0.",
			nil, readIntercept(func(i *intercept.Stats) float64 { return truth(i.StoodDown) }),
		},
	}
}

func ruleFamilies() []family {
	return []family{
		{
			"intercept_rules_right", gauge, "1 if the rules were as they should be when they were last looked at, else 0. /status has the reason.",
			nil, readIntercept(func(i *intercept.Stats) float64 { return truth(i.LastError == "") }),
		},
		{
			"intercept_rule_checks_total", counter, "Looks at the rules after which they were as they should be.",
			nil, readIntercept(func(i *intercept.Stats) float64 { return float64(i.Applies) }),
		},
		{
			"intercept_rule_repairs_total", counter, "Those of the checks that had to change them: at the start, for another fallback, or because something else had changed them.",
			nil, readIntercept(func(i *intercept.Stats) float64 { return float64(i.Changes) }),
		},
		{
			"intercept_rule_failures_total", counter, "Looks at the rules that failed, as while another program holds their lock.",
			nil, readIntercept(func(i *intercept.Stats) float64 { return float64(i.ApplyFailures) }),
		},
		{
			"intercept_watch_failures_total", counter, "Times that the watch of the rules ended by itself and was begun again.",
			nil, readIntercept(func(i *intercept.Stats) float64 { return float64(i.WatchFailures) }),
		},
		{
			"intercept_fallback_targets", gauge, "Who is asked while the lease is not held: used, and known but not used because there are enough. " +
				"Both are 0 in transparent mode, where the queries go where they are addressed to.",
			[]label{{"state", []string{"used", "unused"}}},
			func(s *sample, out *sink) {
				if i := s.node.Intercept; i != nil {
					out.put(float64(len(i.Fallback)), "used")
					out.put(float64(i.FallbackOmitted), "unused")
				}
			},
		},
	}
}

// leaseCauses names what can keep a lease from being renewed.
func leaseCauses() []string {
	list := make([]string, intercept.NumCauses)
	for i := range list {
		list[i] = intercept.Cause(i).String()
	}
	return list
}

// readLink reads the only series of a family about the link.
func readLink(of func(*netif.Stats) float64) func(*sample, *sink) {
	return func(s *sample, out *sink) {
		if s.node.Link != nil {
			out.put(of(s.node.Link))
		}
	}
}

// readIntercept reads the only series of a family about the interception.
func readIntercept(of func(*intercept.Stats) float64) func(*sample, *sink) {
	return func(s *sample, out *sink) {
		if s.node.Intercept != nil {
			out.put(of(s.node.Intercept))
		}
	}
}

func readHeld(s *sample, out *sink) {
	if s.node.Intercept == nil {
		return
	}
	var known, lost [2]bool // IPv4, IPv6
	for key, held := range s.node.Intercept.Held {
		family := 0
		if key.Is6() {
			family = 1
		}
		known[family] = true
		lost[family] = lost[family] || !held
	}
	for family, name := range ipFamilies() {
		if known[family] {
			out.put(truth(!lost[family]), name)
		}
	}
}

func readLeaseFailures(s *sample, out *sink) {
	if s.node.Intercept == nil {
		return
	}
	reasons := leaseCauses()
	for cause, n := range s.node.Intercept.RenewalFailures {
		out.count(n, reasons[cause])
	}
}
