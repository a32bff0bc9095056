// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/rules"
)

// mergeTransports makes one line of the findings for UDP and TCP of each address, or two
// if they differ. It adds the response times.
func mergeTransports(all []Outcome, check func(Outcome) string, judge func(Outcome) Line) []Line {
	var lines []Line
	seen := map[netip.AddrPort]Line{}
	for _, o := range all {
		f := judge(o)
		how := network(o.TCP)
		if o.Answer != "" {
			how += " " + formatDuration(o.Took)
		}
		if before, ok := seen[o.To]; ok && before == f {
			last := &lines[len(lines)-1]
			last.Check, last.What = check(o), strings.TrimSuffix(last.What, ")")+", "+how+")"
			continue
		}
		seen[o.To] = f
		lines = append(lines, Line{Check: check(o) + " " + network(o.TCP), Verdict: f.Verdict, What: f.What + " (" + how + ")", Fix: f.Fix})
	}
	return lines
}

// ownSockets checks whether the agent's sockets answer, whatever the rules are.
func (e *checker) ownSockets() []Line {
	all := slices.DeleteFunc(slices.Clone(e.Node), func(o Outcome) bool { return !o.Own })
	return mergeTransports(all, func(o Outcome) string { return "socket " + o.To.Addr().String() }, func(o Outcome) Line {
		switch {
		case o.Token != "":
			return Line{Verdict: OK, What: "agent " + o.Token, Fix: ""}
		case o.Answer != "":
			return Line{Verdict: Fail, What: "another program answers there: " + o.Answer, Fix: "stop the program that `listener` names"}
		case o.Error == unix.EPERM.Error():
			return Line{Verdict: Skip, What: "not tested: " + o.Error, Fix: "run this command with the capability NET_ADMIN"}
		}
		return Line{Verdict: Fail, What: o.Error, Fix: "the agent hangs or does not run: see its log, and restart it"}
	})
}

// answersItself reports whether the agent's socket at a answered.
func (e *checker) answersItself(a netip.Addr, tcp bool) bool {
	return slices.ContainsFunc(e.Node, func(o Outcome) bool { return o.Own && o.Token != "" && o.TCP == tcp && o.To.Addr() == a })
}

// paths checks which server answers the clients.
func (e *checker) paths(all []Outcome, from string) []Line {
	asked := slices.DeleteFunc(slices.Clone(all), func(o Outcome) bool { return o.Own || o.Name != "" })
	lines := mergeTransports(asked, func(o Outcome) string { return o.To.Addr().String() }, func(o Outcome) Line { return e.path(o, all, from) })
	return append(lines, e.trackedConnections(all)...)
}

// isAgent reports whether the agent that owns the rules answered. A central resolver may be
// a node-cache too.
func (e *checker) isAgent(o Outcome) bool {
	owner := e.owner()
	return o.Token != "" && (owner == "" || o.Token == owner)
}

