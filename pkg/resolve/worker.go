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
type Worker struct {
	r          *Resolver
	plan       *Plan // of the current query
	q          wire.Query
	opts       wire.ReplyOptions
	cookie     [cookieLen]byte
	redirect   redirect // from the client's question to the one looked up
	restorer   restorer
	rotation   uint32 // counts zone answers, to rotate their addresses
	tally      tally
	batch      wire.SendBatch // upstream queries and replies to send at the end of the batch
	spareQuery *inFlight      // for the next query to start; nil: not allocated
	staleHeld  bool           // a stale answer is held for the current miss
	addrProven bool           // the source address of the current miss is verified
	elapsed    time.Duration  // since the query arrived; 0 except for DNS64 retries
}

// NewWorker returns a worker.
func (r *Resolver) NewWorker() *Worker { return &Worker{r: r} }

// AnswerFromMemory answers the query in pkt from memory if it can, and appends the reply to dst. After
// wire.Missed the caller must call Resolve; until then pkt must not change.
func (l *Worker) AnswerFromMemory(pkt []byte, from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict) {
	l.plan = l.r.plan.Load()
	l.tally.begin(now)
	if fault := l.q.Parse(pkt); fault != wire.FaultNone {
		return l.answerFault(fault, pkt, from, dst)
	}
	if l.isSelfQuery(from) {
		return l.answerSelf(from, now, dst), wire.Answered
	}
	l.tally.query(from, l.q.Type)
	l.initReplyOptions(from, now)
	l.redirect.active = false
	if l.q.Class != wire.ClassIN || oddType(l.q.Type) {
		return l.answerOdd(from, now, dst)
	}
	if l.plan.extras != nil {
		return l.answerWithExtras(from, now, dst)
	}
	if l.plan.Zone != nil {
		var done bool
		if dst, done = l.answerFromZone(from, now, dst); done {
			return dst, wire.Answered
		}
	}
	return l.answerFromCache(from, now, dst)
}

// answerFromCache answers the current query from the cache.
func (l *Worker) answerFromCache(from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict) {
	start := len(dst)
	l.addSubnetToKey()
	dst, found := l.plan.Cache.Lookup(l.q.Key(), now, dst)
	source := SourceCache
	switch found {
	case cache.Absent, cache.Stale:
		var verdict wire.Verdict
		var denied bool
		if dst, verdict, denied = l.handleMiss(found, from, now, dst); !denied {
			return dst, verdict
		}
	case cache.PrefetchDue:
		l.refresh(now)
	case cache.Failed, cache.StaleBackoff:
		if l.plan.Zone != nil && !l.redirect.hasAlias() {
			if said, ok := l.answerZoneFallback(from, now, dst); ok {
				return append(dst[:start], said[len(dst):]...), wire.Answered
			}
		}
		if source, l.opts.EDE = SourceFailure, wire.EDECachedError; found == cache.StaleBackoff {
			source, l.opts.EDE = SourceStale, staleEDE(dst[start:])
		}
	case cache.Fresh:
	}
	if l.redirect.active {
		var done bool
		if dst, done = l.restoreAndReply(source, from, now, dst, start); !done {
			return l.answerRetry(from, now, dst)
		}
		return dst, wire.Answered
	}
	dst = l.q.Reply(dst, start, &l.opts)
	return l.finishReply(source, dst, start, from, now), wire.Answered
}

