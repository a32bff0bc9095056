// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/rules"
)

// The names of tables. The lease table of an agent has the agent's name after the
// prefix. The name of an agent has no dot.
const (
	TraceTable    = "node-cache.doctor" // of a running doctor
	fallbackTable = "node-cache"
	leasePrefix   = "node-cache-"
)

// The names of sets, maps and chains in the tables.
const (
	leaseSet    = "lease"  // with the family
	drainSet    = "drain"  // with the family
	movedSet    = "moved"  // with the family: sessions that began during a drain
	targetMap   = "__map"  // with a number
	ownerPrefix = "owner-" // of an empty chain in the fallback table that names its writer
)

// The priorities of base chains. DNAT and masquerading come just before those of
// kube-proxy.
const (
	priorityRaw         = -300
	priorityDNAT        = -101
	priorityFilter      = 0
	priorityPostrouting = 99
)

// Sessions that begin during a drain are recorded for longer than any drain lasts. The
// set has room for as many as a node can begin in that time.
const (
	movedTime = 10 * time.Minute
	movedSize = 1 << 16
)

// A table is a table of this package, as data.
type table struct {
	name   string
	chains []chain // a chain precedes those that jump to it
	sets   []set
	rules  []rule
}

// A chain is a base chain if it has a kind. Otherwise rules jump to it.
type chain struct {
	name     string
	kind     string // "filter", "nat", "route"
	hook     uint32
	priority int32
}

// A set holds addresses, or, as a map, fallback targets by number.
type set struct {
	name                       string
	flags                      uint32
	key, keyLen, data, dataLen uint32
	elements                   []element
	size                       uint32        // maximum; 0: no limit
	timeout                    time.Duration // default of elements; 0: none
}

// A rule is a rule of a chain.
type rule struct {
	chain   string
	comment string // stored with the rule in the kernel
	exprs   []expr.Any
	targets *set // an anonymous map of this rule, or nil
}

func newRule(chain, comment string, parts ...match) rule {
	return rule{chain: chain, comment: comment, exprs: slices.Concat(parts...)}
}

// render returns the tables of r: the lease table and the fallback table, which may be
// nil.
func render(r *rules.Rules) (leases, fallback *table) {
	return renderLeases(r), renderFallback(r)
}

// families returns the families of r's addresses.
func families(r *rules.Rules) []family {
	var all []family
	for _, f := range []family{{v6: false}, {v6: true}} {
		if len(r.Family(f.v6).Addresses) > 0 {
			all = append(all, f)
		}
	}
	return all
}

// addresses returns a set of addresses of the family whose elements have timeouts.
func (f family) addresses(name string) set {
	kind := uint32(typeIPv4)
	if f.v6 {
		kind = typeIPv6
	}
	return set{name: name + f.suffix(), flags: unix.NFT_SET_TIMEOUT, key: kind, keyLen: f.size()}
}

// sessions returns a set of TCP sessions of the family, to which rules add elements.
func (f family) sessions(name string) set {
	kind := uint32(typeIPv4)
	if f.v6 {
		kind = typeIPv6
	}
	return set{
		name: name + f.suffix(), flags: unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL,
		key: kind<<typeShift | typeService, keyLen: f.size() + 4,
		size: movedSize, timeout: movedTime,
	}
}

// targets returns the map of a fallback. It is anonymous, so that the program nft can
// read back its own listing of the rules.
func (f family) targets(list []netip.AddrPort) *set {
	kind := uint32(typeIPv4)
	if f.v6 {
		kind = typeIPv6
	}
	s := &set{
		name: targetMap + "%d", flags: unix.NFT_SET_MAP | unix.NFT_SET_ANONYMOUS | unix.NFT_SET_CONSTANT,
		key: typeInteger, keyLen: 4, data: kind<<typeShift | typeService, dataLen: f.size() + 4,
	}
	for i, t := range list {
		data := binary.BigEndian.AppendUint16(t.Addr().AsSlice(), t.Port())
		s.elements = append(s.elements, element{
			key:  binary.NativeEndian.AppendUint32(nil, uint32(i)),
			data: append(data, 0, 0), // padded to the size of a register
		})
	}
	return s
}

