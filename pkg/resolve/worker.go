// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/tsig"
	"github.com/nodecache/node-cache/pkg/wire"
	"github.com/nodecache/node-cache/pkg/zone"
)

// A Worker is the resolver's state for one goroutine that reads packets: the current query, its reply
// options, and counters that are added to the resolver's once per batch.
//
// Its methods answer in two steps. The methods ask… append to dst the answer of one part to the current
// question, and return its source; undecided leaves the query to the next part. An answer of no bytes is
// a reply with the rcode of empty and no records. Then answer makes the client's reply of it.
type Worker struct {
	r           *Resolver
	plan        *Plan // of the current query
	from        *wire.Peer
	retried     *sender // of a DNS64 retry: the client as it was when the query arrived; nil otherwise
	now         time.Time
	q           wire.Query
	opts        wire.ReplyOptions
	rcode       int // of a reply without records
	cookie      [cookieLen]byte
	redirect    redirect     // from the client's question to the one looked up
	signer      *tsig.Signer // of the reply; nil: the query is not signed
	walker      *Worker      // looks names up for walk; nil: not needed yet
	walk        *walk        // of the current query; nil if walker is
	walking     bool         // a lookup of the walk must wait for upstream
	inner       bool         // the reply is for a walk, and not counted
	restorer    restorer
	near        int         // of the zone's answer, see [zone.Result]
	rotation    uint32      // counts zone answers, to rotate their addresses
	usage       *pods.Usage // of the client; nil: not counted
	tally       tally
	batch       wire.SendBatch // upstream queries and replies to send at the end of the batch
	spareQuery  *inFlight      // for the next query to start; nil: not allocated
	staleHeld   bool           // a stale answer is held for the current miss
	addrProven  bool           // the source address of the current miss is verified
	useFallback bool           // the zone fallback answered the AAAA query, and is asked first for A records
	elapsed     time.Duration  // since the query arrived; 0 except for DNS64 retries
}

// NewWorker returns a worker.
func (r *Resolver) NewWorker() *Worker { return &Worker{r: r} }

// undecided is the source of no answer.
const undecided = sourceCount

// AnswerFromMemory answers the query in pkt from memory if it can, and appends the reply to dst. After
// wire.Missed the caller must call Resolve; until then pkt and from must not change.
func (w *Worker) AnswerFromMemory(pkt []byte, from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict) {
	w.plan, w.from, w.now = w.r.plan.Load(), from, now
	w.tally.begin(now)
	if rcode := w.q.Parse(pkt); rcode != wire.RcodeSuccess {
		return w.answerFault(rcode, pkt, dst)
	}
	if w.isSelfQuery() {
		return w.answerSelf(dst), wire.Answered
	}
	w.tally.query(from, w.q.Type)
	if w.plan.Tap != nil {
		w.plan.Tap.ClientQuery(from, now, pkt)
	}
	var pod *pods.Pod
	if w.usage = nil; w.plan.Pods != nil {
		pod, w.usage = w.plan.Pods.UsageOf(from.Addr.Addr())
	}
	w.initReplyOptions()
	w.redirect.active, w.useFallback, w.walking = false, false, false
	if w.q.Class != wire.ClassIN || oddType(w.q.Type) || w.q.TSIG > 0 && w.plan.verifies(from.Addr.Addr()) {
		return w.answerUnusual(pkt, dst)
	}
	if w.plan.SearchPath {
		w.beginSearch(pod)
	}
	w.applyExtras()
	return w.answer(dst)
}

// takesExtras reports whether the optional features apply. The sender of a loop name must recognize it
// unchanged.
func (w *Worker) takesExtras() bool { return w.plan.hasExtras && !wire.IsLoopName(w.q.Name()) }

// applyExtras redirects the current query as the optional features demand.
func (w *Worker) applyExtras() {
	if w.takesExtras() {
		w.redirectQuery()
	}
}

// answer appends the reply to the current query.
func (w *Worker) answer(dst []byte) ([]byte, wire.Verdict) {
	start := len(dst)
	dst, source := w.lookup(dst)
	if w.redirect.active && w.redirect.mayWalk(dst[start:]) {
		dst, source = w.walkFromMemory(source, dst, start)
	}
	if len(dst) > start {
		dst = w.q.Reply(dst, start, &w.opts)
	}
	return w.finishReply(source, dst, start)
}