// initReplyOptions sets the options of the reply.
func (l *Worker) initReplyOptions(from *wire.Peer, now time.Time) {
	q := &l.q
	l.opts = wire.ReplyOptions{Limit: q.Limit(from.Stream, l.plan.UDPSize), UDPSize: l.plan.UDPSize, EDE: wire.EDENone}
	if !q.EDNS {
		return
	}
	if q.Explain {
		l.admitExplain(from)
	}
	if q.Cookie != nil {
		l.opts.Cookie = l.r.cookies.makeCookie(&l.cookie, q.Cookie, from.Addr.Addr(), now)
	}
	if q.Keepalive && from.Stream {
		l.opts.Keepalive = keepaliveUnits(l.plan.Keepalive)
	}
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

// keepaliveUnits converts d to the units of RFC 7828, 100 ms.
func keepaliveUnits(d time.Duration) uint16 {
	return uint16(min(d/(100*time.Millisecond), 1<<16-1))
}

// finishReply counts and logs the reply dst[start:] of AnswerFromMemory, and adds the explanation that
// a client asked for.
func (l *Worker) finishReply(source Source, dst []byte, start int, from *wire.Peer, now time.Time) []byte {
	rcode := int(dst[start+3] & 0x0f)
	l.tally.response(source, rcode)
	if l.plan.QueryLog != nil {
		l.plan.QueryLog.record(context.Background(), &l.q.Question, from, source, rcode, l.r.now().Sub(now)+l.elapsed)
	}
	if l.q.Explain {
		dst = l.explain(source, dst, now)
	}
	return dst
}

// Resolve takes over the query that AnswerFromMemory missed. It joins or starts the in-flight query
// for its key, or starts a transfer.
func (l *Worker) Resolve(from *wire.Peer, now time.Time, to wire.Replier) {
	if isTransfer(l.q.Type) {
		l.r.startTransfer(l.plan, l.waiter(nil, from, now, to), from.Addr.Addr(), &l.batch)
		return
	}
	l.addrProven = from.Stream || l.r.cookies.isValid(l.q.Cookie, from.Addr.Addr(), now)
	l.join(from, now, to)
}

// waiter returns the client of the current query as a waiter. It copies what it needs of the packet,
// appended to room as far as there is space.
func (l *Worker) waiter(room []byte, from *wire.Peer, now time.Time, to wire.Replier) waiter {
	w := waiter{opts: l.opts, since: now.Add(-l.elapsed), to: to}
	if l.plan.QueryLog != nil {
		peer := *from
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

// Flush ends the batch at the time now: it sends the collected queries and replies, and adds the
// worker's counters to the resolver's.
func (l *Worker) Flush(now time.Time) {
	l.batch.Flush()
	l.tally.flush(&l.r.counts, now)
}

// answerFromZone answers from the cluster zone if that has the name. Otherwise it returns false, and
// the query goes on unchanged or for the target of an alias from the zone.
func (l *Worker) answerFromZone(from *wire.Peer, now time.Time, dst []byte) ([]byte, bool) {
	start := len(dst)
	l.rotation++
	dst, result := l.plan.Zone.Answer(&l.q, l.zoneClient(), now, dst)
	switch result.Verdict {
	case zone.Answered:
		l.opts.EDE = result.EDE
		if result.Limited {
			l.tally.zoneShort++
		}
		if l.redirect.active {
			var done bool
			if dst, done = l.restoreAndReply(SourceZone, from, now, dst, start); !done {
				return l.answerFromZone(from, now, dst)
			}
			return dst, true
		}
		dst = l.q.Reply(dst, start, &l.opts)
		return l.finishReply(SourceZone, dst, start, from, now), true
	case zone.NotReady:
		l.opts.EDE = result.EDE
		dst, _ = l.answerEmpty(SourceZone, wire.RcodeServFail, from, now, dst)
		return dst, true
	case zone.Alias:
		l.opts.EDE = result.EDE
		if !l.followAlias(dst, start, len(result.Target)) {
			dst, _ = l.answerEmpty(SourceFailure, wire.RcodeServFail, from, now, dst[:start])
			return dst, true
		}
		return dst[:start], false
	case zone.UseFallback:
		if l.plan.Unreachable != nil && l.plan.Unreachable() {
			return l.answerZoneFallback(from, now, dst)
		}
	case zone.NotInZone:
	}
	return dst, false
}

// zoneClient returns the properties of the client that the zone's answer depends on.
func (l *Worker) zoneClient() zone.Client {
	return zone.Client{MaxSize: l.q.AnswerLimit(&l.opts), Rotation: l.rotation}
}

// answerZoneFallback answers from the zone a name that no upstream can answer, if the zone can.
func (l *Worker) answerZoneFallback(from *wire.Peer, now time.Time, dst []byte) ([]byte, bool) {
	start := len(dst)
	dst, result := l.plan.Zone.AnswerStale(&l.q, l.zoneClient(), now, dst)
	if result.Verdict != zone.Answered {
		return dst[:start], false
	}
	l.opts.EDE = result.EDE
	if dst, done := l.restoreAndReply(SourceZone, from, now, dst, start); done {
		return dst, true
	}
	return l.answerZoneFallback(from, now, dst[:start])
}

// useZoneFallback sets the outcome from the zone if upstream gave no answer, and reports whether the
// zone has one.
func (d *responseBuilder) useZoneFallback(z *zone.Zone, q *wire.Query, now time.Time) bool {
	if z == nil {
		return false
	}
	msg, said := z.AnswerStale(q, zone.Client{MaxSize: wire.MaxMessage}, now, d.buf[:0])
	if said.Verdict != zone.Answered {
		return false
	}
	d.buf, d.result = msg, outcome{msg: msg, source: SourceZone, ede: said.EDE}
	return true
}
