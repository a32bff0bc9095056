// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/netif"
)

// A Node holds the stats of the agent's link and interception. A nil part is not managed and has no series.
type Node struct {
	Link      *netif.Stats
	Intercept *intercept.Stats
	Mode      string // of Intercept, as configured
}

func linkFamilies() []family {
	return []family{
		{
			"interface_info", gauge, "Always 1. The label shows the link of the listen addresses: a dummy link, a bridge without ports, or the loopback link. " +
				"Absent until the link is set up.",
			[]label{{name: "kind"}},
			func(s *sample, out *sink) {
				if l := s.node.Link; l != nil && l.Kind != "" {
					out.put(1, l.Kind)
				}
			},
		},
		{
			"interface_addresses", gauge, "Listen addresses present on the link, missing from it, or present on another link as well.",
			[]label{{"state", []string{"held", "missing", "elsewhere"}}},
			func(s *sample, out *sink) {
				if l := s.node.Link; l != nil {
					out.put(float64(len(l.Held)), "held")
					out.put(float64(len(l.Missing)), "missing")
					out.put(float64(len(l.Duplicates)), "elsewhere")
				}
			},
		},
		{
			"interface_repairs_total", counter, "Repairs of the link or its addresses.",
			nil, readLink(func(l *netif.Stats) float64 { return float64(l.Repairs) }),
		},
		{
			"interface_right", gauge, "1 if link and addresses were correct at the last check, else 0. /status shows the reason.",
			nil, readLink(func(l *netif.Stats) float64 { return boolValue(l.LastError == "") }),
		},
		{
			"interface_contested", gauge, "1 while another program undoes the repairs, which are made less often then, else 0.",
			nil, readLink(func(l *netif.Stats) float64 { return boolValue(l.Contested) }),
		},
		{
			"interface_stood_down", gauge, "1 once a newer agent owns the link and this one no longer changes it, else 0.",
			nil, readLink(func(l *netif.Stats) float64 { return boolValue(l.StoodDown) }),
		},
	}
}

func leaseFamilies() []family {
	return []family{
		{
			"intercept_info", gauge, "Always 1. The labels show which queries the rules redirect, and the backend of the rules.",
			[]label{{name: "mode"}, {name: "backend"}},
			func(s *sample, out *sink) {
				if i := s.node.Intercept; i != nil {
					out.put(1, s.node.Mode, i.Backend)
				}
			},
		},
		{
			"intercept_lease_held", gauge, "1 while the agent holds the lease on all its addresses of the IP family, else 0: their queries go to the fallback. " +
				"Absent for a family without an address.",
			[]label{{"family", ipFamilies()}},
			readHeld,
		},
		{
			"intercept_lease_lost_seconds", gauge, "Time since the agent last held the lease on all its addresses, or since its start; 0 while it holds them.",
			nil, readIntercept(func(i *intercept.Stats) float64 { return i.NotHeldFor.Seconds() }),
		},
		{
			"intercept_lease_renewals_total", counter, "Lease renewals after a successful self-query, of all addresses.",
			nil, readIntercept(func(i *intercept.Stats) float64 { return float64(i.Renewals) }),
		},
		{
			"intercept_lease_failures_total", counter, "Failed lease renewals: the self-query timed out, was refused, was answered by another server, " +
				"could not be sent, or failed otherwise; a reader hangs; the answer came too late; the kernel refused the renewal.",
			[]label{{"reason", leaseCauses()}},
			readLeaseFailures,
		},
		{
			"intercept_released", gauge, "1 once the agent has released its leases because it stops, else 0.",
			nil, readIntercept(func(i *intercept.Stats) float64 { return boolValue(i.Released) }),
		},
		{
			"intercept_stood_down", gauge, "1 once a newer agent owns the rules and this one no longer changes them, else 0.",
			nil, readIntercept(func(i *intercept.Stats) float64 { return boolValue(i.StoodDown) }),
		},
	}
}

func ruleFamilies() []family {
	return []family{
		{
			"intercept_rules_right", gauge, "1 if the rules were correct at the last check, else 0. /status shows the reason.",
			nil, readIntercept(func(i *intercept.Stats) float64 { return boolValue(i.LastError == "") }),
		},
		{
			"intercept_rule_checks_total", counter, "Successful checks of the rules.",
			nil, readIntercept(func(i *intercept.Stats) float64 { return float64(i.Applies) }),
		},
		{
			"intercept_rule_repairs_total", counter, "Checks that changed the rules: at the start, for another fallback, or because another program had changed them.",
			nil, readIntercept(func(i *intercept.Stats) float64 { return float64(i.Changes) }),
		},
		{
			"intercept_rule_failures_total", counter, "Failed checks of the rules, for example while another program holds their lock.",
			nil, readIntercept(func(i *intercept.Stats) float64 { return float64(i.ApplyFailures) }),
		},
		{
			"intercept_watch_failures_total", counter, "Restarts of the rules' watch after it failed.",
			nil, readIntercept(func(i *intercept.Stats) float64 { return float64(i.WatchFailures) }),
		},
		{
			"intercept_fallback_targets", gauge, "Fallback servers while no lease is held: used, and known but unused because there are enough. " +
				"Both are 0 in transparent mode, where queries go to their original destination.",
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

// leaseCauses returns the reasons of failed renewals.
func leaseCauses() []string {
	list := make([]string, intercept.NumCauses)
	for i := range list {
		list[i] = intercept.Cause(i).String()
	}
	return list
}

// readLink reads the only series of a link family.
func readLink(of func(*netif.Stats) float64) func(*sample, *sink) {
	return func(s *sample, out *sink) {
		if s.node.Link != nil {
			out.put(of(s.node.Link))
		}
	}
}

// readIntercept reads the only series of an interception family.
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
			out.put(boolValue(!lost[family]), name)
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
