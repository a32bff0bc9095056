// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// The names of tables. The name of an agent's lease table is the prefix and the agent's
// name. The name of an agent has no dot.
const (
	TraceTable    = "node-cache.doctor" // table of a [Tracer], which the doctor runs
	fallbackTable = "node-cache"
	leasePrefix   = "node-cache-"
)

// The names of sets, maps and chains in the tables.
const (
	leaseSet    = "lease"  // lease4 and lease6: addresses whose lease is held
	drainSet    = "drain"  // drain4 and drain6: addresses whose lease was released
	movedSet    = "moved"  // moved4 and moved6: sessions that began during a drain
	targetMap   = "__map"  // the kernel appends a number
	ownerPrefix = "owner-" // prefix of an empty chain whose name says which agent wrote the fallback table
)

// The priorities of base chains. The leases decide first. Then packets to and from the fallback
// get tracked, before other programs exempt packets from conntrack at -300. DNAT and masquerading
// come just before those of kube-proxy.
const (
	// PriorityTrack is that of the chains for rules.Rules.Track.
	PriorityTrack = -310

	priorityLease       = -320
	priorityTrack       = PriorityTrack
	priorityMark        = -150
	priorityDNAT        = -101
	priorityFilter      = 0
	priorityPostrouting = 99
)

// Sessions that begin during a drain are recorded for longer than any drain lasts. The
// set has room for movedSize sessions of each IP family; recordSession says what follows if it is full.
const (
	movedTime = 10 * time.Minute
	movedSize = 1 << 16
)

// parts yields the part of r of each IP family that r.Addresses has.
func parts(r *rules.Rules) iter.Seq2[family, *rules.Rules] {
	return func(yield func(family, *rules.Rules) bool) {
		for _, v6 := range []bool{false, true} {
			if part := r.Family(v6); len(part.Addresses) > 0 && !yield(familyOf(v6), &part) {
				return
			}
		}
	}
}

// addSets adds the sets of the lease table, whose elements have timeouts.
func addSets(tx *batch) {
	for _, f := range []family{familyOf(false), familyOf(true)} {
		tx.set(leaseSet+f.suffix, unix.NFT_SET_TIMEOUT, f.kind, f.size)
		tx.set(drainSet+f.suffix, unix.NFT_SET_TIMEOUT, f.kind, f.size)
		// Rules add elements to the set of moved sessions: the client's address and port.
		tx.set(movedSet+f.suffix, unix.NFT_SET_TIMEOUT|unix.NFT_SET_EVAL, f.kind<<typeShift|typeService, f.size+4,
			nested(unix.NFTA_SET_DESC, number(unix.NFTA_SET_DESC_SIZE, movedSize)), milliseconds(unix.NFTA_SET_TIMEOUT, movedTime))
	}
}

// dnatRandom rewrites a connection's destination to a random one of the targets, which it
// adds as a map. The map is anonymous and belongs to one rule, so that the program nft can
// read back its own listing of the rules.
func (f family) dnatRandom(tx *batch, targets []netip.AddrPort) match {
	const name = targetMap + "%d" // the kernel sets the number
	tx.set(name, unix.NFT_SET_MAP|unix.NFT_SET_ANONYMOUS|unix.NFT_SET_CONSTANT, typeInteger, 4,
		number(unix.NFTA_SET_DATA_TYPE, f.kind<<typeShift|typeService), number(unix.NFTA_SET_DATA_LEN, f.size+4),
		nested(unix.NFTA_SET_DESC, number(unix.NFTA_SET_DESC_SIZE, uint32(len(targets)))),
		netlink.Attribute{Type: unix.NFTA_SET_USERDATA, Data: userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, hostByteOrder)})
	list := make([]element, len(targets))
	for i, t := range targets {
		list[i] = element{key: binary.NativeEndian.AppendUint32(nil, uint32(i)), data: appendTarget(nil, t)}
	}
	tx.addElements(name, tx.setID, list...)
	return match{
		&expr.Numgen{Register: register, Modulus: uint32(len(targets)), Type: unix.NFT_NG_RANDOM},
		&expr.Lookup{SourceRegister: register, DestRegister: register, IsDestRegSet: true, SetName: name, SetID: tx.setID},
		f.dnat(),
	}
}

// appendTarget appends an address and a port, padded to the size of a register.
func appendTarget(data []byte, t netip.AddrPort) []byte {
	return append(binary.BigEndian.AppendUint16(append(data, t.Addr().AsSlice()...), t.Port()), 0, 0)
}

