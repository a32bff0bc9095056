// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/convert"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// addByAddress adds one line for UDP and TCP of each address, or two if their results differ.
// It adds the response times.
func (e *checker) addByAddress(all []Outcome, check func(netip.Addr) string, result func(Outcome) Line) {
	seen := map[netip.AddrPort]Line{}
	for _, o := range all {
		l := result(o)
		l.Check = check(o.To.Addr())
		how := network(o.TCP)
		if o.Answer != "" {
			how += " " + formatDuration(o.Took)
		}
		if before, ok := seen[o.To]; ok && before == l {
			last := &e.lines[len(e.lines)-1]
			last.Check, last.What = l.Check, strings.TrimSuffix(last.What, ")")+", "+how+")"
			continue
		}
		seen[o.To] = l
		l.Check += " " + network(o.TCP)
		l.What += " (" + how + ")"
		e.addLine(l)
	}
}

// checkOwnSockets checks whether the agent's sockets answer, whatever the rules are.
func (e *checker) checkOwnSockets() {
	all := slices.DeleteFunc(slices.Clone(e.Node), func(o Outcome) bool { return !o.Own })
	e.addByAddress(all, func(a netip.Addr) string { return "socket " + a.String() }, func(o Outcome) Line {
		return first("",
			row{o.Token != "", OK, "agent " + o.Token, ""},
			row{o.Answer != "", Fail, "another program answers there: " + o.Answer, fixListener},
			row{o.Error == unix.EPERM.Error(), Skip, "not tested: " + o.Error, fixCapability},
			row{true, Fail, o.Error, "the agent hangs or does not run: see its log, and restart it"})
	})
}

// checkPaths checks which server answers the clients.
func (e *checker) checkPaths(all []Outcome, from string) {
	asked := slices.DeleteFunc(slices.Clone(all), func(o Outcome) bool { return o.Own || o.Name != "" })
	e.addByAddress(asked, netip.Addr.String, func(o Outcome) Line { return e.path(o, all, from) })
	if e.Intercept {
		e.checkTracked(all)
	}
}

// isAgent reports whether the agent that owns the rules answered. A central resolver may be
// a node-cache too.
func (e *checker) isAgent(o Outcome) bool {
	owner := e.owner()
	return o.Token != "" && (owner == "" || o.Token == owner)
}

// path returns the line for o. from is where o was sent from, and all has all outcomes from there.
func (e *checker) path(o Outcome, all []Outcome, from string) Line {
	_, _, leased := e.leased(o.To.Addr())
	named := slices.ContainsFunc(all, func(n Outcome) bool { return n.To == o.To && n.Name != "" && n.Answer != "" })
	byNode := slices.ContainsFunc(e.Node, func(n Outcome) bool { return n.Probe == o.Probe && n.Answer != "" })
	return first("",
		row{
			!leased && e.Intercept && o.Answer != "" && !e.isAgent(o), Warn,
			fmt.Sprintf("the central DNS answers, %s, as the agent has no lease", o.Answer), fixLease,
		},
		row{
			o.Token != "" && !e.isAgent(o), Warn, fmt.Sprintf("agent %s answers, and the rules are those of agent %s", o.Token, e.owner()),
			"normal during an upgrade: if it stays so, stop the other agent",
		},
		row{o.Token != "", OK, "agent " + o.Token, ""},
		row{
			o.Answer != "" && leased, Fail, fmt.Sprintf("another server answers (%s), though the agent's lease is held", o.Answer),
			"another rule or program gets these packets first: see `data plane`, and `nft list ruleset` or `iptables-save`",
		},
		row{o.Answer != "", Fail, "another program answers: " + o.Answer, fixListener},
		row{named && e.Intercept && !leased, Warn, "the central DNS answers names, as the agent has no lease", fixLease},
		row{
			byNode && e.Rules.Mode == rules.Transparent && !leased, Warn, "no answer, though the node gets one: " + o.Error,
			"nothing, if real pods get answers: the data plane may not know the address of this test pod",
		},
		row{true, Fail, "no server answers: " + o.Error, e.unanswered(o, leased, from)})
}

