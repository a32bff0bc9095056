// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/rules"
)

// The chains of the table that outlives the agent.
const (
	chainDivert         = "fallback" // queries that conntrack has seen are not the agent's
	chainDivertArriving = "fallback-prerouting"
	chainDivertSent     = "fallback-output"
	chainMasquerade     = "fallback-postrouting"
	chainInput          = "input"
)

// renderFallback returns the table that sends queries elsewhere which no agent
// holds, or nil if there is nowhere to send them.
//
// It asks for no lease: what an agent holds is not tracked, and never comes by NAT.
func renderFallback(r *rules.Rules) *table {
	if r.Mode != rules.LinkLocal {
		return nil
	}
	t := &table{
		name: fallbackTable,
		chains: []chain{
			{name: ownerPrefix + r.Owner},
			{name: chainDivert},
			{name: chainDivertArriving, kind: "nat", hook: unix.NF_INET_PRE_ROUTING, priority: priorityDivert},
			{name: chainDivertSent, kind: "nat", hook: unix.NF_INET_LOCAL_OUT, priority: priorityDivert},
			{name: chainMasquerade, kind: "nat", hook: unix.NF_INET_POST_ROUTING, priority: priorityPostrouting},
			{name: chainInput, kind: "filter", hook: unix.NF_INET_LOCAL_IN, priority: priorityFilter},
		},
		rules: []rule{
			newRule(chainDivertArriving, "what arrives", goTo(chainDivert)),
			newRule(chainDivertSent, "what this node sends", goTo(chainDivert)),
		},
	}
	anywhere := false
	for _, f := range families(r) {
		if part := r.Of(f.v6); len(part.Fallback) > 0 {
			elsewhere(t, f, &part)
			anywhere = true
		}
	}
	if !anywhere {
		return nil
	}
	return t
}

// elsewhere adds the rules of a family that has targets.
//
// The queries leave with an address of the node as their source: a process of the
// node has the agent's address as its own, and the answers to a pod must come back
// by the node to be put right.
func elsewhere(t *table, f family, r *rules.Rules) {
	choice := f.targets(r.Fallback)
	for _, a := range r.Addresses {
		// A session that was the agent's is not moved: its next packet is no SYN.
		queries := newRule(chainDivert, "not leased: elsewhere", udpTo(r.Port), f.is(), f.to(a), marked(false), f.divert(choice))
		sessions := newRule(chainDivert, "not leased: new sessions elsewhere", tcpTo(r.Port), flags(flagSYN|flagACK, flagSYN),
			f.is(), f.to(a), marked(false), f.divert(choice))
		queries.choice, sessions.choice = choice, choice
		t.rules = append(t.rules, queries, sessions,
			newRule(chainMasquerade, "with the node's address", f.is(), diverted(), f.firstTo(a, unix.IPPROTO_UDP, r.Port), masquerade()),
			newRule(chainMasquerade, "with the node's address", f.is(), diverted(), f.firstTo(a, unix.IPPROTO_TCP, r.Port), masquerade()),
			newRule(chainInput, "sessions that are nobody's end at once", tcpTo(r.Port), f.is(), f.to(a), tracked(), marked(false), reset()))
	}
}
