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

// central says whether those answer who get the queries while the agent does not.
func (e *examiner) central() []Line {
	const check = "fallback"
	switch {
	case !e.Intercept:
		return nil
	case e.Rules.Mode == rules.Transparent:
		return one(check, OK, "whoever serves the Service, while the lease is not held", "")
	case len(e.Held) == 0:
		return one(check, Skip, "no rules are there", "")
	case len(e.Fallback) == 0:
		return one(check, Warn, "none: while the agent does not answer, nobody does", "set cluster.central, or intercept.fallback, unless that is meant")
	}
	var lines []Line
	good := map[bool]int{} // of each network
	for _, o := range e.Fallback {
		line := Line{Check: fmt.Sprintf("%s %s", o.To, network(o.TCP)), What: fmt.Sprintf("%s in %s", o.Answer, shown(o.Took))}
		switch o.Answer {
		case "":
			line.Verdict, line.What, line.Fix = Warn, "no answer: "+o.Error, "see whether it runs, and what is between it and this node"
		case "SERVFAIL", "REFUSED":
			line.Verdict, line.Fix = Warn, "it does not serve this node: see its log"
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
	return append(lines, e.unserved()...)
}

// unserved are the addresses whose family has no fallback: no rule leads from one
// family to the other.
func (e *examiner) unserved() []Line {
	var lines []Line
	for _, a := range e.asked() {
		if !slices.ContainsFunc(e.Fallback, func(o Outcome) bool { return o.To.Addr().Is4() == a.Is4() }) {
			lines = append(lines, one("fallback", Warn, fmt.Sprintf("none of %s's family: while the agent does not answer there, nobody does", a),
				"name a server of that family in intercept.fallback, or have the central DNS serve both")...)
		}
	}
	return lines
}

// asked are the addresses that pods are to ask.
func (e *examiner) asked() []netip.Addr {
	keys := e.keys()
	list := make([]netip.Addr, 0, len(keys))
	for _, k := range keys {
		list = append(list, k.Key)
	}
	return list
}

// among says whether a nameserver is one of the addresses that pods are to ask.
func (e *examiner) among(nameserver string) bool {
	a, err := netip.ParseAddr(nameserver)
	return err == nil && slices.Contains(e.asked(), a)
}

// kubelet compares what the kubelet hands out with the mode.
func (e *examiner) kubelet() []Line {
	const check = "kubelet"
	if !e.Intercept {
		return nil
	}
	k := e.Kubelet
	list := strings.Join(k.DNS, ", ")
	good := slices.IndexFunc(k.DNS, e.among) >= 0
	switch {
	case k.Err != nil:
		return one(check, Skip, "not known: "+k.Err.Error(), "")
	case k.From == "":
		return one(check, Skip, "not to be seen from here", "run this command on the node, or in a pod with hostPID: true")
	case len(k.DNS) == 0:
		return one(check, Warn, "hands out no nameserver of the cluster ("+k.From+")", "set clusterDNS: "+e.handOut())
	case !good:
		return one(check, Warn, fmt.Sprintf("hands out %s, not %s (%s)", list, e.handOut(), k.From), e.otherwise())
	}
	return one(check, OK, fmt.Sprintf("hands out %s (%s)", list, k.From), "")
}

func (e *examiner) handOut() string {
	return spell(e.asked(), ", ")
}

func (e *examiner) otherwise() string {
	if e.Rules.Mode == rules.Transparent {
		return "intercept what pods ask: set intercept.services to it"
	}
	return "set the kubelet's clusterDNS to " + e.handOut() + " and restart pods, or use intercept.mode: transparent"
}

// pods counts who asks whom.
func (e *examiner) pods() []Line {
	const check = "pods"
	if !e.Intercept {
		return nil
	}
	if e.NoPods != nil {
		return one(check, Skip, e.NoPods.Error(), "run this command on the node, or in a pod with hostPID: true")
	}
	if len(e.Pods) == 0 {
		return one(check, Skip, "none is to be seen", "run this command on the node, or in a pod with hostPID: true")
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
	if slices.ContainsFunc(names, e.among) {
		return one(check, OK, what, "")
	}
	return one(check, Warn, what+": none asks the agent", e.otherwise())
}
