// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// undecided is the source as long as there is no answer.
const undecided = sourceCount

// A lookup asks memory for the answer to a question.
//
// The methods ask… append to dst the answer of one part to the current question, and return its source;
// undecided leaves the question to the next part. An answer of no bytes is a reply with the rcode of empty
// and no records.
type lookup struct {
	wire.Query // the client's query, with the name and type that are looked up

	worker      *Worker // has the buffers and counters that the lookup uses
	plan        *Plan
	from        *wire.Peer
	now         time.Time
	opts        wire.ReplyOptions
	rcode       int         // rcode of a reply without records, see empty
	redirect    *redirect   // nil: the client's own question is looked up
	near        int         // Near of the zone's answer, see [zone.Result]
	staleHeld   bool        // a miss, but the cache has a stale answer
	denial      zone.Denial // of the zone's answer
	cut         uint8       // length in bytes of the parent name whose cached denial answers; 0: none
	useFallback bool        // the zone fallback answered the AAAA query, and is asked first for A records
}

// startRedirect returns the redirect of the query. It makes one if there is none.
func (l *lookup) startRedirect() *redirect {
	if l.redirect == nil {
		l.redirect = &l.worker.room
		*l.redirect = redirect{aliasMsg: l.redirect.aliasMsg[:0], firstAnswer: l.redirect.firstAnswer[:0]}
	}
	return l.redirect
}

// answer appends the answer to the client's question.
func (l *lookup) answer(dst []byte) ([]byte, Source) {
	start := len(dst)
	dst, source := l.ask(dst)
	if l.redirect != nil && len(dst) > start {
		var next restoreState
		if dst, next = l.restoreAnswer(source, dst, start); next == needsRetry {
			dst, source = l.ask(dst)
			if len(dst) > start {
				dst, next = l.restoreAnswer(source, dst, start)
			}
		}
		if next == failed {
			return l.empty(SourceFailure, wire.RcodeServFail, dst)
		}
	}
	return dst, source
}

// restoreAnswer turns dst[start:], the answer to the current question, into the answer to the client's.
// If A records must be queried first they are the current question afterwards.
func (l *lookup) restoreAnswer(source Source, dst []byte, start int) (_ []byte, next restoreState) {
	dst, next = l.worker.restorer.restore(l.redirect, &l.Question, l.opts.Limit, source == SourceFailure, dst, start)
	if next == needsRetry {
		l.opts.EDE = wire.EDENone
		l.SetType(wire.TypeA)
		return dst, next
	}
	l.Type = l.OriginalType()
	if next == restored && l.redirect.synthesized {
		l.worker.tally.each[countSynthesized]++
	}
	return dst, next
}

// ask asks the parts for an answer, in their order.
func (l *lookup) ask(dst []byte) (_ []byte, source Source) {
	p := l.plan
	source = undecided
	if l.useFallback {
		dst, source = l.askFallback(dst)
	}
	if source == undecided && l.takesExtras() {
		switch {
		case p.LocalData == nil:
		case l.redirect.hasAlias():
			dst, source = l.askHosts(dst)
		default:
			dst, source = l.askStatic(dst)
		}
		if source == undecided && p.DNS64 != nil {
			dst, source = l.askPrefix(dst)
		}
		if source == undecided && p.SkyDNS != nil {
			dst, source = l.askSkyDNS(dst)
		}
	}
	if source == undecided && len(p.Zones) > 0 {
		dst, source = l.askZone(dst)
	}
	if source == undecided {
		return l.askCache(dst)
	}
	return dst, source
}

// takesExtras reports whether the optional features apply. The sender of a loop name must recognize it
// unchanged.
func (l *lookup) takesExtras() bool { return l.plan.hasExtras && !wire.IsLoopName(l.Name()) }

// applyExtras redirects the current query as the optional features demand.
func (l *lookup) applyExtras() {
	if l.takesExtras() {
		l.redirectQuery()
	}
}

// empty answers with an rcode and no records.
func (l *lookup) empty(source Source, rcode int, dst []byte) ([]byte, Source) {
	l.rcode = rcode
	return dst, source
}

// askZone asks the zones of the cluster. It redirects the query to the target of an alias that a zone has.
func (l *lookup) askZone(dst []byte) ([]byte, Source) {
	start := len(dst)
	l.worker.rotation++
	dst, result := l.plan.Zones.Answer(&l.Query, l.zoneClient(), l.now, dst)
	l.near = result.Near
	switch result.Verdict {
	case zone.Answered:
		l.opts.EDE, l.denial = result.EDE, result.Denial
		if result.Limited {
			l.worker.tally.each[countZoneShort]++
		}
		return dst, SourceZone
	case zone.NotReady:
		l.opts.EDE = result.EDE
		return l.empty(SourceZone, wire.RcodeServFail, dst)
	case zone.Alias:
		l.opts.EDE = result.EDE
		return l.followAlias(dst, start, len(result.Target))
	case zone.UseFallback:
		if l.plan.Unreachable != nil && l.plan.Unreachable() {
			return l.askFallback(dst)
		}
	case zone.NotInZone:
	}
	return dst, undecided
}

// zoneClient returns the properties of the client that the zone's answer depends on.
func (l *lookup) zoneClient() zone.Client {
	return zone.Client{MaxSize: l.AnswerLimit(&l.opts), Rotation: l.worker.rotation}
}

