// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"encoding/binary"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A reply is an answer under construction.
//
// It begins with the header and the question; records follow. The owner of every record is a pointer into the question
// or, after an alias, into the alias's RDATA, with an endpoint's label before it if needed. So all owners have the
// client's case once its question replaces the canonical one, and no pointer leads beyond the first 3,000 bytes.
type reply struct {
	message
	zoneName
	other          *Zone // zone of the cluster set: a denial of a reverse name needs its objects too; nil: none
	now            time.Time
	fallbackFailed bool   // the fallback has no answer: stale data denies names
	ownSlices      bool   // search the node's slices, not the indexes: a transfer has nodes of earlier versions
	ttl            uint32 // TTL of the current name's records, in seconds
}

// minSteps plus the message's largest size in bytes is the budget of steps for finding an answer's records, see selection.walk:
// about 10 microseconds for 1,232 bytes, 0.2 ms for 64 KiB. Entries that are not given cost steps too: unready, duplicate, or of
// another topology zone.
const minSteps = 1 << 11

// newReply returns an empty reply of the zone to q.
func newReply(z *Zone, q *wire.Query, c Client, now time.Time, dst []byte, last bool) reply {
	room := min(c.MaxSize, maxReply)
	return reply{
		message:  message{q: q, rotation: c.Rotation, dst: dst, start: len(dst), maxSize: room, steps: minSteps + room, ede: wire.EDENone},
		zoneName: zoneName{z: z}, now: now, fallbackFailed: last, ttl: z.ttl,
	}
}

// Number of labels left of the domain, in the tree of svc.
const (
	depthTree      = 1 // svc
	depthNamespace = 2 // <ns>.svc
	depthService   = 3 // <svc>.<ns>.svc
	depthExternal  = 2 // <svc>.<ns>: external zones have no svc label
)

// addrLenOf returns the bytes of an address for the type A or AAAA, 0 for other types.
func addrLenOf(rrtype uint16) int {
	switch rrtype {
	case wire.TypeA:
		return 4
	case wire.TypeAAAA:
		return 16
	}
	return 0
}

// appendSOA appends the SOA record of the zone of the current name.
func (r *reply) appendSOA() {
	soa := r.z.soa
	if r.reverse {
		soa = r.z.soaReverse
	}
	at := len(r.dst) + 2
	r.dst = append(r.dst, 0xc0|byte(r.apex>>8), byte(r.apex))
	r.dst = append(r.dst, soa...)
	if !r.reverse {
		pointer := 0xc000 | uint16(r.apex)
		server := at + fixedLen + len(r.z.server)
		binary.BigEndian.PutUint16(r.dst[server:], pointer)
		binary.BigEndian.PutUint16(r.dst[server+2+len(r.z.hostmaster):], pointer)
	}
	binary.BigEndian.PutUint32(r.dst[at+len(soa)-soaTail:], r.z.cfg.Store.Serial())
}

// resolve answers the current name. The target of an alias becomes the current name, as long as it is in the zones.
func (r *reply) resolve(zs Zones) Result {
	for {
		alias, res := r.lookup()
		if alias == "" {
			return res
		}
		if r.answer == maxAliases {
			r.clear() // with part of the chain, a client would only follow it further
			r.enter(zs, r.q.Name(), wire.HeaderLen)
			return r.deny(AliasChain, needsNothing, wire.RcodeSuccess, wire.EDEStaleAnswer)
		}
		r.appendAlias(alias)
		if r.q.Type == wire.TypeCNAME {
			return r.positive(needsServices)
		}
		target := len(r.dst) - r.start - len(alias)
		if name := r.dst[r.start+target:]; !r.enter(zs, name, target) {
			return r.leave(name)
		}
	}
}

// enter makes name, at that offset in the message, the current name, in the zone that it belongs to. It reports false for a
// name that is outside of the zones, or excluded from its zone.
func (r *reply) enter(zs Zones, name []byte, at int) bool {
	for _, z := range zs {
		r.z = z
		if r.splitName(name, at) {
			return true
		}
	}
	return false
}

// leave ends the answer with an alias whose target the caller must resolve.
func (r *reply) leave(target []byte) Result {
	res := r.positive(needsServices)
	res.Verdict, res.Target = Alias, target
	return res
}

// appendAlias appends the CNAME record of the current name.
func (r *reply) appendAlias(target string) {
	r.appendOwner(r.at)
	r.appendFixed(wire.TypeCNAME, r.ttl, len(target))
	r.dst = append(r.dst, target...)
	r.answer++
}

// lookup answers the current name, or returns the target if it is an alias.
func (r *reply) lookup() (alias string, res Result) {
	if r.labels == 0 {
		return "", r.apexName()
	}
	switch tree := string(r.label(r.labels - 1)); {
	case r.z.cfg.External && tree != "dns", !r.z.cfg.External && tree == "svc":
		return r.serviceTree()
	case !r.z.cfg.External && tree == "pod":
		return "", r.podTree()
	}
	return "", r.ownName()
}