// path returns the finding for one of all outcomes.
func (e *checker) path(o Outcome, all []Outcome, from string) Line {
	_, _, leased := e.leased(o.To.Addr())
	owner := e.owner()
	switch {
	case !leased && e.Intercept && o.Answer != "" && !e.isAgent(o):
		return Line{
			Verdict: Warn, What: fmt.Sprintf("the central DNS answers, %s, as the agent has no lease", o.Answer),
			Fix: "pods have DNS, but not the agent's: see `lease` and the agent's log",
		}
	case o.Token != "" && !e.isAgent(o):
		return Line{
			Verdict: Warn, What: fmt.Sprintf("agent %s answers, and the rules are those of agent %s", o.Token, owner),
			Fix: "normal during an upgrade: if it stays so, stop the other agent",
		}
	case o.Token != "":
		return Line{Verdict: OK, What: "agent " + o.Token, Fix: ""}
	case o.Answer != "" && leased:
		return Line{
			Verdict: Fail, What: fmt.Sprintf("another server answers (%s), though the agent's lease is held", o.Answer),
			Fix: "another rule or program gets these packets first: see `data plane`, and `nft list ruleset` or `iptables-save`",
		}
	case o.Answer != "":
		return Line{Verdict: Fail, What: "another program answers: " + o.Answer, Fix: "stop the program that `listener` names"}
	}
	named := slices.ContainsFunc(all, func(n Outcome) bool { return n.To == o.To && n.Name != "" && n.Answer != "" })
	if named && e.Intercept && !leased {
		return Line{
			Verdict: Warn, What: "the central DNS answers names, as the agent has no lease",
			Fix: "pods have DNS, but not the agent's: see `lease` and the agent's log",
		}
	}
	if e.Rules.Mode == rules.Transparent && !leased && slices.ContainsFunc(e.Node, func(n Outcome) bool { return n.Probe == o.Probe && n.Answer != "" }) {
		return Line{
			Verdict: Warn, What: "no answer, though the node gets one: " + o.Error,
			Fix: "nothing, if real pods get answers: the data plane may not know the address of this test pod",
		}
	}
	return Line{Verdict: Fail, What: "no server answers: " + o.Error, Fix: e.unanswered(o, leased, from)}
}

// unanswered returns the fix for a query without an answer.
func (e *checker) unanswered(o Outcome, leased bool, from string) string {
	itself := e.answersItself(e.probeOf(o.To.Addr()), o.TCP)
	switch {
	case itself && (leased || !e.Intercept):
		return "something drops packets of " + from + ": see `dropped by`, or `nft list ruleset` and `iptables-save`"
	case leased:
		return "the agent hangs: its lease ends by itself, then the fallback answers"
	case o.Refused && e.Intercept:
		return "there is no socket and no fallback: start the agent"
	case o.Refused:
		return "there is no socket: start the agent"
	case !e.Intercept:
		return "see `listener`"
	}
	return "the lease is not held and no fallback answers either: see `Central DNS`"
}

func (e *checker) probeOf(key netip.Addr) netip.Addr {
	for _, k := range e.keys() {
		if k.Key == key {
			return k.Probe
		}
	}
	return key
}

// trackedConnections checks whether queries to the agent are tracked: an entry for each
// query fills the conntrack table and causes races.
func (e *checker) trackedConnections(all []Outcome) []Line {
	if !e.Intercept {
		return nil
	}
	const check = "conntrack"
	asked, tracked, unknown := 0, 0, ""
	for _, o := range all {
		if o.Own || !e.isAgent(o) {
			continue
		}
		asked++
		if o.TrackedErr != "" {
			unknown = o.TrackedErr
		}
		if o.Tracked {
			tracked++
		}
	}
	switch {
	case asked == 0:
		return singleLine(check, Skip, "the agent answered nothing", "")
	case unknown != "":
		return singleLine(check, Skip, "unknown: "+unknown, "run this command with the capability NET_ADMIN")
	case tracked == 0:
		return singleLine(check, OK, fmt.Sprintf("0 entries for %s to the agent", count(asked, "query", "queries")), "")
	case e.transparentTracked():
		return singleLine(check, Warn, fmt.Sprintf("%s for %s to the agent: iptables cannot rewrite without tracking", count(tracked, "entry", "entries"), count(asked, "query", "queries")),
			"use intercept.backend: nftables, or mode: link-local, if there are many queries")
	}
	return singleLine(check, Fail, fmt.Sprintf("%s for %s to the agent", count(tracked, "entry", "entries"), count(asked, "query", "queries")),
		"another rule tracks them first, or the agent's rules are incomplete: see its log")
}

