// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"context"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
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
	now         time.Time
	q           wire.Query
	opts        wire.ReplyOptions
	rcode       int // of a reply without records
	cookie      [cookieLen]byte
	redirect    redirect // from the client's question to the one looked up
	restorer    restorer
	rotation    uint32 // counts zone answers, to rotate their addresses
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
func (l *Worker) AnswerFromMemory(pkt []byte, from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict) {
	l.plan, l.from, l.now = l.r.plan.Load(), from, now
	l.tally.begin(now)
	if rcode := l.q.Parse(pkt); rcode != wire.RcodeSuccess {
		return l.answerFault(rcode, pkt, dst)
	}
	if l.isSelfQuery() {
		return l.answerSelf(dst), wire.Answered
	}
	l.tally.query(from, l.q.Type)
	l.initReplyOptions()
	l.redirect.active, l.useFallback = false, false
	if l.q.Class != wire.ClassIN || oddType(l.q.Type) {
		start := len(dst)
		dst, source := l.answerOdd(dst)
		return l.finishReply(source, dst, start)
	}
	if l.takesExtras() {
		l.redirectQuery()
	}
	return l.answer(dst)
}

// takesExtras reports whether the optional features apply. The sender of a loop name must recognize it
// unchanged.
func (l *Worker) takesExtras() bool { return l.plan.hasExtras && !wire.IsLoopName(l.q.Name()) }

// answer appends the reply to the current query.
func (l *Worker) answer(dst []byte) ([]byte, wire.Verdict) {
	start := len(dst)
	dst, source := l.ask(dst)
	if l.redirect.active && len(dst) > start {
		var next restoreState
		if dst, next = l.restoreAnswer(source, dst, start); next == needsRetry {
			dst, source = l.ask(dst)
			if len(dst) > start {
				dst, next = l.restoreAnswer(source, dst, start)
			}
		}
		if next == failed {
			dst, source = l.empty(SourceFailure, wire.RcodeServFail, dst)
		}
	}
	if len(dst) > start {
		dst = l.q.Reply(dst, start, &l.opts)
	}
	return l.finishReply(source, dst, start)
}

// restoreAnswer turns dst[start:], the answer to the current question, into the answer to the client's.
// If A records must be queried first they are the current question afterwards.
func (l *Worker) restoreAnswer(source Source, dst []byte, start int) (_ []byte, next restoreState) {
	dst, next = l.restorer.restore(&l.redirect, &l.q.Question, l.opts.Limit, source == SourceFailure, dst, start)
	if next == needsRetry {
		l.opts.EDE = wire.EDENone
		l.q.SetType(wire.TypeA)
		return dst, next
	}
	l.q.Type = l.q.OriginalType()
	if next == restored && l.redirect.synthesized {
		l.tally.each[countSynthesized]++
	}
	return dst, next
}

// ask asks the parts for an answer, in their order.
func (l *Worker) ask(dst []byte) (_ []byte, source Source) {
	p := l.plan
	source = undecided
	if l.useFallback {
		dst, source = l.askFallback(dst)
	}
	if source == undecided && l.takesExtras() {
		if p.Static != nil && !l.redirect.hasAlias() {
			dst, source = l.askStatic(dst)
		}
		if source == undecided && p.DNS64 != nil {
			dst, source = l.askPrefix(dst)
		}
	}
	if source == undecided && p.Zone != nil {
		dst, source = l.askZone(dst)
	}
	if source == undecided {
		return l.askCache(dst)
	}
	return dst, source
}

// empty answers with an rcode and no records.
func (l *Worker) empty(source Source, rcode int, dst []byte) ([]byte, Source) {
	l.rcode = rcode
	return dst, source
}