// apexName answers the cluster domain.
func (r *reply) apexName() Result {
	switch r.q.Type {
	case wire.TypeSOA:
		r.appendSOA()
		r.answer++
		return r.finish(wire.RcodeSuccess, 0)
	case wire.TypeNS:
		r.appendOwner(r.apex)
		r.appendFixed(wire.TypeNS, r.z.ttl, len(r.z.server)+2)
		server := len(r.dst) - r.start
		r.dst = append(r.dst, r.z.server...)
		r.appendOwner(r.apex)
		r.answer++
		r.extra += r.appendAddrs(server, r.z.ns4, 4, r.z.ttl) + r.appendAddrs(server, r.z.ns6, 16, r.z.ttl)
		return r.finish(wire.RcodeSuccess, 0)
	}
	return r.nodata(needsNothing)
}

// The zone's own names, as labels left of the domain.
const (
	labelsDNS     = "\x03dns"
	labelsVersion = "\x0bdns-version"
)

// The TXT record with the version of the specification.
const (
	versionText    = "\x051.1.0"
	versionTextSet = "\x051.0.0" // version of the specification for cluster sets
	versionTTL     = 28800       // seconds
)

// ownName answers the zone's own names. It leaves other names to the fallback, which may know them; an external zone denies them.
func (r *reply) ownName() Result {
	switch string(r.labelRange(0, r.labels)) {
	case labelsDNS:
		return r.nodata(needsNothing) // dns has no records, but exists: ns.dns is below it
	case r.z.server:
		return r.serverAddrs()
	case labelsVersion:
		if r.q.Type != wire.TypeTXT {
			return r.nodata(needsNothing)
		}
		version := versionText
		if r.z.inSet() {
			version = versionTextSet
		}
		r.appendOwner(r.at)
		r.appendFixed(wire.TypeTXT, versionTTL, len(version))
		r.dst = append(r.dst, version...)
		r.answer++
		return r.finish(wire.RcodeSuccess, 0)
	}
	if r.z.cfg.External {
		return r.deny(ImpossibleName, needsNothing, wire.RcodeNXDomain, wire.EDENone)
	}
	return r.denyUnlessFallback(ImpossibleName, needsNothing)
}

// serverAddrs answers the name of the zone's server.
func (r *reply) serverAddrs() Result {
	n := 0
	switch r.q.Type {
	case wire.TypeA:
		n = r.appendRotated(r.at, r.z.ns4, 4, r.z.ttl)
	case wire.TypeAAAA:
		n = r.appendRotated(r.at, r.z.ns6, 16, r.z.ttl)
	}
	if n == 0 {
		return r.nodata(needsNothing)
	}
	return r.finish(wire.RcodeSuccess, 0)
}

// serviceTree answers svc.<domain> and names below it, in an external zone those below the domain. For an alias it returns the target.
func (r *reply) serviceTree() (alias string, res Result) {
	s := serviceName{reply: r, left: r.labels - r.z.depth}
	if s.left < -1 { // the name is svc.<domain>
		return "", r.nodata(needsNothing)
	}
	if len(r.z.federations) > 0 && s.left == 1 {
		if suffix, ok := r.z.federations[string(r.label(2))]; ok {
			return r.federated(suffix)
		}
	}
	if ok, on := r.z.exposes(r.labelRange(s.left+1, s.left+2)); !ok {
		return "", r.hidden(on)
	}
	if s.left < 0 {
		return "", r.namespaceName()
	}
	if !s.possible() {
		return "", r.nxdomain(ImpossibleName, needsNothing)
	}
	s.n, _ = r.z.cfg.Store.findNode(r.labelRange(s.left, s.left+2))
	if s.n == nil || s.n.svc == nil {
		return "", r.nxdomain(NoService, needsServices)
	}
	return s.resolve()
}

// hidden denies a name of a namespace that the zone does not expose, see [Zone.exposes].
func (r *reply) hidden(g kindSet) Result {
	if g == needsNothing {
		return r.nxdomain(NotServed, g)
	}
	return r.nxdomain(NoNamespace, g)
}

// namespaceName answers <namespace>.svc and <namespace>.pod, which have no data.
func (r *reply) namespaceName() Result {
	if !r.z.hasNamespace(r.labelRange(0, 1)) {
		return r.nxdomain(NoNamespace, needsNamespaces)
	}
	return r.nodata(needsNothing)
}

// podTree answers pod.<domain> and names below it.
func (r *reply) podTree() Result {
	if r.labels == depthTree {
		return r.nodata(needsNothing)
	}
	if r.z.cfg.Pods == PodsDisabled {
		return r.nxdomain(PodNamesDisabled, needsNothing)
	}
	if ok, on := r.z.exposes(r.labelRange(r.labels-depthNamespace, r.labels-depthTree)); !ok {
		return r.hidden(on)
	}
	switch r.labels {
	case depthNamespace:
		return r.namespaceName()
	case depthService:
		return r.podName()
	}
	return r.nxdomain(ImpossibleName, needsNothing)
}