// lookup appends the answer to the current query.
func (w *Worker) lookup(dst []byte) ([]byte, Source) {
	start := len(dst)
	dst, source := w.ask(dst)
	if w.redirect.active && len(dst) > start {
		var next restoreState
		if dst, next = w.restoreAnswer(source, dst, start); next == needsRetry {
			dst, source = w.ask(dst)
			if len(dst) > start {
				dst, next = w.restoreAnswer(source, dst, start)
			}
		}
		if next == failed {
			return w.empty(SourceFailure, wire.RcodeServFail, dst)
		}
	}
	return dst, source
}

// restoreAnswer turns dst[start:], the answer to the current question, into the answer to the client's.
// If A records must be queried first they are the current question afterwards.
func (w *Worker) restoreAnswer(source Source, dst []byte, start int) (_ []byte, next restoreState) {
	dst, next = w.restorer.restore(&w.redirect, &w.q.Question, w.opts.Limit, source == SourceFailure, dst, start)
	if next == needsRetry {
		w.opts.EDE = wire.EDENone
		w.q.SetType(wire.TypeA)
		return dst, next
	}
	w.q.Type = w.q.OriginalType()
	if next == restored && w.redirect.synthesized {
		w.tally.each[countSynthesized]++
	}
	return dst, next
}

// ask asks the parts for an answer, in their order.
func (w *Worker) ask(dst []byte) (_ []byte, source Source) {
	p := w.plan
	source = undecided
	if w.useFallback {
		dst, source = w.askFallback(dst)
	}
	if source == undecided && w.takesExtras() {
		switch {
		case p.Static == nil:
		case w.redirect.hasAlias():
			dst, source = w.askHosts(dst)
		default:
			dst, source = w.askStatic(dst)
		}
		if source == undecided && p.DNS64 != nil {
			dst, source = w.askPrefix(dst)
		}
		if source == undecided && p.SkyDNS != nil {
			dst, source = w.askSkyDNS(dst)
		}
	}
	if source == undecided && len(p.Zones) > 0 {
		dst, source = w.askZone(dst)
	}
	if source == undecided {
		return w.askCache(dst)
	}
	return dst, source
}

// empty answers with an rcode and no records.
func (w *Worker) empty(source Source, rcode int, dst []byte) ([]byte, Source) {
	w.rcode = rcode
	return dst, source
}

// askZone asks the zones of the cluster. It redirects the query to the target of an alias from one.
func (w *Worker) askZone(dst []byte) ([]byte, Source) {
	start := len(dst)
	w.rotation++
	dst, result := w.plan.Zones.Answer(&w.q, w.zoneClient(), w.now, dst)
	w.near = result.Near
	switch result.Verdict {
	case zone.Answered:
		w.opts.EDE = result.EDE
		if result.Limited {
			w.tally.each[countZoneShort]++
		}
		return dst, SourceZone
	case zone.NotReady:
		w.opts.EDE = result.EDE
		return w.empty(SourceZone, wire.RcodeServFail, dst)
	case zone.Alias:
		w.opts.EDE = result.EDE
		return w.followAlias(dst, start, len(result.Target))
	case zone.UseFallback:
		if w.plan.Unreachable != nil && w.plan.Unreachable() {
			return w.askFallback(dst)
		}
	case zone.NotInZone:
	}
	return dst, undecided
}

// zoneClient returns the properties of the client that the zone's answer depends on.
func (w *Worker) zoneClient() zone.Client {
	return zone.Client{MaxSize: w.q.AnswerLimit(&w.opts), Rotation: w.rotation}
}

// askFallback asks the zones for a name that no upstream can answer.
func (w *Worker) askFallback(dst []byte) ([]byte, Source) {
	start := len(dst)
	dst, result := w.plan.Zones.AnswerStale(&w.q, w.zoneClient(), w.now, dst)
	if result.Verdict != zone.Answered {
		return dst[:start], undecided
	}
	w.opts.EDE, w.useFallback = result.EDE, true
	return dst, SourceZone
}

// askCache asks the cache.
func (w *Worker) askCache(dst []byte) ([]byte, Source) {
	start := len(dst)
	w.addSubnetToKey()
	dst, found := w.plan.Cache.Lookup(w.q.Key(), w.now, dst)
	switch found {
	case cache.Absent, cache.Stale:
		w.staleHeld = found == cache.Stale
		return w.handleMiss(dst)
	case cache.PrefetchDue:
		w.refresh()
	case cache.Failed, cache.StaleBackoff:
		if len(w.plan.Zones) > 0 && !w.redirect.hasAlias() {
			if said, source := w.askFallback(dst); source != undecided {
				return append(dst[:start], said[len(dst):]...), source
			}
		}
		if found == cache.StaleBackoff {
			w.opts.EDE = staleEDE(dst[start:])
			return dst, SourceStale
		}
		w.opts.EDE = wire.EDECachedError
		return dst, SourceFailure
	case cache.Fresh, cache.Expired, cache.Outdated: // Lookup returns neither of the last two
	}
	return dst, SourceCache
}