// unanswered returns the fix for a query without an answer.
func (e *checker) unanswered(o Outcome, leased bool, from string) string {
	itself := slices.ContainsFunc(e.keys(), func(k rules.Lease) bool {
		return k.Key == o.To.Addr() && slices.ContainsFunc(e.Node, func(n Outcome) bool {
			return n.Own && n.Token != "" && n.TCP == o.TCP && n.To.Addr() == k.Probe
		})
	})
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

// checkTracked checks whether queries to the agent are tracked: an entry for each query fills
// the conntrack table and causes races. With iptables in transparent mode that cannot be avoided.
func (e *checker) checkTracked(all []Outcome) {
	asked, tracked, failed := 0, 0, ""
	for _, o := range all {
		if o.Own || !e.isAgent(o) {
			continue
		}
		asked++
		failed = cmp.Or(o.TrackedErr, failed)
		if o.Tracked {
			tracked++
		}
	}
	queries := " for " + count(asked, "query", "queries") + " to the agent"
	entries := count(tracked, "entry", "entries") + queries
	needed := e.Rules.Mode == rules.Transparent && slices.ContainsFunc(e.Backends, func(h rules.State) bool {
		return strings.HasPrefix(h.Backend, "iptables")
	})
	e.add("conntrack",
		row{asked == 0, Skip, "the agent answered nothing", ""},
		row{failed != "", Skip, "unknown: " + failed, fixCapability},
		row{tracked == 0, OK, "0 entries" + queries, ""},
		row{
			needed, Warn, entries + ": iptables cannot rewrite without tracking",
			"use intercept.backend: nftables, or mode: link-local, if there are many queries",
		},
		row{true, Fail, entries, "another rule tracks them first, or the agent's rules are incomplete: see its log"})
}

// checkNames checks whether a name of the cluster resolves.
func (e *checker) checkNames(all []Outcome) {
	for _, o := range all {
		if o.Own || o.Name == "" {
			continue
		}
		name := strings.TrimSuffix(o.Name, ".")
		e.add("name at "+o.To.Addr().String(),
			row{o.Answer == "NOERROR" && o.Records > 0, OK, name + " in " + formatDuration(o.Took), ""},
			row{
				o.Answer == "NOERROR" || o.Answer == "NXDOMAIN", Warn, name + " has no address: " + o.Answer,
				"compare clusterDomain with the cluster's, or give a name that exists with --name",
			},
			row{o.Answer != "", Fail, name + ": " + o.Answer, "see upstreams and cluster on the agent's status page"},
			row{true, Fail, name + ": " + o.Error, "see the lines above"})
	}
}

// checkNode checks the answers to the node's own processes.
func (e *checker) checkNode() {
	e.checkPaths(e.Node, "the node")
	e.checkNames(e.Node)
}

// checkPod checks the answers to a pod, and which rules drop its packets.
func (e *checker) checkPod() {
	if e.PodErr != nil {
		e.add("pod", row{true, Skip, e.PodErr.Error(), ""})
		return
	}
	e.checkPaths(e.Pod, "a pod")
	e.checkNames(e.Pod)
	e.checkDrops()
}

// checkDrops names the rules that keep a pod from the agent.
func (e *checker) checkDrops() {
	const check = "dropped by"
	if e.DropErr != nil {
		e.add(check, unknown(e.DropErr, ""))
		return
	}
	for _, d := range e.Drops {
		what := d.Where + ": " + d.Rule
		if d.Policy {
			what = d.Where + ": its policy, because no rule accepts"
		}
		e.add(check, row{true, Fail, what, fmt.Sprintf(
			"accept packets to and from %s port %d before that, by address: most are untracked, and rules on connection state do not match those",
			joinAddrs(e.Rules.Addresses, " and "), e.Rules.Port)})
	}
}

// checkFallback checks whether the fallback servers answer. They get the queries while the agent does not hold the lease.
func (e *checker) checkFallback() {
	if !e.Intercept {
		return
	}
	if transparent := !e.Rules.FallsBack(); transparent || len(e.Backends) == 0 || len(e.Fallback) == 0 {
		e.add("fallback",
			row{transparent, OK, "the Service's data plane, while the lease is not held", ""},
			row{len(e.Backends) == 0, Skip, "no interception rules", ""},
			row{
				true, Warn, "none: if the agent does not answer, no server does",
				"set cluster.central or intercept.fallback, unless this is intended",
			})
		return
	}
	refused := func(o Outcome) bool { return o.Answer == "SERVFAIL" || o.Answer == "REFUSED" }
	for _, o := range e.Fallback {
		bad := Fail // a fallback without a usable answer fails the check, unless another server answers over this transport
		if slices.ContainsFunc(e.Fallback, func(f Outcome) bool { return f.TCP == o.TCP && f.Answer != "" && !refused(f) }) {
			bad = Warn
		}
		e.add(fmt.Sprintf("%s %s", o.To, network(o.TCP)),
			row{o.Answer == "", bad, "no answer: " + o.Error, "check that it runs, and the network between it and this node"},
			row{refused(o), bad, o.Answer, "it refuses this node: see its log"},
			row{true, OK, o.Answer + " in " + formatDuration(o.Took), ""})
	}
	for _, a := range e.queriedAddresses() { // each IP family needs its own fallback: no rule translates between families
		if !slices.ContainsFunc(e.Fallback, func(o Outcome) bool { return o.To.Addr().Is4() == a.Is4() }) {
			e.add("fallback", row{
				true, Warn, fmt.Sprintf("none of %s's family: if the agent does not answer there, no server does", a),
				"add a server of that family to intercept.fallback, or make the central DNS dual-stack",
			})
		}
	}
}

// shown is how many names or addresses a line has.
const shown = 20

// more returns the text for the names that a line leaves out, of n in all.
func more(n int) string {
	if n <= shown {
		return ""
	}
	return fmt.Sprintf(" and %d more", n-shown)
}

// checkZones checks whether the agent serves what the cluster's DNS serves beside the cluster domain.
func checkZones(e *checker) {
	if e.Gaps == nil {
		return
	}
	for _, g := range e.Gaps {
		e.add("zones", row{true, Warn, g.What + ": " + strings.Join(g.Names[:min(shown, len(g.Names))], ", ") + more(len(g.Names)), g.Fix})
	}
	if len(e.Gaps) == 0 {
		e.add("zones", row{true, OK, convert.NoGap, ""})
	}
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
func (e *checker) isQueried(nameserver netip.Addr) bool {
	return slices.Contains(e.queriedAddresses(), nameserver)
}

// checkKubelet checks whether the kubelet gives pods a nameserver that the agent answers for.
func (e *checker) checkKubelet() {
	if !e.Intercept {
		return
	}
	k := e.Kubelet
	list, want := strings.Join(k.DNS, ", "), joinAddrs(e.queriedAddresses(), ", ")
	e.add("kubelet",
		unknown(k.Err, ""),
		row{k.From == "", Skip, "not visible from here", fixVisible},
		row{len(k.DNS) == 0, Warn, "sets no nameserver for pods (" + k.From + ")", "set clusterDNS: " + want},
		row{
			!slices.ContainsFunc(k.DNS, func(text string) bool { a, err := netip.ParseAddr(text); return err == nil && e.isQueried(a) }), Warn, fmt.Sprintf("sets nameserver %s, not %s (%s)", list, want, k.From),
			e.kubeletFix(),
		},
		row{true, OK, fmt.Sprintf("sets nameserver %s (%s)", list, k.From), ""})
}

func (e *checker) kubeletFix() string {
	if e.Rules.Mode == rules.Transparent {
		return "set intercept.services to the address that pods query"
	}
	return "set the kubelet's clusterDNS to " + joinAddrs(e.queriedAddresses(), ", ") + " and restart pods, or use intercept.mode: transparent"
}

// checkPods counts the pods by nameserver.
func (e *checker) checkPods() {
	if !e.Intercept {
		return
	}
	all := slices.SortedFunc(maps.Keys(e.Pods), func(a, b netip.Addr) int {
		return cmp.Or(e.Pods[b]-e.Pods[a], a.Compare(b))
	})
	parts := make([]string, 0, len(all))
	for _, a := range all[:min(shown, len(all))] {
		parts = append(parts, fmt.Sprintf("%s with nameserver %s", count(e.Pods[a], "pod", "pods"), a))
	}
	what, missed := strings.Join(parts, ", ")+more(len(all)), ""
	if e.PodsErr != nil {
		missed = fmt.Sprintf("; some may be missing: %v", e.PodsErr)
	}
	e.add("pods",
		row{len(all) == 0 && e.PodsErr != nil, Skip, fmt.Sprint(e.PodsErr), fixVisible},
		row{len(all) == 0, Skip, "no pods visible", fixVisible},
		row{slices.ContainsFunc(all, e.isQueried), OK, what + missed, ""},
		row{true, Warn, what + ": none queries the agent" + missed, e.kubeletFix()})
}