// podName answers <address>.<namespace>.pod.
func (r *reply) podName() Result {
	var buf [16]byte
	addr := parseDashed(r.label(0), &buf)
	if addr == nil {
		return r.nxdomain(ImpossibleName, needsNothing)
	}
	exists, on, why := false, needsNamespaces, NoNamespace
	if r.z.cfg.Pods == PodsVerified {
		exists, on, why = r.z.cfg.Store.hasPod(r.label(1), addr), needsPods, NoPod
	} else {
		n, _ := r.z.cfg.Store.findNamespace(r.labelRange(1, 2))
		exists = n.exists()
	}
	switch {
	case !exists:
		return r.nxdomain(why, on)
	case addrLenOf(r.q.Type) != len(addr):
		return r.nodata(needsNothing)
	}
	r.appendAddress(r.at, string(addr), r.z.ttl)
	r.answer++
	return r.positive(on)
}

// federated returns the alias target of a name in a federation: the service here if it is reachable, else the name with the suffix.
func (r *reply) federated(suffix string) (alias string, res Result) {
	r.ttl = r.z.ttl
	if r.reachable() {
		return string(r.labelRange(0, 2)) + r.z.tree + string(r.z.domain), res
	}
	if suffix == "" || !r.complete(needsEndpoints) {
		return "", r.answerUnknown()
	}
	if alias = string(r.labelRange(0, r.labels)) + suffix; len(alias) > wire.MaxName {
		return "", r.nxdomain(ImpossibleName, needsNothing)
	}
	return alias, res
}

// reachable reports whether the service in the current name is an ExternalName here, or has a published endpoint.
func (r *reply) reachable() bool {
	if ok, _ := r.z.exposes(r.labelRange(1, 2)); !ok {
		return false
	}
	n, _ := r.z.cfg.Store.findNode(r.labelRange(0, 2))
	return n != nil && n.svc != nil && (n.svc.typ == ExternalName || n.hasPublished())
}

// freshnessOf returns the worst freshness of the kinds, in the zone of the current name and in r.other.
func (r *reply) freshnessOf(g kindSet) freshness {
	worst := fresh
	for k := range Kind(kindCount) {
		if g&(1<<k) == 0 {
			continue
		}
		worst = min(worst, kindFreshness(r.z, k, r.now))
		if r.other != nil {
			worst = min(worst, kindFreshness(r.other, k, r.now))
		}
	}
	return worst
}

// positive ends the answer with its records. If the worst freshness of the kinds is stale, the answer gets EDE 3.
func (r *reply) positive(g kindSet) Result {
	if r.freshnessOf(g) == stale {
		r.ede = wire.EDEStaleAnswer
	}
	return r.finish(wire.RcodeSuccess, 0)
}

// nxdomain denies the name. If Config.Fallthrough covers it and no kind is unsynced, the verdict is NotInZone or, after an alias, Alias.
func (r *reply) nxdomain(why Denial, g kindSet) Result {
	switch {
	case !r.within(r.z.fallthroughs) || r.freshnessOf(g) == unsynced:
		return r.deny(why, g, wire.RcodeNXDomain, wire.EDEStaleNXDomain)
	case r.answer > 0:
		return r.leave(r.name)
	}
	return r.abandon(NotInZone, wire.EDENone)
}

// nodata denies the type at a name that exists.
func (r *reply) nodata(g kindSet) Result {
	return r.deny(NoType, g, wire.RcodeSuccess, wire.EDEStaleAnswer)
}

// deny denies the name or type if the kinds are fresh. Otherwise it leaves the answer to the fallback. Without a fallback,
// stale or unwatched kinds deny too, but unsynced kinds do not. If the fallback has failed, stale kinds deny too.
func (r *reply) deny(why Denial, g kindSet, rcode byte, staleCode int) Result {
	if t := r.freshnessOf(g); t != fresh {
		switch {
		case r.z.cfg.HasFallback() && (t != stale || !r.fallbackFailed):
			return r.abandon(UseFallback, wire.EDENone)
		case t == unsynced:
			return r.abandon(NotReady, wire.EDENotReady)
		case t == stale:
			r.ede = staleCode
		}
	}
	r.denial = why
	r.appendSOA()
	return r.finish(rcode, 1)
}

// denyUnlessFallback leaves a name that this zone cannot know to the fallback. Without a fallback it denies the name.
func (r *reply) denyUnlessFallback(why Denial, g kindSet) Result {
	if r.z.cfg.HasFallback() {
		return r.abandon(UseFallback, wire.EDENone)
	}
	return r.nxdomain(why, g)
}

// complete reports whether the store has all objects of the kinds, even if stale: an incomplete set is no answer.
func (r *reply) complete(g kindSet) bool { return r.freshnessOf(g) >= stale }

// answerUnknown ends the answer for a name whose objects the store lacks or has refused: the fallback answers it, if there is one.
func (r *reply) answerUnknown() Result {
	if r.z.cfg.HasFallback() {
		return r.abandon(UseFallback, wire.EDENone)
	}
	return r.abandon(NotReady, wire.EDENotReady)
}