// handleMiss handles a query without a usable cache entry. It denies the name if a cached denial of a
// parent covers it, and refuses queries that must not go upstream: without RD, or sent to an upstream by
// this process. A name in hosts exists without a route too.
func (w *Worker) handleMiss(dst []byte) ([]byte, Source) {
	name := w.q.Name()
	if d := &w.redirect; d.active && d.exists && !d.hasAlias() && w.plan.route(name) == nil {
		return w.empty(SourceStatic, wire.RcodeSuccess, dst)
	}
	loop := wire.IsLoopName(name) && w.plan.Loop != nil && w.plan.Loop(name)
	if !w.staleHeld && !loop {
		if denied, ok := w.answerFromCut(dst); ok {
			return denied, SourceCache
		}
	}
	if !w.q.RD {
		w.opts.EDE = wire.EDENotAuthoritative // RFC 8914 section 4.21
	}
	if !w.q.RD || loop {
		return w.empty(SourceRefused, wire.RcodeRefused, dst)
	}
	return dst, undecided
}

// answerFromCut appends the denial of the name that follows from a cached denial of a parent name (RFC
// 8020). It applies to external names only, because cluster names come and go one by one. It does not
// apply to DO queries, which need the proof for their own name, nor to subnet routes. A name of one
// label denies nothing below it: one forged answer would remove a whole top-level domain from the
// node.
func (w *Worker) answerFromCut(dst []byte) ([]byte, bool) {
	latest := w.r.cuts.latest.Load()
	if latest == 0 || !w.plan.Cut || w.q.DO {
		return dst, false
	}
	at := w.now.Sub(w.r.epoch)
	if latest <= int64(at) {
		return dst, false
	}
	for child := w.q.Name(); len(child) > 1; {
		parent := child[1+int(child[0]):]
		if len(parent) <= 2+int(parent[0]) { // one label, or the root
			break
		}
		if w.r.cuts.mayHold(parent, at) {
			if denied, ok := w.answerFromCutAt(parent, child, dst); ok {
				return denied, true
			}
		}
		child = parent
	}
	return dst, false
}

// answerFromCutAt is answerFromCut for the denial of parent; child is the name one label longer. Names
// above the route's belong to other servers (CVE-2026-44687), and the route's own name exists by
// configuration.
func (w *Worker) answerFromCutAt(parent, child, dst []byte) ([]byte, bool) {
	name := w.q.Name()
	route := w.plan.route(name)
	if route == nil || len(parent) <= len(route.Suffix) || route.Exact || route.Subnet || w.plan.owner(name) != nil {
		return dst, false
	}
	start, flags := len(dst), w.q.Key()[len(name)+2]
	held, ok := w.plan.Cache.LookupNXDomainCut(child, len(parent), flags, w.now, dst)
	if !ok {
		return dst, false
	}
	if !w.restorer.hold(held[start:]) {
		return dst, false
	}
	return w.restorer.tail.AppendDenial(held[:start], name, w.q.Type)
}

// initReplyOptions sets the options of the reply.
func (w *Worker) initReplyOptions() {
	q := &w.q
	w.opts = wire.ReplyOptions{Limit: q.Limit(w.from.Stream, w.plan.UDPSize), UDPSize: w.plan.UDPSize, EDE: wire.EDENone}
	if !q.EDNS {
		return
	}
	if q.Explain { // only for a client on this host. Room in the reply is reserved for it
		if q.Explain = w.isLocal(); q.Explain {
			w.opts.Limit -= wire.ExplanationRoom
		}
	}
	if q.Cookie != nil {
		w.opts.Cookie = w.r.cookies.makeCookie(&w.cookie, q.Cookie, w.from.Addr.Addr(), w.now)
	}
	if q.Keepalive && w.from.Stream {
		w.opts.Keepalive = keepaliveUnits(w.plan.Keepalive)
	}
}

// oddType reports whether a query type does not ask for records.
func oddType(t uint16) bool { return t >= 128 && t <= 255 || t == wire.TypeOPT || t == 0 }

// isTransfer reports whether a query type asks for a zone transfer.
func isTransfer(t uint16) bool { return t == wire.TypeAXFR || t == wire.TypeIXFR }

// isSelfQuery reports whether the query is the agent's own, from an address of this host.
func (w *Worker) isSelfQuery() bool {
	return w.q.Class == wire.ClassCH && w.q.Type == wire.TypeTXT && len(w.plan.self) > 0 && string(w.q.Name()) == selfName && w.isLocal()
}