// parseTarget parses the data of an element that targets made.
func parseTarget(data []byte) (netip.AddrPort, bool) {
	if len(data) != 8 && len(data) != 20 {
		return netip.AddrPort{}, false
	}
	addr, port := data[:len(data)-4], data[len(data)-4:]
	a, ok := netip.AddrFromSlice(addr)
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port)), ok
}

// leaseTable returns the name of an agent's lease table.
func leaseTable(owner string) string { return leasePrefix + owner }

// isAgentTable reports whether a table of that name belongs to an agent.
func isAgentTable(name string) bool {
	return name == fallbackTable || strings.HasPrefix(name, leasePrefix)
}

// The chains of the lease table. Every packet of the node passes the base chains, so
// they match ports only and leave the rest to the other chains.
const (
	chainQuery      = "query"      // packets to the DNS port
	chainReply      = "reply"      // packets of this node from the DNS port
	chainRewrite    = "rewrite"    // queries to the Service, rewritten to the agent
	chainPrerouting = "prerouting" // packets that arrive
	chainOutput     = "output"     // packets of this node's processes
	chainRoute      = "output-route"
)

// renderLeases returns the lease table, which directs packets to the agent while it
// holds the lease on their destination.
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
		addRewriteChains(t, r)
	}
	for _, f := range families(r) {
		part := r.Family(f.v6)
		if r.Mode == rules.Transparent {
			addTransparentRules(t, f, &part)
		} else {
			addLinkLocalRules(t, f, &part)
		}
		if r.Admin != 0 {
			addAdminRules(t, f, &part)
		}
	}
	return t
}

// addLinkLocalRules adds the rules of a family whose clients query the agent's address.
func addLinkLocalRules(t *table, f family, r *rules.Rules) {
	t.rules = append(t.rules, newRule(chainQuery, "leased: to the agent", f.is(), f.toAny(leaseSet), notrack()))
	for _, a := range r.Addresses {
		t.rules = append(t.rules,
			newRule(chainQuery, "from the agent to itself", f.is(), f.to(a), marked(true), notrack()),
			newRule(chainReply, "from the agent", f.is(), f.from(a), notrack()))
	}
	// The first packet of a new session decides. Only that packet distinguishes it from the
	// sessions that the agent still has.
	t.rules = append(t.rules,
		newRule(chainQuery, "draining: new sessions to the fallback", f.is(), f.toAny(drainSet), f.recordSession(movedSet), accept()),
		newRule(chainQuery, "draining: open sessions to the agent", f.is(), f.toAny(drainSet), f.notRecorded(movedSet), notrack()))
}

// addRewriteChains adds the chains that rewrite the destination of queries. Those of this
// node's processes need a chain of type route, which repeats the route lookup. Answers
// keep their route and skip it.
func addRewriteChains(t *table, r *rules.Rules) {
	t.chains = append([]chain{{name: chainRewrite}}, t.chains...)
	t.chains = append(t.chains, chain{name: chainRoute, kind: "route", hook: unix.NF_INET_LOCAL_OUT, priority: priorityRaw})
	t.rules = append(t.rules,
		newRule(chainRoute, "queries of this node", udpTo(r.Port), goTo(chainRewrite)),
		newRule(chainRoute, "queries of this node", tcpTo(r.Port), goTo(chainRewrite)))
}

// addTransparentRules adds the rules of a family whose clients query the Service's address.
func addTransparentRules(t *table, f family, r *rules.Rules) {
	for _, s := range r.Services {
		a := r.Target(s)
		t.rules = append(t.rules,
			newRule(chainRewrite, "leased: to the agent", f.is(), f.to(s), f.toAny(leaseSet), marked(false), f.rewriteAddress(true, a), notrack()),
			newRule(chainRewrite, "draining: new sessions to the service", f.is(), f.to(s), f.toAny(drainSet), f.recordSession(movedSet), accept()),
			newRule(chainRewrite, "draining: open sessions to the agent",
				f.is(), f.to(s), f.toAny(drainSet), f.notRecorded(movedSet), marked(false), f.rewriteAddress(true, a), notrack()),
			// A process of this node that queries a uses a as its source.
			newRule(chainReply, "from the agent as the service", f.is(), f.from(a), f.notTo(a), f.rewriteAddress(false, s), notrack()))
	}
	for _, a := range r.Addresses {
		t.rules = append(t.rules,
			newRule(chainRewrite, "to the agent itself", f.is(), f.to(a), notrack()),
			newRule(chainQuery, "to the agent itself", f.is(), f.to(a), notrack()),
			newRule(chainReply, "from the agent", f.is(), f.from(a), notrack()))
	}
}