// name checks whether a name of the cluster resolves.
func (e *checker) name(all []Outcome) []Line {
	var lines []Line
	for _, o := range all {
		if o.Own || o.Name == "" {
			continue
		}
		check := "name at " + o.To.Addr().String()
		name := strings.TrimSuffix(o.Name, ".")
		switch {
		case o.Answer == "NOERROR" && o.Records > 0:
			lines = append(lines, singleLine(check, OK, fmt.Sprintf("%s in %s", name, formatDuration(o.Took)), "")...)
		case o.Answer == "NOERROR", o.Answer == "NXDOMAIN":
			lines = append(lines, singleLine(check, Warn, fmt.Sprintf("%s has no address: %s", name, o.Answer),
				"compare clusterDomain with the cluster's, or give a name that exists with --name")...)
		case o.Answer != "":
			lines = append(lines, singleLine(check, Fail, fmt.Sprintf("%s: %s", name, o.Answer), "see upstreams and cluster on the agent's status page")...)
		default:
			lines = append(lines, singleLine(check, Fail, fmt.Sprintf("%s: %s", name, o.Error), "see the lines above")...)
		}
	}
	return lines
}

// pod says how all this looks from a pod.
func (e *checker) pod() []Line {
	if e.PodErr != nil {
		return singleLine("pod", Skip, e.PodErr.Error(), "")
	}
	return slices.Concat(e.paths(e.Pod, "a pod"), e.name(e.Pod), e.dropped())
}

// dropped names the rules that keep a pod from the agent.
func (e *checker) dropped() []Line {
	const check = "dropped by"
	if e.DropErr != nil {
		return singleLine(check, Skip, "unknown: "+e.DropErr.Error(), "")
	}
	var lines []Line
	for _, d := range e.Drops {
		what := d.Where + ": " + d.Rule
		if d.Policy {
			what = d.Where + ": its policy, because no rule accepts"
		}
		fix := fmt.Sprintf("accept packets to and from %s before that", e.spelt())
		if d.untracked() {
			what += ". It matches the agent's packets because they are untracked"
			fix += ", by address: rules on connection state do not match them"
		}
		lines = append(lines, singleLine(check, Fail, what, fix)...)
	}
	return lines
}

// untracked reports whether packets are dropped because they are untracked: by a rule for
// packets without a connection, or by a policy after rules for those with one.
func (d Drop) untracked() bool {
	if d.Policy {
		return true
	}
	rule := strings.ToLower(d.Rule)
	state := strings.Contains(rule, "ct state") || strings.Contains(rule, "--ctstate") || strings.Contains(rule, "--state")
	return state && (strings.Contains(rule, "untracked") || strings.Contains(rule, "invalid") || strings.Contains(rule, "!"))
}

// spelt formats the agent's addresses and port.
func (e *checker) spelt() string {
	return fmt.Sprintf("%s port %d", joinAddrs(e.Rules.Addresses, " and "), e.Rules.Port)
}

// centralDNS checks whether the servers answer that get the queries without the agent.
func (e *checker) centralDNS() []Line {
	const check = "fallback"
	switch {
	case !e.Intercept:
		return nil
	case e.Rules.Mode == rules.Transparent:
		return singleLine(check, OK, "the Service's data plane, while the lease is not held", "")
	case len(e.Backends) == 0:
		return singleLine(check, Skip, "no interception rules", "")
	case len(e.Fallback) == 0:
		return singleLine(check, Warn, "none: if the agent does not answer, no server does", "set cluster.central or intercept.fallback, unless this is intended")
	}
	var lines []Line
	good := map[bool]int{} // of each network
	for _, o := range e.Fallback {
		line := Line{Check: fmt.Sprintf("%s %s", o.To, network(o.TCP)), What: fmt.Sprintf("%s in %s", o.Answer, formatDuration(o.Took))}
		switch o.Answer {
		case "":
			line.Verdict, line.What, line.Fix = Warn, "no answer: "+o.Error, "check that it runs, and the network between it and this node"
		case "SERVFAIL", "REFUSED":
			line.Verdict, line.Fix = Warn, "it refuses this node: see its log"
			line.What = o.Answer
		default:
			good[o.TCP]++
		}
		lines = append(lines, line)
	}
	for i := range lines {
		if good[e.Fallback[i].TCP] == 0 {
			lines[i].Verdict = Fail
		}
	}
	return append(lines, e.missingFamilies()...)
}