// parseTarget parses what appendTarget appended.
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

// addLeases fills the lease table, which directs packets to the agent while it holds the
// lease on their destination. A chain precedes those that jump to it.
func addLeases(tx *batch, r *rules.Rules) {
	addSets(tx)
	arriving, rewrites := chainQuery, len(r.Redirects()) > 0
	tx.chain(chainQuery)
	if rewrites {
		arriving = chainRewrite
		tx.chain(chainRewrite)
	}
	tx.chain(chainReply)
	tx.baseChain(chainPrerouting, "filter", unix.NF_INET_PRE_ROUTING, priorityLease)
	tx.baseChain(chainOutput, "filter", unix.NF_INET_LOCAL_OUT, priorityLease)
	tx.rule(chainPrerouting, "queries", udpTo(r.Port), goTo(arriving))
	tx.rule(chainPrerouting, "queries", tcpTo(r.Port), goTo(arriving))
	tx.rule(chainOutput, "answers", udpFrom(r.Port), goTo(chainReply))
	tx.rule(chainOutput, "answers", tcpFrom(r.Port), goTo(chainReply))
	if r.FallsBack() {
		addTestRules(tx, chainOutput, r.Port)
	}
	tx.rule(chainOutput, "queries of this node", udpTo(r.Port), goTo(chainQuery))
	tx.rule(chainOutput, "queries of this node", tcpTo(r.Port), goTo(chainQuery))
	if rewrites {
		// Rewritten queries of this node's processes need a chain of type route, which repeats
		// the route lookup. Answers keep their route and skip it.
		tx.baseChain(chainRoute, "route", unix.NF_INET_LOCAL_OUT, priorityLease)
		if r.FallsBack() {
			addTestRules(tx, chainRoute, r.Port)
		}
		tx.rule(chainRoute, "queries of this node", udpTo(r.Port), goTo(chainRewrite))
		tx.rule(chainRoute, "queries of this node", tcpTo(r.Port), goTo(chainRewrite))
	}
	for f, part := range parts(r) {
		addRedirectRules(tx, f, part)
		if r.Mode == rules.Transparent {
			addTransparentRules(tx, f, part)
		} else {
			addLinkLocalRules(tx, f, part)
		}
		if r.Admin != 0 {
			addAdminRules(tx, f, part)
		}
	}
}

// addTestRules takes tests of the fallback past the lease.
func addTestRules(tx *batch, chain string, port uint16) {
	tx.rule(chain, "test of the fallback", udpTo(port), isTest(), accept())
	tx.rule(chain, "test of the fallback", tcpTo(port), isTest(), accept())
}

// addLinkLocalRules adds the rules of a family whose clients query the agent's address.
func addLinkLocalRules(tx *batch, f family, r *rules.Rules) {
	for _, a := range r.FallbackKeys() { // the sets have the addresses of redirects too
		tx.rule(chainQuery, "leased: to the agent", f.is(), f.to(a), f.toAny(leaseSet), notrack())
	}
	for _, a := range r.Addresses {
		tx.rule(chainQuery, "from the agent to itself", f.is(), f.to(a), marked(true), notrack())
		tx.rule(chainReply, "from the agent", f.is(), f.from(a), notrack())
	}
	// The SYN decides where a session goes: nothing else distinguishes a new session from one
	// that the agent still has.
	for _, a := range r.FallbackKeys() {
		tx.rule(chainQuery, "draining: new sessions to the fallback", f.is(), f.to(a), f.toAny(drainSet), f.recordSession(movedSet), accept())
		tx.rule(chainQuery, "draining: open sessions to the agent", f.is(), f.to(a), f.toAny(drainSet), f.notRecorded(movedSet), notrack())
	}
}

// addRedirectRules adds the rules that rewrite the addresses of a family to the agent's.
func addRedirectRules(tx *batch, f family, r *rules.Rules) {
	redirects := r.Redirects()
	for _, d := range redirects {
		s, a := d.From, d.To
		tx.rule(chainRewrite, "leased: to the agent", f.is(), f.to(s), f.toAny(leaseSet), marked(false), f.rewriteAddress(f.dest, a), notrack())
		tx.rule(chainRewrite, "draining: new sessions to the server", f.is(), f.to(s), f.toAny(drainSet), f.recordSession(movedSet), accept())
		tx.rule(chainRewrite, "draining: open sessions to the agent",
			f.is(), f.to(s), f.toAny(drainSet), f.notRecorded(movedSet), marked(false), f.rewriteAddress(f.dest, a), notrack())
		// A process of this node queries a from a: the answer, from a to a, is not rewritten.
		tx.rule(chainReply, "from the agent as the server", f.is(), f.from(a), f.notTo(a), f.rewriteAddress(f.source, s), notrack())
	}
	if r.Mode == rules.LinkLocal && len(redirects) > 0 {
		tx.rule(chainRewrite, "all others", f.is(), goTo(chainQuery))
	}
}

