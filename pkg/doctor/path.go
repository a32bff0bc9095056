// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/rules"
)

// A finding is the meaning of one outcome.
type finding struct {
	verdict   Verdict
	what, fix string
}

// mergeTransports makes one line of the findings for UDP and TCP of each address, or two
// if they differ. It adds the response times.
func mergeTransports(all []Outcome, check func(Outcome) string, judge func(Outcome) finding) []Line {
	var lines []Line
	seen := map[netip.AddrPort]finding{}
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
		lines = append(lines, Line{Check: check(o) + " " + network(o.TCP), Verdict: f.verdict, What: f.what + " (" + how + ")", Fix: f.fix})
	}
	return lines
}

// ownSockets checks whether the agent's sockets answer, whatever the rules are.
func (e *checker) ownSockets() []Line {
	all := slices.DeleteFunc(slices.Clone(e.Node), func(o Outcome) bool { return !o.Own })
	return mergeTransports(all, func(o Outcome) string { return "socket " + o.To.Addr().String() }, func(o Outcome) finding {
		switch {
		case o.Token != "":
			return finding{OK, "agent " + o.Token, ""}
		case o.Answer != "":
			return finding{Fail, "another program answers there: " + o.Answer, "stop the program that `listener` names"}
		case o.Error == unix.EPERM.Error():
			return finding{Skip, "not tested: " + o.Error, "run this command with the capability NET_ADMIN"}
		}
		return finding{Fail, o.Error, "the agent hangs or does not run: see its log, and restart it"}
	})
}

// answersItself reports whether the agent's socket at a answered.
func (e *checker) answersItself(a netip.Addr, tcp bool) bool {
	return slices.ContainsFunc(e.Node, func(o Outcome) bool { return o.Own && o.Token != "" && o.TCP == tcp && o.To.Addr() == a })
}

// paths checks which server answers the clients.
func (e *checker) paths(all []Outcome, from string) []Line {
	asked := slices.DeleteFunc(slices.Clone(all), func(o Outcome) bool { return o.Own || o.Name != "" })
	lines := mergeTransports(asked, func(o Outcome) string { return o.To.Addr().String() }, func(o Outcome) finding { return e.path(o, all, from) })
	return append(lines, e.trackedConnections(all)...)
}

// isAgent reports whether the agent that owns the rules answered. A central resolver may be
// a node-cache too.
func (e *checker) isAgent(o Outcome) bool {
	owner := e.owner()
	return o.Token != "" && (owner == "" || o.Token == owner)
}

// path returns the finding for one of all outcomes.
func (e *checker) path(o Outcome, all []Outcome, from string) finding {
	_, _, leased := e.leased(o.To.Addr())
	owner := e.owner()
	switch {
	case !leased && e.Intercept && o.Answer != "" && !e.isAgent(o):
		return finding{
			Warn, fmt.Sprintf("the central DNS answers, %s, as the agent has no lease", o.Answer),
			"pods have DNS, but not the agent's: see `lease` and the agent's log",
		}
	case o.Token != "" && !e.isAgent(o):
		return finding{
			Warn, fmt.Sprintf("agent %s answers, and the rules are those of agent %s", o.Token, owner),
			"normal during an upgrade: if it stays so, stop the other agent",
		}
	case o.Token != "":
		return finding{OK, "agent " + o.Token, ""}
	case o.Answer != "" && leased:
		return finding{
			Fail, fmt.Sprintf("another server answers (%s), though the agent's lease is held", o.Answer),
			"another rule or program gets these packets first: see `data plane`, and `nft list ruleset` or `iptables-save`",
		}
	case o.Answer != "":
		return finding{Fail, "another program answers: " + o.Answer, "stop the program that `listener` names"}
	}
	named := slices.ContainsFunc(all, func(n Outcome) bool { return n.To == o.To && n.Name != "" && n.Answer != "" })
	if named && e.Intercept && !leased {
		return finding{
			Warn, "the central DNS answers names, as the agent has no lease",
			"pods have DNS, but not the agent's: see `lease` and the agent's log",
		}
	}
	if e.Rules.Mode == rules.Transparent && !leased && slices.ContainsFunc(e.Node, func(n Outcome) bool { return n.Probe == o.Probe && n.Answer != "" }) {
		return finding{
			Warn, "no answer, though the node gets one: " + o.Error,
			"nothing, if real pods get answers: the data plane may not know the address of this test pod",
		}
	}
	return finding{Fail, "no server answers: " + o.Error, e.unanswered(o, leased, from)}
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
		return singleLine(check, OK, fmt.Sprintf("0 entries for %s to the agent", queries(asked)), "")
	case e.transparentTracked():
		return singleLine(check, Warn, fmt.Sprintf("%s for %s to the agent: iptables cannot rewrite without tracking", entries(tracked), queries(asked)),
			"use intercept.backend: nftables, or mode: link-local, if there are many queries")
	}
	return singleLine(check, Fail, fmt.Sprintf("%s for %s to the agent", entries(tracked), queries(asked)),
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