// askFallback asks the zones for a name whose upstreams are down, failed, or did not answer in time.
func (l *lookup) askFallback(dst []byte) ([]byte, Source) {
	start := len(dst)
	dst, result := l.plan.Zones.AnswerStale(&l.Query, l.zoneClient(), l.now, dst)
	if result.Verdict != zone.Answered {
		return dst[:start], undecided
	}
	l.opts.EDE, l.denial, l.useFallback = result.EDE, result.Denial, true
	return dst, SourceZone
}

// askCache asks the cache. After a cached failure, or in the backoff of a stale answer, it asks the zone fallback too.
func (l *lookup) askCache(dst []byte) ([]byte, Source) {
	start := len(dst)
	l.addSubnetToKey()
	dst, found := l.plan.Cache.Lookup(l.Key(), l.now, dst)
	switch found {
	case cache.Absent, cache.Stale:
		l.staleHeld = found == cache.Stale
		return l.handleMiss(dst)
	case cache.PrefetchDue:
		l.refresh()
	case cache.Failed, cache.StaleBackoff:
		if len(l.plan.Zones) > 0 && !l.redirect.hasAlias() {
			if said, source := l.askFallback(dst); source != undecided {
				return append(dst[:start], said[len(dst):]...), source
			}
		}
		if found == cache.StaleBackoff {
			l.opts.EDE = staleEDE(dst[start:])
			if dst[start+3]&aliasMark != 0 {
				return l.blockAlias(dst, start, SourceStale)
			}
			return dst, SourceStale
		}
		l.opts.EDE = wire.EDECachedError
		return dst, SourceFailure
	case cache.Fresh, cache.Expired, cache.Outdated: // Lookup returns neither Expired nor Outdated
	}
	if dst[start+3]&aliasMark != 0 {
		return l.blockAlias(dst, start, SourceCache)
	}
	return dst, SourceCache
}

// handleMiss handles a query without a usable cache entry. It answers for the block list that has the name.
// It denies the name if a cached denial of a parent covers it, and refuses queries that must not go upstream: without RD, or sent to an upstream by
// this process. A name in hosts without a route gets NODATA.
func (l *lookup) handleMiss(dst []byte) ([]byte, Source) {
	name := l.Name()
	if l.plan.Block != nil {
		if rule := l.plan.blockRule(name); rule.Blocks() {
			return l.askBlock(dst, rule)
		}
	}
	if d := l.redirect; d != nil && d.exists && !d.hasAlias() && l.plan.route(name) == nil {
		return l.empty(SourceStatic, wire.RcodeSuccess, dst)
	}
	loop := wire.IsLoopName(name) && l.plan.Loop != nil && l.plan.Loop(name)
	if !l.staleHeld && !loop {
		if denied, ok := l.answerFromCut(dst); ok {
			return denied, SourceCache
		}
	}
	if !l.RD {
		l.opts.EDE = wire.EDENotAuthoritative // RFC 8914 section 4.21
	}
	if !l.RD || loop {
		return l.empty(SourceRefused, wire.RcodeRefused, dst)
	}
	return dst, undecided
}

// answerFromCut appends the denial of the name that follows from a cached denial of a parent name (RFC
// 8020). It applies to external names only, because cluster names come and go one by one. It does not
// apply to DO queries, which need the proof for their own name, nor to subnet routes. A name of one
// label denies nothing below it: one forged answer would remove a whole top-level domain from the
// node.
func (l *lookup) answerFromCut(dst []byte) ([]byte, bool) {
	cuts, at := &l.worker.r.cuts, l.now.Sub(l.worker.r.epoch)
	if latest := cuts.latest.Load(); latest == 0 || latest <= int64(at) || !l.plan.Cut || l.DO {
		return dst, false
	}
	for child := l.Name(); len(child) > 1; {
		parent := child[1+int(child[0]):]
		if len(parent) <= 2+int(parent[0]) { // one label, or the root
			break
		}
		if cuts.mayHold(parent, at) {
			if denied, ok := l.answerFromCutAt(parent, child, dst); ok {
				return denied, true
			}
		}
		child = parent
	}
	return dst, false
}

// answerFromCutAt appends the denial that follows from the cached one of parent; child is one label
// longer. It uses no denial of the route's own name, which exists by configuration, nor of a name above
// it, which a server of another route denied (CVE-2026-44687).
func (l *lookup) answerFromCutAt(parent, child, dst []byte) ([]byte, bool) {
	name := l.Name()
	route := l.plan.route(name)
	if route == nil || len(parent) <= len(route.Suffix) || route.Exact || route.Subnet || l.plan.owner(name) != nil {
		return dst, false
	}
	start, flags := len(dst), l.Key()[len(name)+2]
	held, ok := l.plan.Cache.LookupNXDomainCut(child, len(parent), flags, l.now, dst)
	if !ok || !l.worker.restorer.hold(held[start:]) {
		return dst, false
	}
	l.cut = uint8(len(parent)) //nolint:gosec // at most 255
	return l.worker.restorer.tail.AppendDenial(held[:start], name, l.Type)
}

// addSubnetToKey adds the client's subnet to the cache key if the name's route forwards it.
func (l *lookup) addSubnetToKey() {
	if l.Subnet == nil || !l.plan.anySubnet {
		return
	}
	if route := l.plan.route(l.Name()); route != nil && route.Subnet {
		l.AddSubnetToKey()
	}
}

// canonical returns the canonical query name.
func canonical(room *[wire.MaxName]byte, ask *wire.Question) []byte {
	question := ask.QuestionSection()
	name := room[:len(question)-4]
	wire.Canonical(name, question[:len(name)])
	return name
}
