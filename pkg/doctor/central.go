// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodecache/node-cache/pkg/rules"
)

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
		parts = append(parts, fmt.Sprintf("%s with nameserver %s", count(e.Pods[n], "pod"), n))
	}
	what := strings.Join(parts, ", ")
	if slices.ContainsFunc(names, e.isQueried) {
		return singleLine(check, OK, what, "")
	}
	return singleLine(check, Warn, what+": none queries the agent", e.kubeletFix())
}
