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

// A finding is what one outcome means.
type finding struct {
	verdict   Verdict
	what, fix string
}

// both makes one line of what UDP and TCP to each address came to, or two if that is
// not the same. The time that an answer took is added.
func both(all []Outcome, check func(Outcome) string, judge func(Outcome) finding) []Line {
	var lines []Line
	seen := map[netip.AddrPort]finding{}
	for _, o := range all {
		f := judge(o)
		how := network(o.TCP)
		if o.Answer != "" {
			how += " " + shown(o.Took)
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

// own says whether the agent's sockets answer, whatever the rules are.
func (e *examiner) own() []Line {
	all := slices.DeleteFunc(slices.Clone(e.Node), func(o Outcome) bool { return !o.Own })
	return both(all, func(o Outcome) string { return "socket " + o.To.Addr().String() }, func(o Outcome) finding {
		switch {
		case o.Token != "":
			return finding{OK, "agent " + o.Token, ""}
		case o.Answer != "":
			return finding{Fail, "another program answers there: " + o.Answer, "stop the program that `listener` names"}
		case o.Error == unix.EPERM.Error():
			return finding{Skip, "not asked: " + o.Error, "run this command with the right NET_ADMIN"}
		}
		return finding{Fail, o.Error, "the agent does not run or hangs: see its log, and restart it"}
	})
}

// answersItself says whether the agent's socket at a answered.
func (e *examiner) answersItself(a netip.Addr, tcp bool) bool {
	return slices.ContainsFunc(e.Node, func(o Outcome) bool { return o.Own && o.Token != "" && o.TCP == tcp && o.To.Addr() == a })
}

// paths says who answers what clients ask.
func (e *examiner) paths(all []Outcome, from string) []Line {
	asked := slices.DeleteFunc(slices.Clone(all), func(o Outcome) bool { return o.Own || o.Name != "" })
	lines := both(asked, func(o Outcome) string { return o.To.Addr().String() }, func(o Outcome) finding { return e.path(o, all, from) })
	return append(lines, e.tracked(all)...)
}

// mine says whether the agent answered whose rules are there. A central resolver is a
// node-cache too, mostly.
func (e *examiner) mine(o Outcome) bool {
	owner := e.owner()
	return o.Token != "" && (owner == "" || o.Token == owner)
}

// path says what one of all the outcomes means.
func (e *examiner) path(o Outcome, all []Outcome, from string) finding {
	_, _, leased := e.leased(o.To.Addr())
	owner := e.owner()
	switch {
	case !leased && e.Intercept && o.Answer != "" && !e.mine(o):
		return finding{
			Warn, fmt.Sprintf("the central DNS answers, %s, as the agent has no lease", o.Answer),
			"pods have DNS, but not the agent's: see `lease` and the agent's log",
		}
	case o.Token != "" && !e.mine(o):
		return finding{
			Warn, fmt.Sprintf("agent %s answers, and the rules are those of agent %s", o.Token, owner),
			"one of them is being replaced: if it stays so, stop the other",
		}
	case o.Token != "":
		return finding{OK, "agent " + o.Token, ""}
	case o.Answer != "" && leased:
		return finding{
			Fail, fmt.Sprintf("not the agent answers (%s), though its lease is held", o.Answer),
			"another rule or program takes these packets first: see `data plane`, and `nft list ruleset` or `iptables-save`",
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
			Warn, "nobody answers, though the node is answered: " + o.Error,
			"nothing, if real pods are answered: who serves the Service may not know the address of this one",
		}
	}
	return finding{Fail, "nobody answers: " + o.Error, e.unanswered(o, leased, from)}
}

// unanswered says what to do about a query that nobody answers.
func (e *examiner) unanswered(o Outcome, leased bool, from string) string {
	itself := e.answersItself(e.probeOf(o.To.Addr()), o.TCP)
	switch {
	case itself && (leased || !e.Intercept):
		return "something stops what " + from + " sends or gets: see `dropped by`, or `nft list ruleset` and `iptables-save`"
	case leased:
		return "the agent hangs: its lease ends by itself, then the fallback answers"
	case o.Refused && e.Intercept:
		return "no socket and no fallback is there: start the agent"
	case o.Refused:
		return "no socket is there: start the agent"
	case !e.Intercept:
		return "see `listener`"
	}
	return "the lease is not held and no fallback answers either: see `Central DNS`"
}

func (e *examiner) probeOf(key netip.Addr) netip.Addr {
	for _, k := range e.keys() {
		if k.Key == key {
			return k.Probe
		}
	}
	return key
}

// tracked says whether what the agent answered is tracked: an entry in the table of
// connections for each query is what fills that table, and what races.
func (e *examiner) tracked(all []Outcome) []Line {
	if !e.Intercept {
		return nil
	}
	const check = "conntrack"
	asked, tracked, unknown := 0, 0, ""
	for _, o := range all {
		if o.Own || !e.mine(o) {
			continue
		}
		asked++
		if o.Unknown != "" {
			unknown = o.Unknown
		}
		if o.Tracked {
			tracked++
		}
	}
	switch {
	case asked == 0:
		return one(check, Skip, "the agent answered nothing", "")
	case unknown != "":
		return one(check, Skip, "not known: "+unknown, "run this command with the right NET_ADMIN")
	case tracked == 0:
		return one(check, OK, fmt.Sprintf("0 entries for %s to the agent", queries(asked)), "")
	case e.transparentTracked():
		return one(check, Warn, fmt.Sprintf("%s for %s to the agent: iptables cannot rewrite without tracking", entries(tracked), queries(asked)),
			"use intercept.backend: nftables, or mode: link-local, if queries are many")
	}
	return one(check, Fail, fmt.Sprintf("%s for %s to the agent", entries(tracked), queries(asked)),
		"a rule before the agent's tracks them, or the agent's rules are incomplete: see its log")
}

// name says whether a name of the cluster is known.
func (e *examiner) name(all []Outcome) []Line {
	var lines []Line
	for _, o := range all {
		if o.Own || o.Name == "" {
			continue
		}
		check := "name at " + o.To.Addr().String()
		name := strings.TrimSuffix(o.Name, ".")
		switch {
		case o.Answer == "NOERROR" && o.Records > 0:
			lines = append(lines, one(check, OK, fmt.Sprintf("%s in %s", name, shown(o.Took)), "")...)
		case o.Answer == "NOERROR", o.Answer == "NXDOMAIN":
			lines = append(lines, one(check, Warn, fmt.Sprintf("%s has no address: %s", name, o.Answer),
				"compare clusterDomain with the cluster's, or give a name that exists with --name")...)
		case o.Answer != "":
			lines = append(lines, one(check, Fail, fmt.Sprintf("%s: %s", name, o.Answer), "see upstreams and cluster on the agent's status page")...)
		default:
			lines = append(lines, one(check, Fail, fmt.Sprintf("%s: %s", name, o.Error), "see the lines above")...)
		}
	}
	return lines
}

// pod says how all this looks from a pod.
func (e *examiner) pod() []Line {
	if e.NoPod != nil {
		return one("pod", Skip, e.NoPod.Error(), "")
	}
	return slices.Concat(e.paths(e.Pod, "a pod"), e.name(e.Pod), e.dropped())
}

// dropped names the rules that keep a pod from the agent.
func (e *examiner) dropped() []Line {
	const check = "dropped by"
	if e.NoDrop != nil {
		return one(check, Skip, "not known: "+e.NoDrop.Error(), "")
	}
	var lines []Line
	for _, d := range e.Drops {
		what := d.Where + ": " + d.Rule
		if d.Policy {
			what = d.Where + ": its policy, as no rule accepts"
		}
		fix := fmt.Sprintf("let packets to and from %s pass before that", e.spelt())
		if d.untracked() {
			what += ". The agent's packets are not tracked, and meet it for that"
			fix += ", by address: no rule for connections matches them"
		}
		lines = append(lines, one(check, Fail, what, fix)...)
	}
	return lines
}

// untracked says whether packets are dropped for want of a connection: by a rule for
// those that belong to none, or by a policy after rules for those that belong to one.
func (d Drop) untracked() bool {
	if d.Policy {
		return true
	}
	rule := strings.ToLower(d.Rule)
	state := strings.Contains(rule, "ct state") || strings.Contains(rule, "--ctstate") || strings.Contains(rule, "--state")
	return state && (strings.Contains(rule, "untracked") || strings.Contains(rule, "invalid") || strings.Contains(rule, "!"))
}

// spelt are the addresses at which the agent is asked, with the port.
func (e *examiner) spelt() string {
	return fmt.Sprintf("%s port %d", spell(e.Rules.Addresses, " and "), e.Rules.Port)
}
