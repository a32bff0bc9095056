// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/rules"
)

// The chains of the table of leases. Every packet of the node comes by the base
// chains, so these look at ports only, and leave the rest to the chains below.
const (
	chainQuery      = "query"      // to the port of DNS
	chainReply      = "reply"      // from it, of this node
	chainRewrite    = "rewrite"    // queries to the service, to be the agent's
	chainPrerouting = "prerouting" // what arrives
	chainOutput     = "output"     // what this node's processes send
	chainRoute      = "output-route"
)

// renderLeases returns the table that gives packets to the agent while it holds
// their address.
func renderLeases(r *rules.Rules) *table {
	arriving := chainQuery
	if r.Mode == rules.Transparent {
		arriving = chainRewrite
	}
	t := &table{
		name: leaseTable(r.Owner),
		sets: []set{
			family{}.addresses(leaseSet), family{v6: true}.addresses(leaseSet),
			family{}.addresses(drainSet), family{v6: true}.addresses(drainSet),
			family{}.sessions(movedSet), family{v6: true}.sessions(movedSet),
		},
		chains: []chain{
			{name: chainQuery},
			{name: chainReply},
			{name: chainPrerouting, kind: "filter", hook: unix.NF_INET_PRE_ROUTING, priority: priorityRaw},
			{name: chainOutput, kind: "filter", hook: unix.NF_INET_LOCAL_OUT, priority: priorityRaw},
		},
		rules: []rule{
			newRule(chainPrerouting, "queries", udpTo(r.Port), goTo(arriving)),
			newRule(chainPrerouting, "queries", tcpTo(r.Port), goTo(arriving)),
			newRule(chainOutput, "answers", udpFrom(r.Port), goTo(chainReply)),
			newRule(chainOutput, "answers", tcpFrom(r.Port), goTo(chainReply)),
			newRule(chainOutput, "queries of this node", udpTo(r.Port), goTo(chainQuery)),
			newRule(chainOutput, "queries of this node", tcpTo(r.Port), goTo(chainQuery)),
		},
	}
	if r.Mode == rules.Transparent {
		rewriting(t, r)
	}
	for _, f := range families(r) {
		part := r.Family(f.v6)
		if r.Mode == rules.Transparent {
			transparent(t, f, &part)
		} else {
			linkLocal(t, f, &part)
		}
		if r.Admin != 0 {
			admin(t, f, &part)
		}
	}
	return t
}

// linkLocal adds the rules of a family whose clients ask the agent's own address.
func linkLocal(t *table, f family, r *rules.Rules) {
	t.rules = append(t.rules, newRule(chainQuery, "leased: the agent's", f.is(), f.toAny(leaseSet), untrack()))
	for _, a := range r.Addresses {
		t.rules = append(t.rules,
			newRule(chainQuery, "of the agent, to itself", f.is(), f.to(a), marked(true), untrack()),
			newRule(chainReply, "of the agent", f.is(), f.from(a), untrack()))
	}
	// A new session is elsewhere from its first packet on. What follows can be told from
	// the packets of the agent's old ones by that first packet only.
	t.rules = append(t.rules,
		newRule(chainQuery, "released: new sessions are elsewhere", f.is(), f.toAny(drainSet), f.noteSession(movedSet), leave()),
		newRule(chainQuery, "released: the agent's sessions end in peace", f.is(), f.toAny(drainSet), f.otherSession(movedSet), untrack()))
}

// rewriting adds the chains through which queries go to have another destination.
// Those of this node's processes have a chain that finds the route anew. Answers,
// whose route stays, are spared that.
func rewriting(t *table, r *rules.Rules) {
	t.chains = append([]chain{{name: chainRewrite}}, t.chains...)
	t.chains = append(t.chains, chain{name: chainRoute, kind: "route", hook: unix.NF_INET_LOCAL_OUT, priority: priorityRaw})
	t.rules = append(t.rules,
		newRule(chainRoute, "queries of this node", udpTo(r.Port), goTo(chainRewrite)),
		newRule(chainRoute, "queries of this node", tcpTo(r.Port), goTo(chainRewrite)))
}

// transparent adds the rules of a family whose clients ask the service's address.
func transparent(t *table, f family, r *rules.Rules) {
	for _, s := range r.Services {
		a := r.Target(s)
		t.rules = append(t.rules,
			newRule(chainRewrite, "leased: the agent's", f.is(), f.to(s), f.toAny(leaseSet), marked(false), f.become(true, a), untrack()),
			newRule(chainRewrite, "released: new sessions are the service's", f.is(), f.to(s), f.toAny(drainSet), f.noteSession(movedSet), leave()),
			newRule(chainRewrite, "released: the agent's sessions end in peace",
				f.is(), f.to(s), f.toAny(drainSet), f.otherSession(movedSet), marked(false), f.become(true, a), untrack()),
			// A process of this node that asks a itself does so from a.
			newRule(chainReply, "of the agent, in the name of the service", f.is(), f.from(a), f.notTo(a), f.become(false, s), untrack()))
	}
	for _, a := range r.Addresses {
		t.rules = append(t.rules,
			newRule(chainRewrite, "to the agent itself", f.is(), f.to(a), untrack()),
			newRule(chainQuery, "to the agent itself", f.is(), f.to(a), untrack()),
			newRule(chainReply, "of the agent", f.is(), f.from(a), untrack()))
	}
}

// admin adds the rules of the admin server.
func admin(t *table, f family, r *rules.Rules) {
	for _, a := range r.Addresses {
		t.rules = append(t.rules,
			newRule(chainPrerouting, "to the admin server", tcpTo(r.Admin), f.is(), f.to(a), untrack()),
			newRule(chainOutput, "to the admin server", tcpTo(r.Admin), f.is(), f.to(a), untrack()),
			newRule(chainOutput, "of the admin server", tcpFrom(r.Admin), f.is(), f.from(a), untrack()))
	}
}
