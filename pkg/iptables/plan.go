// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// A chain is a chain of the agent, with the built-in chains that jump to it.
type chain struct {
	table, name string
	hooks       []string // the built-in chains that jump to it
	rules       []string // as iptables prints them, without "-A NAME "; empty: the chain should not exist
}

// tables returns the tables that the agent uses, in the order of writing.
func tables() []string { return []string{"nat", "mangle", "raw", "filter"} }

// plan returns all chains of the agent for one family of r, also those without rules.
// randomly means that MASQUERADE supports --random-fully.
func plan(r *rules.Rules, v6, randomly bool) []chain {
	p := planner{Rules: r.Family(v6), v6: v6, randomFully: randomly}
	chains := []chain{
		{table: "nat", name: "NODE-CACHE-DNAT", hooks: []string{"PREROUTING", "OUTPUT"}},
		{table: "nat", name: "NODE-CACHE-SNAT", hooks: []string{"POSTROUTING"}},
		{table: "raw", name: "NODE-CACHE-PRE", hooks: []string{"PREROUTING"}},
		{table: "raw", name: "NODE-CACHE-OUT", hooks: []string{"OUTPUT"}},
		{table: "filter", name: "NODE-CACHE-IN", hooks: []string{"INPUT"}},
		{table: "filter", name: "NODE-CACHE-REPLY", hooks: []string{"OUTPUT"}},
		{table: "mangle", name: "NODE-CACHE-MARK", hooks: []string{"POSTROUTING"}},
	}
	if len(p.Addresses) == 0 {
		return chains
	}
	chains[2].rules = p.rawRules(false)
	chains[3].rules = append(p.answerRules(), p.rawRules(true)...)
	chains[4].rules = p.inputRules()
	chains[5].rules = p.outputRules()
	chains[0].rules = p.agentRules()
	if p.FallsBack() && len(p.Fallback) > 0 {
		chains[0].rules = append(chains[0].rules, p.fallbackRules()...)
		chains[1].rules = p.masqueradeRules()
		if p.Track {
			chains[2].rules = append(slices.Clone(chains[2].rules), p.trackReplies()...)
			chains[3].rules = append(chains[3].rules, p.trackQueries()...)
		}
		if p.MarkHost {
			chains[6].rules = p.markRules()
		}
	}
	return chains
}

// A planner renders the rules of one family.
type planner struct {
	rules.Rules

	v6, randomFully bool
}

const (
	notrack = "-j CT --notrack"
	track   = "-j CT"                            // a later --notrack has no effect
	syn     = " --tcp-flags FIN,SYN,RST,ACK SYN" // as iptables prints --syn
)

// mark matches packets with the agent's mark or, if not is "! ", packets without it.
func mark(not string) string { return markBit(not, rules.Mark) }

// testMark matches packets that test the fallback or, if not is "! ", all others.
func testMark(not string) string { return markBit(not, rules.TestMark) }

func markBit(not string, bit uint32) string {
	return fmt.Sprintf("-m mark %s--mark %#x/%#x", not, bit, bit)
}

// to matches packets of a protocol to a port, and from matches those from a port.
func to(proto string, port uint16) string {
	return fmt.Sprintf("-p %s -m %s --dport %d", proto, proto, port)
}

func from(proto string, port uint16) string {
	return fmt.Sprintf("-p %s -m %s --sport %d", proto, proto, port)
}

// inSet matches packets to an address in one of the agent's sets.
func (p *planner) inSet(name string) string {
	return "-m set --match-set " + setName(name, p.v6) + " dst"
}