// addTransparentRules adds the rules of a family whose clients query the Service's address.
func addTransparentRules(tx *batch, f family, r *rules.Rules) {
	for _, a := range r.Addresses {
		tx.rule(chainRewrite, "to the agent itself", f.is(), f.to(a), notrack())
		tx.rule(chainQuery, "to the agent itself", f.is(), f.to(a), notrack())
		tx.rule(chainReply, "from the agent", f.is(), f.from(a), notrack())
	}
}

// addAdminRules adds the rules of the admin server.
func addAdminRules(tx *batch, f family, r *rules.Rules) {
	for _, a := range r.Addresses {
		tx.rule(chainPrerouting, "to the admin server", tcpTo(r.Admin), f.is(), f.to(a), notrack())
		tx.rule(chainOutput, "to the admin server", tcpTo(r.Admin), f.is(), f.to(a), notrack())
		tx.rule(chainOutput, "from the admin server", tcpFrom(r.Admin), f.is(), f.from(a), notrack())
	}
}

// The chains of the fallback table, which outlives the agent.
const (
	chainFallback           = "fallback" // queries that no rule of a lease table exempted from conntrack
	chainFallbackPrerouting = "fallback-prerouting"
	chainFallbackOutput     = "fallback-output"
	chainMasquerade         = "fallback-postrouting"
	chainTrackPrerouting    = "track-prerouting"
	chainTrackOutput        = "track-output"
	chainTrackQuery         = "track-query" // packets to the DNS port
	chainTrackOwn           = "track-own"   // packets of this node to a port of the fallback
	chainTrackReply         = "track-reply" // packets from a port of the fallback
	chainMark               = "mark"
	chainInput              = "input"
	chainForward            = "forward"
	chainOwn                = "own" // packets of this node's processes
)

// addFallback adds the table that sends queries without a lease to the fallback, if there
// is one. It does not match leases: packets for the agent are untracked and never reach NAT.
func addFallback(tx *batch, r *rules.Rules) {
	reachable := func(t netip.AddrPort) bool { part := r.Family(t.Addr().Is6()); return len(part.FallbackKeys()) > 0 }
	if !slices.ContainsFunc(r.Fallback, reachable) {
		return
	}
	tx.addTable(fallbackTable, 0)
	tx.chain(ownerPrefix + r.Owner)
	tx.chain(chainFallback)
	tx.baseChain(chainFallbackPrerouting, "nat", unix.NF_INET_PRE_ROUTING, priorityDNAT)
	tx.baseChain(chainFallbackOutput, "nat", unix.NF_INET_LOCAL_OUT, priorityDNAT)
	tx.baseChain(chainMasquerade, "nat", unix.NF_INET_POST_ROUTING, priorityPostrouting)
	tx.baseChain(chainInput, "filter", unix.NF_INET_LOCAL_IN, priorityFilter)
	if r.Mode == rules.Transparent { // the Service's address is not local
		tx.baseChain(chainForward, "filter", unix.NF_INET_FORWARD, priorityFilter)
		tx.baseChain(chainOwn, "filter", unix.NF_INET_LOCAL_OUT, priorityFilter)
	}
	if r.Track {
		addTrackRules(tx, r)
	}
	if r.MarkHost {
		tx.baseChain(chainMark, "filter", unix.NF_INET_POST_ROUTING, priorityMark)
	}
	tx.rule(chainFallbackPrerouting, "packets that arrive", goTo(chainFallback))
	tx.rule(chainFallbackOutput, "packets of this node", goTo(chainFallback))
	for f, part := range parts(r) {
		if len(part.Fallback) == 0 {
			continue
		}
		addFallbackRules(tx, f, part)
		if r.MarkHost {
			addMarkRules(tx, f, part)
		}
	}
}