// addAdminRules adds the rules of the admin server.
func addAdminRules(t *table, f family, r *rules.Rules) {
	for _, a := range r.Addresses {
		t.rules = append(t.rules,
			newRule(chainPrerouting, "to the admin server", tcpTo(r.Admin), f.is(), f.to(a), notrack()),
			newRule(chainOutput, "to the admin server", tcpTo(r.Admin), f.is(), f.to(a), notrack()),
			newRule(chainOutput, "from the admin server", tcpFrom(r.Admin), f.is(), f.from(a), notrack()))
	}
}

// The chains of the fallback table, which outlives the agent.
const (
	chainFallback           = "fallback" // queries that conntrack tracks are not the agent's
	chainFallbackPrerouting = "fallback-prerouting"
	chainFallbackOutput     = "fallback-output"
	chainMasquerade         = "fallback-postrouting"
	chainInput              = "input"
)

// renderFallback returns the table that sends queries without a lease to the fallback,
// or nil if there is no fallback.
//
// It does not match leases: packets for the agent are untracked and never reach NAT.
func renderFallback(r *rules.Rules) *table {
	if r.Mode != rules.LinkLocal {
		return nil
	}
	t := &table{
		name: fallbackTable,
		chains: []chain{
			{name: ownerPrefix + r.Owner},
			{name: chainFallback},
			{name: chainFallbackPrerouting, kind: "nat", hook: unix.NF_INET_PRE_ROUTING, priority: priorityDNAT},
			{name: chainFallbackOutput, kind: "nat", hook: unix.NF_INET_LOCAL_OUT, priority: priorityDNAT},
			{name: chainMasquerade, kind: "nat", hook: unix.NF_INET_POST_ROUTING, priority: priorityPostrouting},
			{name: chainInput, kind: "filter", hook: unix.NF_INET_LOCAL_IN, priority: priorityFilter},
		},
		rules: []rule{
			newRule(chainFallbackPrerouting, "packets that arrive", goTo(chainFallback)),
			newRule(chainFallbackOutput, "packets of this node", goTo(chainFallback)),
		},
	}
	anywhere := false
	for _, f := range families(r) {
		if part := r.Family(f.v6); len(part.Fallback) > 0 {
			addFallbackRules(t, f, &part)
			anywhere = true
		}
	}
	if !anywhere {
		return nil
	}
	return t
}

// addFallbackRules adds the rules of a family that has targets.
//
// The queries leave with an address of the node as their source. A process of the node
// has the agent's address as its source, and the answers to a pod must return through
// the node to be translated back.
func addFallbackRules(t *table, f family, r *rules.Rules) {
	choice := f.targets(r.Fallback)
	for _, a := range r.Addresses {
		// A session of the agent is not moved: its next packet is no SYN.
		query := slices.Concat(udpTo(r.Port), f.is(), f.to(a), marked(false))
		session := slices.Concat(tcpTo(r.Port), flags(flagSYN|flagACK, flagSYN), f.is(), f.to(a), marked(false))
		queries := newRule(chainFallback, "not leased: to a fallback", query, f.dnatRandom(choice))
		sessions := newRule(chainFallback, "not leased: new sessions to a fallback", session, f.dnatRandom(choice))
		queries.targets, sessions.targets = choice, choice
		t.rules = append(t.rules, queries, sessions,
			// A packet that is between two rules while they are replaced finds the old map
			// empty: 10 of 28,000 packets did in 4,000 replacements.
			newRule(chainFallback, "not leased: to a fallback, during an update", query, f.dnatTo(r.Fallback[0])),
			newRule(chainFallback, "not leased: new sessions to a fallback, during an update", session, f.dnatTo(r.Fallback[0])),
			newRule(chainMasquerade, "with the node's address", f.is(), isDNAT(), f.originallyTo(a, unix.IPPROTO_UDP, r.Port), masquerade()),
			newRule(chainMasquerade, "with the node's address", f.is(), isDNAT(), f.originallyTo(a, unix.IPPROTO_TCP, r.Port), masquerade()),
			newRule(chainInput, "reset sessions that no process has", tcpTo(r.Port), f.is(), f.to(a), tracked(), marked(false), reset()))
	}
}