// host returns an address as iptables prints it.
func (p *planner) host(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// ports returns the result of rule for each protocol and port of the agent.
func (p *planner) ports(rule func(proto string, port uint16) string) []string {
	list := []string{rule("udp", p.Port), rule("tcp", p.Port)}
	if p.Admin != 0 {
		list = append(list, rule("tcp", p.Admin))
	}
	return list
}

// rawRules returns the rules in raw that select the agent's packets, from outside or, if local is set, from the node. The target CT
// applies only to packets that no earlier CT rule has changed.
func (p *planner) rawRules(local bool) []string {
	list := p.redirectZoneRules(local)
	if p.Mode == rules.LinkLocal {
		list = append(list, p.notrackRules(local)...)
	}
	for _, a := range p.Addresses {
		if p.Admin != 0 {
			list = append(list, fmt.Sprintf("-d %s %s %s", p.host(a), to("tcp", p.Admin), notrack))
		}
	}
	if !p.FallsBack() || len(p.Fallback) == 0 {
		return list
	}
	others := mark("! ") // not the agent's own
	if p.Track {         // nor those to Cilium's proxy
		others += fmt.Sprintf(" -m mark ! --mark %#x/%#x", rules.ProxyMark, rules.HostMask)
	}
	for _, a := range p.FallbackKeys() {
		// Only UDP: a TCP session stays with the target of its SYN.
		list = append(list, fmt.Sprintf("-d %s %s %s -j CT --zone-orig %d", p.host(a), to("udp", p.Port), others, zone(p.Fallback)))
		if p.Track {
			list = append(list, fmt.Sprintf("-d %s %s %s %s", p.host(a), to("tcp", p.Port), others, track))
		}
	}
	return list
}

// trackReplies tracks replies of the fallback. Their queries are in a zone in the original direction only. Without the source any pod
// could fill the conntrack table, from which its packets are exempt. So replies of a target that has just been removed are lost.
func (p *planner) trackReplies() []string {
	return p.perTarget(func(proto string, f netip.AddrPort) string {
		return fmt.Sprintf("-s %s %s -m addrtype --dst-type LOCAL %s", p.host(f.Addr()), from(proto, f.Port()), track)
	})
}

// trackQueries tracks the queries of this node to the fallback, because their replies look like those of the fallback.
func (p *planner) trackQueries() []string {
	return p.perTarget(func(proto string, f netip.AddrPort) string {
		return fmt.Sprintf("-d %s %s -m addrtype --src-type LOCAL %s", p.host(f.Addr()), to(proto, f.Port()), track)
	})
}

// perTarget returns the result of rule for each protocol and target of the fallback.
func (p *planner) perTarget(rule func(proto string, f netip.AddrPort) string) []string {
	list := make([]string, 0, 2*len(p.Fallback))
	for _, f := range p.Fallback {
		list = append(list, rule("udp", f), rule("tcp", f))
	}
	return list
}

// markRules marks the queries that masqueradeRules gives the node's address.
func (p *planner) markRules() []string {
	list := make([]string, len(p.FallbackKeys()))
	for i, a := range p.FallbackKeys() {
		list[i] = fmt.Sprintf("-m conntrack --ctstate DNAT --ctorigdst %s --ctorigdstport %d --ctdir ORIGINAL -j MARK --set-xmark %#x/%#x",
			a, p.Port, rules.HostMark, rules.HostMask)
	}
	return list
}

func (p *planner) notrackRules(local bool) []string {
	list := make([]string, 0, 2*len(p.Addresses)+2*len(p.FallbackKeys()))
	untested := ""
	if local { // a test of the fallback passes the lease, and then takes the rules that a pod's packet would
		untested = testMark("! ") + " "
	}
	for _, a := range p.Addresses {
		for _, proto := range []string{"udp", "tcp"} {
			list = append(list, fmt.Sprintf("-d %s %s %s %s", p.host(a), to(proto, p.Port), mark(""), notrack))
		}
	}
	for _, a := range p.FallbackKeys() { // the set has the addresses of redirects too, whose packets must be tracked
		for _, proto := range []string{"udp", "tcp"} {
			list = append(list, fmt.Sprintf("-d %s %s %s %s%s", p.host(a), to(proto, p.Port), p.inSet("lease"), untested, notrack))
		}
	}
	return list
}

// redirectZoneRules puts UDP into a zone. TCP needs none: a session stays with the target of
// its SYN. With Track, sessions are tracked while the lease is held, and no longer: without it conntrack would see one direction of those
// with the server. So then the sessions with the agent end with the lease.
func (p *planner) redirectZoneRules(local bool) []string {
	list := make([]string, 0, 2*len(p.Redirects()))
	others := mark("! ")
	if local && p.FallsBack() {
		others += " " + testMark("! ")
	}
	for _, d := range p.Redirects() {
		list = append(list, fmt.Sprintf("-d %s %s %s %s -j CT --zone-orig %d",
			p.host(d.From), to("udp", p.Port), others, p.inSet("lease"), rules.Zone))
		if p.Track && !slices.Contains(p.FallbackKeys(), d.From) {
			list = append(list, fmt.Sprintf("-d %s %s %s %s %s", p.host(d.From), to("tcp", p.Port), others, p.inSet("lease"), track))
		}
	}
	return list
}

// answerRules returns the rules in raw for packets of the agent.
func (p *planner) answerRules() []string {
	var list []string
	for _, a := range p.Addresses {
		s := "-s " + p.host(a)
		if p.Mode == rules.LinkLocal && slices.Contains(p.FallbackKeys(), a) {
			list = append(list, p.ports(func(proto string, port uint16) string {
				return fmt.Sprintf("%s %s %s", s, from(proto, port), notrack)
			})...)
			continue
		}
		// Answers to rewritten queries have to be tracked, to be translated back. The agent's
		// self-query has one address as source and destination, and is not tracked.
		for _, proto := range []string{"udp", "tcp"} {
			self := fmt.Sprintf("%s -d %s", s, p.host(a))
			list = append(
				list,
				fmt.Sprintf("%s %s %s", self, to(proto, p.Port), notrack),
				fmt.Sprintf("%s %s %s", self, from(proto, p.Port), notrack),
			)
			if p.Track && slices.ContainsFunc(p.Servers, func(d rules.Redirect) bool { return d.To == a }) {
				list = append(list, fmt.Sprintf("%s %s %s", s, from(proto, p.Port), track))
			}
		}
		if p.Admin != 0 {
			list = append(list, fmt.Sprintf("%s %s %s", s, from("tcp", p.Admin), notrack))
		}
	}
	return list
}

// inputRules accepts packets for the agent and its clients on the node. Before that it
// resets TCP sessions that no server answers any more, so that clients do not time out.
func (p *planner) inputRules() []string {
	list := p.resetRules()
	for _, a := range p.Addresses {
		list = append(list, p.ports(func(proto string, port uint16) string {
			return fmt.Sprintf("-d %s %s -j ACCEPT", p.host(a), to(proto, port))
		})...)
		// Only on lo: on other links this source could be forged.
		list = append(list, p.ports(func(proto string, port uint16) string {
			return fmt.Sprintf("-s %s -i lo %s -j ACCEPT", p.host(a), from(proto, port))
		})...)
	}
	return list
}

// resetRules resets TCP sessions with the agent that are neither leased nor draining. In
// link-local mode these are tracked but without DNAT to the fallback: their earlier packets
// were untracked, so conntrack picks them up in the middle. Rules in raw cannot handle a
// draining session: they would also match sessions with the fallback.
func (p *planner) resetRules() []string {
	var list []string
	reset := "-j REJECT --reject-with tcp-reset"
	for _, d := range p.Redirects() {
		list = append(list, fmt.Sprintf("-d %s %s -m conntrack --ctstate DNAT --ctorigdst %s %s %s",
			p.host(d.To), to("tcp", p.Port), d.From, negate(p.inSet("drain")), reset))
	}
	if p.Mode == rules.Transparent || len(p.Fallback) == 0 {
		return list
	}
	for _, a := range p.FallbackKeys() {
		list = append(list, fmt.Sprintf("-d %s %s %s -m conntrack ! --ctstate UNTRACKED %s %s %s",
			p.host(a), to("tcp", p.Port), mark("! "), negate(p.inSet("lease")), negate(p.inSet("drain")), reset))
	}
	return list
}

func negate(match string) string { return strings.Replace(match, "--match-set", "! --match-set", 1) }

// outputRules accepts packets of the agent and of its clients on the node.
func (p *planner) outputRules() []string {
	var list []string
	for _, a := range p.Addresses {
		list = append(list, p.ports(func(proto string, port uint16) string {
			return fmt.Sprintf("-s %s %s -j ACCEPT", p.host(a), from(proto, port))
		})...)
		list = append(list, p.ports(func(proto string, port uint16) string {
			return fmt.Sprintf("-d %s %s -j ACCEPT", p.host(a), to(proto, port))
		})...)
	}
	return list
}

// agentRules rewrites the addresses of redirects to the agent's. If there is a fallback, its tests pass them: only this node sends these.
func (p *planner) agentRules() []string {
	redirects := p.Redirects()
	list := make([]string, 0, 4*len(redirects))
	others := []string{""}
	if p.FallsBack() {
		others = []string{testMark("! ") + " ", testMark("") + " -m addrtype ! --src-type LOCAL "}
	}
	for _, d := range redirects {
		target := "-j DNAT --to-destination " + netip.AddrPortFrom(d.To, p.Port).String()
		for _, opening := range []string{to("udp", p.Port), to("tcp", p.Port) + syn} {
			for _, other := range others {
				list = append(list, fmt.Sprintf("-d %s %s %s %s%s %s", p.host(d.From), opening, mark("! "), other, p.inSet("lease"), target))
			}
		}
	}
	return list
}

// fallbackRules spreads new connections over the fallback's targets. Leased queries are
// untracked and do not get here, except before the rules in raw are written: the tables are
// written one after the other. Tests of the fallback are tracked.
func (p *planner) fallbackRules() []string {
	list := make([]string, 0, 2+2*len(p.FallbackKeys())*len(p.Fallback))
	for _, proto := range []string{"udp", "tcp"} {
		list = append(list, fmt.Sprintf("%s %s %s -j RETURN", to(proto, p.Port), p.inSet("lease"), testMark("! ")))
	}
	for _, a := range p.FallbackKeys() {
		for _, opening := range []string{to("udp", p.Port), to("tcp", p.Port) + syn} {
			for i, f := range p.Fallback {
				share := ""
				if left := len(p.Fallback) - i; left > 1 {
					share = fmt.Sprintf(" -m statistic --mode random --probability %.11f", fraction(left))
				}
				list = append(list, fmt.Sprintf("-d %s %s %s%s -j DNAT --to-destination %s", p.host(a), opening, mark("! "), share, f))
			}
		}
	}
	return list
}

// fraction returns 1/n in the kernel's precision of 31 bits.
func fraction(n int) float64 { return math.Round((1<<31)/float64(n)) / (1 << 31) }

// masqueradeRules gives packets to the fallback the node's source address: a client on the
// node has the agent's address as its source, and answers to a pod must return through the
// node.
func (p *planner) masqueradeRules() []string {
	list := make([]string, len(p.FallbackKeys()))
	for i, a := range p.FallbackKeys() {
		list[i] = fmt.Sprintf("-m conntrack --ctstate DNAT --ctorigdst %s --ctorigdstport %d -j MASQUERADE", a, p.Port)
		if p.Mode == rules.Transparent { // those to the agent were rewritten too
			list[i] = fmt.Sprintf("! -d %s %s", p.host(p.Target(a)), list[i])
		}
		if p.randomFully {
			list[i] += " --random-fully" // without it, two pods with the same source port would be given the same port of the node
		}
	}
	return list
}

// zone returns the conntrack zone of a fallback list, a hash of 16 bits: another list almost always has another zone.
func zone(fallback []netip.AddrPort) uint16 {
	sorted := slices.SortedFunc(slices.Values(fallback), netip.AddrPort.Compare)
	h := fnv.New32a()
	for _, f := range sorted {
		_, _ = fmt.Fprintln(h, f) // never fails
	}
	z := uint16(h.Sum32()>>16) ^ uint16(h.Sum32()) //nolint:gosec // folded
	for z == 0 || z == rules.Zone {
		z++
	}
	return z
}