// missingFamilies returns the addresses whose family has no fallback: no rule translates
// between families.
func (e *checker) missingFamilies() []Line {
	var lines []Line
	for _, a := range e.queriedAddresses() {
		if !slices.ContainsFunc(e.Fallback, func(o Outcome) bool { return o.To.Addr().Is4() == a.Is4() }) {
			lines = append(lines, singleLine("fallback", Warn, fmt.Sprintf("none of %s's family: if the agent does not answer there, no server does", a),
				"add a server of that family to intercept.fallback, or make the central DNS dual-stack")...)
		}
	}
	return lines
}

// queriedAddresses returns the addresses that pods should query.
func (e *checker) queriedAddresses() []netip.Addr {
	keys := e.keys()
	list := make([]netip.Addr, 0, len(keys))
	for _, k := range keys {
		list = append(list, k.Key)
	}
	return list
}

// isQueried reports whether a nameserver is one of the addresses that pods should query.
func (e *checker) isQueried(nameserver string) bool {
	a, err := netip.ParseAddr(nameserver)
	return err == nil && slices.Contains(e.queriedAddresses(), a)
}

// kubelet compares the nameservers of the kubelet with the mode.
func (e *checker) kubelet() []Line {
	const check = "kubelet"
	if !e.Intercept {
		return nil
	}
	k := e.Kubelet
	list := strings.Join(k.DNS, ", ")
	good := slices.IndexFunc(k.DNS, e.isQueried) >= 0
	switch {
	case k.Err != nil:
		return singleLine(check, Skip, "unknown: "+k.Err.Error(), "")
	case k.From == "":
		return singleLine(check, Skip, "not visible from here", "run this command on the node, or in a pod with hostPID: true")
	case len(k.DNS) == 0:
		return singleLine(check, Warn, "sets no nameserver for pods ("+k.From+")", "set clusterDNS: "+e.clusterDNS())
	case !good:
		return singleLine(check, Warn, fmt.Sprintf("sets nameserver %s, not %s (%s)", list, e.clusterDNS(), k.From), e.kubeletFix())
	}
	return singleLine(check, OK, fmt.Sprintf("sets nameserver %s (%s)", list, k.From), "")
}

func (e *checker) clusterDNS() string {
	return joinAddrs(e.queriedAddresses(), ", ")
}

func (e *checker) kubeletFix() string {
	if e.Rules.Mode == rules.Transparent {
		return "set intercept.services to the address that pods query"
	}
	return "set the kubelet's clusterDNS to " + e.clusterDNS() + " and restart pods, or use intercept.mode: transparent"
}

// pods counts the pods by nameserver.
func (e *checker) pods() []Line {
	const check = "pods"
	if !e.Intercept {
		return nil
	}
	if e.PodsErr != nil {
		return singleLine(check, Skip, e.PodsErr.Error(), "run this command on the node, or in a pod with hostPID: true")
	}
	if len(e.Pods) == 0 {
		return singleLine(check, Skip, "no pods visible", "run this command on the node, or in a pod with hostPID: true")
	}
	names := slices.SortedFunc(maps.Keys(e.Pods), func(a, b string) int {
		if d := e.Pods[b] - e.Pods[a]; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	parts := make([]string, 0, len(names))
	for _, n := range names {
		parts = append(parts, fmt.Sprintf("%s with nameserver %s", count(e.Pods[n], "pod", "pods"), n))
	}
	what := strings.Join(parts, ", ")
	if slices.ContainsFunc(names, e.isQueried) {
		return singleLine(check, OK, what, "")
	}
	return singleLine(check, Warn, what+": none queries the agent", e.kubeletFix())
}