// isLocal reports whether the client is on this host.
func (w *Worker) isLocal() bool { return w.plan.Local != nil && w.plan.Local(w.from.Addr.Addr()) }

// keepaliveUnits converts d to the units of RFC 7828, 100 ms.
func keepaliveUnits(d time.Duration) uint16 {
	return uint16(min(d/(100*time.Millisecond), 1<<16-1))
}

// addSubnetToKey adds the client's subnet to the cache key if the name's route forwards it.
func (w *Worker) addSubnetToKey() {
	if w.q.Subnet == nil || !w.plan.anySubnet {
		return
	}
	if route := w.plan.route(w.q.Name()); route != nil && route.Subnet {
		w.q.AddSubnetToKey()
	}
}

// finishReply counts and logs the reply dst[start:] of AnswerFromMemory, and adds the explanation that
// a client asked for.
func (w *Worker) finishReply(source Source, dst []byte, start int) ([]byte, wire.Verdict) {
	if source == undecided {
		return dst, wire.Missed
	}
	if len(dst) == start {
		dst = w.q.AppendEmpty(dst, w.rcode, &w.opts)
	}
	if w.inner {
		return dst, wire.Answered
	}
	rcode := int(dst[start+3] & 0x0f)
	w.tally.response(source, rcode)
	if w.usage != nil {
		countReply(w.plan, w.usage, &w.q.Question, source, rcode, len(dst)-start, 0)
	}
	if isReported(w.plan) {
		now := w.r.now()
		q := report{&w.q.Question, w.sender(), source, rcode, now, now.Sub(w.now) + w.elapsed, dst[start:]}
		q.passOn(w.plan)
	}
	if w.q.Explain {
		dst = w.explain(source, dst)
	}
	return dst, wire.Answered
}

// isReported reports whether queries are logged, watched or sent to a dnstap collector.
func isReported(p *Plan) bool {
	return p.QueryLog != nil || p.Tap != nil || p.Watchers != nil && p.Watchers.list.Load() != nil
}

// Resolve takes over the query that AnswerFromMemory missed. It joins or starts the in-flight query
// for its key, or starts a transfer.
func (w *Worker) Resolve(from *wire.Peer, now time.Time, to wire.Replier) {
	w.from, w.now = from, now
	if isTransfer(w.q.Type) {
		held := zone.Secondary{Addr: from.Addr.Addr(), Serial: w.q.Serial, HasSerial: w.q.HasSerial}
		t := transfer{r: w.r, plan: w.plan, zone: w.plan.Zones.At(w.q.Name()), waiter: w.waiter(nil, to), client: held}
		t.start(w.signer, &w.batch)
		return
	}
	w.addrProven = from.Stream || w.q.Cookie != nil && w.r.cookies.isValid(w.q.Cookie, from.Addr.Addr(), now)
	if w.walking {
		w.joinWalk(to)
	} else {
		w.join(to)
	}
}

// Flush ends the batch at the time now: it sends the collected queries and replies, and adds the
// worker's counters to the resolver's.
func (w *Worker) Flush(now time.Time) {
	if w.walker != nil {
		w.walker.Flush(now)
	}
	w.batch.Flush()
	w.tally.flush(&w.r.counts, now)
}

// explain appends the explanation to a reply of AnswerFromMemory.
func (w *Worker) explain(source Source, dst []byte) []byte {
	if w.redirect.active && w.redirect.useFirst { // the current key is that of the A query
		w.q.SetType(w.q.OriginalType())
		w.addSubnetToKey()
	}
	waiting := w.shedWaiter(nil)
	return waiting.explainFromMemory(w.plan, source, dst, w.q.Name(), w.q.Key(), w.now)
}

// withWorker calls a function with a worker of the pool, for a client whose query arrived some time ago.
func (r *Resolver) withWorker(plan *Plan, from *wire.Peer, now time.Time, elapsed time.Duration, batch *wire.SendBatch, do func(*Worker)) {
	l, ok := r.workerPool.Get().(*Worker)
	if !ok {
		l = r.NewWorker()
	}
	l.plan, l.from, l.now, l.elapsed, l.useFallback, l.walking = plan, from, now, elapsed, false, false
	l.batch, *batch = *batch, l.batch
	done := false
	defer func() {
		l.batch, *batch = *batch, l.batch
		if done { // after a panic the worker is not reused
			r.workerPool.Put(l)
		}
	}()
	do(l)
	if l.walker != nil {
		l.walker.Flush(now)
	}
	l.tally.flush(&r.counts, now)
	done = true
}