// addFallbackRules adds the rules of a family that has targets.
//
// The queries leave with an address of the node as their source. A process of the node
// has the agent's address as its source, and the answers to a pod must return through
// the node to be translated back.
func addFallbackRules(tx *batch, f family, r *rules.Rules) {
	resets := []string{chainInput}
	if r.Mode == rules.Transparent {
		resets = append(resets, chainForward, chainOwn)
	}
	for _, a := range r.FallbackKeys() {
		// A TCP session with the agent is not sent to a fallback when the lease ends: its next packet is no SYN.
		query := slices.Concat(udpTo(r.Port), f.is(), f.to(a), marked(false))
		session := slices.Concat(tcpTo(r.Port), flags(flagSYN|flagACK, flagSYN), f.is(), f.to(a), marked(false))
		tx.rule(chainFallback, "not leased: to a fallback", query, f.dnatRandom(tx, r.Fallback))
		tx.rule(chainFallback, "not leased: new sessions to a fallback", session, f.dnatRandom(tx, r.Fallback))
		// A packet that passes the rules while they are replaced may find the old map empty: 10 of 28,000 packets did
		// in 4,000 replacements. These rules need no map.
		tx.rule(chainFallback, "not leased: to a fallback, during an update", query, f.dnatTo(r.Fallback[0]))
		tx.rule(chainFallback, "not leased: new sessions to a fallback, during an update", session, f.dnatTo(r.Fallback[0]))
		for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			tx.rule(chainMasquerade, "with the node's address", f.is(), isDNAT(), f.originallyTo(a, proto, r.Port), masquerade())
		}
		for _, chain := range resets {
			tx.rule(chain, "reset sessions that no process has", tcpTo(r.Port), f.is(), f.to(a), tracked(), marked(false), reset())
		}
	}
}

// addTrackRules has conntrack track all packets to and from the fallback, whatever later rules of priority raw say: the kernel
// ignores notrack for a packet that has a template. The template is that of the default zone, so flows that are tracked anyway stay
// as they are. The queries of this node to a target are tracked for the sake of their replies, which look like those of the fallback.
//
// Replies are matched by their source. Otherwise any pod could fill the conntrack table, from which its packets are exempt. So those of
// a target that has just been removed are lost.
//
// Every packet of the node passes the base chains, so they match ports only.
func addTrackRules(tx *batch, r *rules.Rules) {
	for _, chain := range []string{chainTrackQuery, chainTrackOwn, chainTrackReply} {
		tx.chain(chain)
	}
	tx.baseChain(chainTrackPrerouting, "filter", unix.NF_INET_PRE_ROUTING, priorityTrack)
	tx.baseChain(chainTrackOutput, "filter", unix.NF_INET_LOCAL_OUT, priorityTrack)
	for _, chain := range []string{chainTrackPrerouting, chainTrackOutput} {
		tx.rule(chain, "queries", udpTo(r.Port), jumpTo(chainTrackQuery))
		tx.rule(chain, "queries", tcpTo(r.Port), jumpTo(chainTrackQuery))
	}
	for _, port := range r.FallbackPorts() {
		tx.rule(chainTrackPrerouting, "replies", udpFrom(port), jumpTo(chainTrackReply))
		tx.rule(chainTrackPrerouting, "replies", tcpFrom(port), jumpTo(chainTrackReply))
		tx.rule(chainTrackOutput, "queries of this node", udpTo(port), jumpTo(chainTrackOwn))
		tx.rule(chainTrackOutput, "queries of this node", tcpTo(port), jumpTo(chainTrackOwn))
	}
	tx.rule(chainTrackQuery, "to Cilium's proxy", isProxied(), accept())
	for f, part := range parts(r) {
		for _, a := range part.FallbackKeys() {
			tx.rule(chainTrackQuery, "not leased", f.is(), f.to(a), tracked(), marked(false), track())
		}
		for _, t := range part.Fallback {
			tx.rule(chainTrackReply, "to this node", f.is(), f.from(t.Addr()), tracked(), local(unix.NFTA_FIB_F_DADDR), track())
			tx.rule(chainTrackOwn, "of this node", f.is(), f.to(t.Addr()), tracked(), local(unix.NFTA_FIB_F_SADDR), track())
		}
	}
}

// addMarkRules marks the queries that masquerading then gives the node's address.
func addMarkRules(tx *batch, f family, r *rules.Rules) {
	for _, a := range r.FallbackKeys() {
		for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			tx.rule(chainMark, "as the node's own", isDNAT(), isOriginal(), f.is(), f.originallyTo(a, proto, r.Port), markHost())
		}
	}
}