// askZone asks the cluster zone. It redirects the query to the target of an alias from the zone.
func (l *Worker) askZone(dst []byte) ([]byte, Source) {
	start := len(dst)
	l.rotation++
	dst, result := l.plan.Zone.Answer(&l.q, l.zoneClient(), l.now, dst)
	switch result.Verdict {
	case zone.Answered:
		l.opts.EDE = result.EDE
		if result.Limited {
			l.tally.each[countZoneShort]++
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
func (l *Worker) zoneClient() zone.Client {
	return zone.Client{MaxSize: l.q.AnswerLimit(&l.opts), Rotation: l.rotation}
}

// askFallback asks the zone for a name that no upstream can answer.
func (l *Worker) askFallback(dst []byte) ([]byte, Source) {
	start := len(dst)
	dst, result := l.plan.Zone.AnswerStale(&l.q, l.zoneClient(), l.now, dst)
	if result.Verdict != zone.Answered {
		return dst[:start], undecided
	}
	l.opts.EDE, l.useFallback = result.EDE, true
	return dst, SourceZone
}

// askCache asks the cache.
func (l *Worker) askCache(dst []byte) ([]byte, Source) {
	start := len(dst)
	l.addSubnetToKey()
	dst, found := l.plan.Cache.Lookup(l.q.Key(), l.now, dst)
	switch found {
	case cache.Absent, cache.Stale:
		l.staleHeld = found == cache.Stale
		return l.handleMiss(dst)
	case cache.PrefetchDue:
		l.refresh()
	case cache.Failed, cache.StaleBackoff:
		if l.plan.Zone != nil && !l.redirect.hasAlias() {
			if said, source := l.askFallback(dst); source != undecided {
				return append(dst[:start], said[len(dst):]...), source
			}
		}
		if found == cache.StaleBackoff {
			l.opts.EDE = staleEDE(dst[start:])
			return dst, SourceStale
		}
		l.opts.EDE = wire.EDECachedError
		return dst, SourceFailure
	case cache.Fresh, cache.Expired, cache.Outdated: // Lookup returns neither of the last two
	}
	return dst, SourceCache
}

// handleMiss handles a query without a usable cache entry. It denies the name if a cached denial of a
// parent covers it, and refuses queries that must not go upstream: without RD, or sent to an upstream by
// this process.
func (l *Worker) handleMiss(dst []byte) ([]byte, Source) {
	name := l.q.Name()
	loop := wire.IsLoopName(name) && l.plan.Loop != nil && l.plan.Loop(name)
	if !l.staleHeld && !loop {
		if denied, ok := l.answerFromCut(dst); ok {
			return denied, SourceCache
		}
	}
	if !l.q.RD || loop {
		return l.empty(SourceRefused, wire.RcodeRefused, dst)
	}
	return dst, undecided
}

// answerFromCut appends the denial of the name that follows from a cached denial of a parent name (RFC
// 8020). It applies to external names only, because cluster names come and go one by one. It does not
// apply to DO queries, which need the proof for their own name, nor to subnet routes. A name of one
// label denies nothing below it: one forged answer would remove a whole top-level domain from the
// node.
func (l *Worker) answerFromCut(dst []byte) ([]byte, bool) {
	latest := l.r.cuts.latest.Load()
	if latest == 0 || !l.plan.Cut || l.q.DO {
		return dst, false
	}
	at := l.r.sinceStart(l.now)
	if latest <= int64(at) {
		return dst, false
	}
	for child := l.q.Name(); len(child) > 1; {
		parent := child[1+int(child[0]):]
		if len(parent) <= 2+int(parent[0]) { // one label, or the root
			break
		}
		if l.r.cuts.mayHold(parent, at) {
			if denied, ok := l.answerFromCutAt(parent, child, dst); ok {
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
func (l *Worker) answerFromCutAt(parent, child, dst []byte) ([]byte, bool) {
	name := l.q.Name()
	route := l.plan.route(name)
	if route == nil || len(parent) <= len(route.Suffix) || route.Exact || route.Subnet || l.plan.owner(name) != nil {
		return dst, false
	}
	start, flags := len(dst), l.q.Key()[len(name)+2]
	held, ok := l.plan.Cache.LookupNXDomainCut(child, len(parent), flags, l.now, dst)
	if !ok {
		return dst, false
	}
	if !l.restorer.hold(held[start:]) {
		return dst, false
	}
	return l.restorer.tail.AppendDenial(held[:start], name, l.q.Type)
}

// initReplyOptions sets the options of the reply.
func (l *Worker) initReplyOptions() {
	q := &l.q
	l.opts = wire.ReplyOptions{Limit: q.Limit(l.from.Stream, l.plan.UDPSize), UDPSize: l.plan.UDPSize, EDE: wire.EDENone}
	if !q.EDNS {
		return
	}
	if q.Explain { // only for a client on this host. Room in the reply is reserved for it
		if q.Explain = l.isLocal(); q.Explain {
			l.opts.Limit -= wire.ExplanationRoom
		}
	}
	if q.Cookie != nil {
		l.opts.Cookie = l.r.cookies.makeCookie(&l.cookie, q.Cookie, l.from.Addr.Addr(), l.now)
	}
	if q.Keepalive && l.from.Stream {
		l.opts.Keepalive = keepaliveUnits(l.plan.Keepalive)
	}
}

// oddType reports whether a query type does not ask for records.
func oddType(t uint16) bool { return t >= 128 && t <= 255 || t == wire.TypeOPT || t == 0 }

// isTransfer reports whether a query type asks for a zone transfer.
func isTransfer(t uint16) bool { return t == wire.TypeAXFR || t == wire.TypeIXFR }

// isSelfQuery reports whether the query is the agent's own, from an address of this host.
func (l *Worker) isSelfQuery() bool {
	return l.q.Class == wire.ClassCH && l.q.Type == wire.TypeTXT && len(l.plan.self) > 0 && string(l.q.Name()) == selfName && l.isLocal()
}

// isLocal reports whether the client is on this host.
func (l *Worker) isLocal() bool { return l.plan.Local != nil && l.plan.Local(l.from.Addr.Addr()) }

// keepaliveUnits converts d to the units of RFC 7828, 100 ms.
func keepaliveUnits(d time.Duration) uint16 {
	return uint16(min(d/(100*time.Millisecond), 1<<16-1))
}

// addSubnetToKey adds the client's subnet to the cache key if the name's route forwards it.
func (l *Worker) addSubnetToKey() {
	if l.q.Subnet == nil || !l.plan.anySubnet {
		return
	}
	if route := l.plan.route(l.q.Name()); route != nil && route.Subnet {
		l.q.AddSubnetToKey()
	}
}

// finishReply counts and logs the reply dst[start:] of AnswerFromMemory, and adds the explanation that
// a client asked for.
func (l *Worker) finishReply(source Source, dst []byte, start int) ([]byte, wire.Verdict) {
	if source == undecided {
		return dst, wire.Missed
	}
	if len(dst) == start {
		dst = l.q.AppendEmpty(dst, l.rcode, &l.opts)
	}
	rcode := int(dst[start+3] & 0x0f)
	l.tally.response(source, rcode)
	if l.plan.QueryLog != nil {
		l.plan.QueryLog.record(context.Background(), &l.q.Question, l.from, source, rcode, l.r.now().Sub(l.now)+l.elapsed)
	}
	if l.q.Explain {
		dst = l.explain(source, dst)
	}
	return dst, wire.Answered
}

// Resolve takes over the query that AnswerFromMemory missed. It joins or starts the in-flight query
// for its key, or starts a transfer.
func (l *Worker) Resolve(from *wire.Peer, now time.Time, to wire.Replier) {
	l.from, l.now = from, now
	if isTransfer(l.q.Type) {
		l.r.startTransfer(l.plan, l.waiter(nil, to), from.Addr.Addr(), &l.batch)
		return
	}
	l.addrProven = from.Stream || l.q.Cookie != nil && l.r.cookies.isValid(l.q.Cookie, from.Addr.Addr(), now)
	l.join(to)
}

// Flush ends the batch at the time now: it sends the collected queries and replies, and adds the
// worker's counters to the resolver's.
func (l *Worker) Flush(now time.Time) {
	l.batch.Flush()
	l.tally.flush(&l.r.counts, now)
}

// join makes the client of the current query wait for the in-flight query with its key, and starts one
// if there is none. If a limit is reached it sheds the query.
func (l *Worker) join(to wire.Replier) {
	t, who := &l.r.queries, clientKey{l.from.Addr.Addr(), l.addrProven}
	f := l.nextQuery()
	f.begunAt -= l.elapsed
	t.mu.Lock()
	existing := l.joinableLocked(f)
	c, why := t.admitLocked(who, existing == nil, l.plan)
	switch {
	case c == nil:
		silent, logIt := false, false
		// The server stops reading from TCP clients, and a stale answer costs no more than a hit.
		if !l.from.Stream && !l.staleHeld {
			silent, logIt = t.floodLocked(who, l.now)
		}
		t.mu.Unlock()
		if logIt {
			l.r.log.Warn("client flood, replies suppressed", "client", who.addr)
		}
		l.rejectQuery(why, silent, to)
	case existing != nil:
		w := l.waiter(nil, to)
		w.client = c
		existing.joined = append(existing.joined, w)
		if l.staleHeld {
			existing.holdStaleLocked(l.now)
		}
		overdue := existing.staleDue
		t.mu.Unlock()
		l.r.counts.add(countJoined)
		if overdue {
			existing.serveStale(l.now, &l.batch)
		}
	default:
		f.client = c
		t.addLocked(f)
		t.mu.Unlock()
		l.prepareQuery(f)
		f.first = l.waiter(f.query, to)
		f.first.client = c
		if l.staleHeld {
			f.markReady(true, l.now)
		}
		f.send(l.now.Add(l.timeout()), &l.batch)
	}
}

// joinableLocked returns the in-flight query with the key of f that the current query may join, nil if
// there is none. A query that began before the owner's last change may return an outdated answer, so a
// new one starts next to it.
func (l *Worker) joinableLocked(f *inFlight) *inFlight {
	existing := l.r.queries.findLocked(f.hash, f.key)
	if existing == nil {
		return nil
	}
	if owner := l.plan.owner(l.q.Name()); owner != nil && l.plan.Cache.ChangedSince(owner, l.r.epoch.Add(existing.begunAt)) {
		return nil
	}
	return existing
}

// timeout returns the time that upstream has for the current query: what is left of the client's
// deadline, or half of the deadline if a query for A records may follow. Some servers never answer
// AAAA queries.
func (l *Worker) timeout() time.Duration {
	if d := &l.redirect; d.active && d.dns64 != nil && !d.retryA {
		return l.plan.Deadline / 2
	}
	return l.plan.Deadline - l.elapsed
}

// maxRefreshes bounds the in-flight refreshes. Refreshes yield to clients, because an answer that
// expires costs only one more query. A refresh starts only while less than half of Plan.Inflight
// is used, and takes no client's place.
const maxRefreshes = 256

// shedBackoff is the refresh backoff of a stale answer used because there was no room for a query.
const shedBackoff = time.Second

// rejectQuery handles a query without room. The client gets the zone fallback or the stale answer that
// the lookup found, or SERVFAIL with the reason, or nothing if it has had too many SERVFAILs.
func (l *Worker) rejectQuery(why Shed, silent bool, to wire.Replier) {
	if silent {
		l.r.counts.shed(ShedFlood)
		l.tally.each[countDropped]++
		to.Reply(nil, &l.batch)
		return
	}
	l.r.counts.shed(why)
	w := l.shedWaiter(to)
	if l.staleHeld {
		d := newResponse(l.r, l.plan, l.now, &l.batch)
		defer d.release()
		// The zone was asked for an alias already.
		if !l.redirect.hasAlias() && d.useZoneFallback(l.plan.Zone, &l.q) || d.useStale(l.plan.Cache, l.q.Key()) {
			if why != ShedClient { // a client over its limit must not delay the refresh for others
				l.plan.Cache.DelayRefresh(l.q.Key(), l.now.Add(shedBackoff), l.now)
			}
			d.deliver(&w)
			return
		}
	}
	l.r.replyShed(why, &w, l.plan, &l.batch)
}

// refresh starts a query for an answer that is due for prefetch, unless one is in flight.
func (l *Worker) refresh() {
	t, f := &l.r.queries, l.nextQuery()
	t.mu.Lock()
	if l.joinableLocked(f) != nil {
		t.mu.Unlock()
		return
	}
	if t.refreshes >= maxRefreshes || 2*t.count >= l.plan.Inflight {
		t.mu.Unlock()
		l.r.counts.shed(ShedRefresh)
		return
	}
	f.refresh = true
	t.addLocked(f)
	t.mu.Unlock()
	l.r.counts.add(countPrefetches)
	l.prepareQuery(f)
	f.markReady(false, l.now)
	f.send(l.now.Add(f.plan.Deadline), &l.batch)
}

// nextQuery returns the query that the worker may start for the current key. It is allocated before the
// lock is taken, and kept for the next call if it is not used.
func (l *Worker) nextQuery() *inFlight {
	if l.spareQuery == nil {
		l.spareQuery = &inFlight{r: l.r}
	}
	f := l.spareQuery
	f.key = append(f.buf[:0], l.q.Key()...)
	f.hash = l.r.queries.hash(f.key)
	f.plan, f.begunAt = l.plan, l.r.sinceStart(l.now)
	return f
}

// prepareQuery completes a query that was added. Others may join it in the meantime; only this worker
// accesses its other fields.
func (l *Worker) prepareQuery(f *inFlight) {
	l.spareQuery = nil
	f.route = l.plan.route(l.q.Name())
	start := len(f.key)
	query := l.q.AppendUpstream(f.key, f.route != nil && f.route.Subnet)
	f.query = query[start:]
}

// waiter returns the client of the current query as a waiter. It copies what it needs of the packet,
// appended to room as far as there is space.
func (l *Worker) waiter(room []byte, to wire.Replier) waiter {
	w := waiter{opts: l.opts, since: l.now.Add(-l.elapsed), to: to}
	if l.plan.QueryLog != nil {
		peer := *l.from
		w.from = &peer
	}
	if room == nil {
		room = make([]byte, 0, len(l.q.QuestionSection())+len(l.opts.Cookie))
	}
	w.ask, room = l.q.CloneTo(room)
	if l.opts.Cookie != nil {
		start := len(room)
		room = append(room, l.opts.Cookie...)
		w.opts.Cookie = room[start:]
	}
	if l.redirect.active {
		w.redirect = l.redirect.clone()
		w.redirect.addrProven = l.addrProven
		w.ask.Type = w.ask.OriginalType()
	}
	return w
}

// shedWaiter returns the client of the current query as a waiter whose reply is sent before this
// returns.
func (l *Worker) shedWaiter(to wire.Replier) waiter {
	w := waiter{ask: l.q.Question, opts: l.opts, from: l.from, since: l.now.Add(-l.elapsed), to: to}
	if l.redirect.active {
		w.redirect = &l.redirect
		w.ask.Type = w.ask.OriginalType()
	}
	return w
}

// explain appends the explanation to a reply of AnswerFromMemory.
func (l *Worker) explain(source Source, dst []byte) []byte {
	if l.redirect.active && l.redirect.useFirst { // the current key is that of the A query
		l.q.SetType(l.q.OriginalType())
		l.addSubnetToKey()
	}
	w := l.shedWaiter(nil)
	return w.explainFromMemory(l.plan, source, dst, l.q.Name(), l.q.Key(), l.now)
}
