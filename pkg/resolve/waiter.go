// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A waiter is a client that waits for an in-flight query.
type waiter struct {
	ask      wire.Question
	redirect *redirect // nil: the client's own question was looked up
	opts     wire.ReplyOptions
	addr     netip.Addr    // of the client
	from     *sender       // the client, for the log, the watchers and dnstap; nil: none of them
	usage    *pods.Usage   // counters of the client's pod, or of all clients without one; nil: not counted
	since    time.Duration // arrival of the query, since the resolver was made
	to       wire.Replier  // nil after the reply, or once a walk or the A query of DNS64 takes care of the client
	client   *client       // account that this waiter counts for, see admitLocked; nil: not counted
}

// arrival returns when the current query arrived, since the resolver was made.
func (q *query) arrival() time.Duration { return q.now.Sub(q.worker.r.epoch) - q.elapsed }

// waiter returns a waiter for the current query. It refers to the packet, so it must get its reply before the packet is gone.
func (q *query) waiter(to wire.Replier) waiter {
	waiting := waiter{ask: q.Question, redirect: q.redirect, opts: q.opts, addr: q.from.Addr.Addr(), usage: q.usage, since: q.arrival(), to: to}
	waiting.ask.Type = waiting.ask.OriginalType()
	if isReported(q.plan) {
		from := q.sender()
		waiting.from = &from
	}
	return waiting
}

// heldWaiter returns a waiter for the current query that does not refer to the packet: it copies what it needs to the end
// of room, or to new memory if room is too small.
func (q *query) heldWaiter(room []byte, to wire.Replier) waiter {
	waiting := q.waiter(to)
	if room == nil {
		room = make([]byte, 0, len(q.QuestionSection())+len(q.opts.Cookie))
	}
	waiting.ask, room = waiting.ask.CloneTo(room)
	if q.opts.Cookie != nil {
		start := len(room)
		room = append(room, q.opts.Cookie...)
		waiting.opts.Cookie = room[start:]
	}
	if q.redirect != nil {
		waiting.redirect = q.redirect.clone()
		waiting.redirect.addrProven = q.addrProven
	}
	return waiting
}

// end sends the waiter's one reply; nil sends none.
func (w *waiter) end(msg []byte, batch *wire.SendBatch) {
	to := w.to
	w.to = nil
	to.Reply(msg, batch)
}

// reply sends, counts and logs a reply of the slow path.
func (r *Resolver) reply(plan *Plan, w *waiter, source Source, d *detail, msg []byte, now time.Time, batch *wire.SendBatch) {
	if k, inner := w.to.(*walk); inner {
		k.detail = *d
		w.end(msg, batch)
		return
	}
	rcode := int(msg[3] & 0x0f)
	took := now.Sub(r.epoch) - w.since
	r.counts.response(source, rcode, took)
	r.addMiss(plan, &w.ask, w.addr, source, rcode, took, now)
	if source == SourceFailure {
		r.failures.add(plan, &w.ask, w.addr)
	}
	if source == SourceBlock {
		d.block.Count()
	}
	if w.usage != nil {
		from := source
		if source == SourceSearch {
			from = SourceUpstream
		}
		countReply(plan, w.usage, &w.ask, from, rcode, len(msg), took)
	}
	if w.from != nil { // nil: there was no log, watcher or dnstap collector when the query arrived
		q := report{ask: &w.ask, from: *w.from, source: source, rcode: rcode, ede: w.opts.EDE, at: now, took: took, reply: msg, detail: *d}
		q.passOn(plan)
	}
	if w.ask.Explain {
		msg = w.explain(plan, source, d, msg, now, took)
	}
	w.end(msg, batch)
}

// replyShed replies SERVFAIL to a client whose query was shed.
func (r *Resolver) replyShed(reason Shed, w *waiter, plan *Plan, batch *wire.SendBatch) {
	w.opts.EDE = wire.EDEOther
	msg := w.ask.AppendEmpty(nil, wire.RcodeServFail, &w.opts)
	r.reply(plan, w, SourceShed, &detail{shed: Sheds()[reason]}, msg, r.epoch.Add(w.since), batch)
}

// join makes the client of the current query wait for the in-flight query with its key, and starts one
// if there is none. If a limit is reached it sheds the query.
func (q *query) join(to wire.Replier) {
	t, who := &q.worker.r.queries, clientKey{q.from.Addr.Addr(), q.addrProven}
	f := q.nextQuery()
	f.begunAt -= q.elapsed
	t.mu.Lock()
	existing := q.joinableLocked(f)
	c, why := t.admitLocked(who, existing == nil, q.plan)
	switch {
	case c == nil:
		silent, logIt := false, false
		// No flood limit for TCP, where this server stops reading, nor with a stale answer, which costs no more than a cache hit.
		if !q.from.Stream && !q.staleHeld {
			silent, logIt = t.floodLocked(who, q.now)
		}
		t.mu.Unlock()
		if logIt {
			from := q.sender()
			q.worker.r.log.LogAttrs(context.Background(), slog.LevelWarn, "client flood, replies suppressed", from.attrs()...)
		}
		q.rejectQuery(why, silent, to)
	case existing != nil:
		waiting := q.heldWaiter(nil, to)
		waiting.client = c
		existing.joined = append(existing.joined, waiting)
		if q.staleHeld {
			existing.holdStaleLocked(q.now)
		}
		overdue := existing.staleDue
		t.mu.Unlock()
		q.worker.r.counts.add(countJoined)
		if overdue {
			existing.serveStale(q.now, &q.worker.batch)
		}
	default:
		f.client = c
		t.addLocked(f)
		t.mu.Unlock()
		q.prepareQuery(f)
		f.first = q.heldWaiter(f.query, to)
		f.first.client = c
		if q.staleHeld {
			f.markReady(true, q.now)
		}
		timeout := q.plan.Deadline - q.elapsed
		if d := q.redirect; d != nil && d.dns64 != nil && !d.retryA { // A records may follow: some servers never answer AAAA queries
			timeout = q.plan.Deadline / 2
		}
		f.send(q.now.Add(timeout), &q.worker.batch)
	}
}

// shedBackoff is the refresh backoff of a stale answer used because there was no room for a query.
const shedBackoff = time.Second

// rejectQuery handles a query that a limit sheds. The client gets the zone fallback or the stale answer that
// the lookup found, or SERVFAIL with the reason, or nothing if it has had too many SERVFAILs.
func (q *query) rejectQuery(why Shed, silent bool, to wire.Replier) {
	if silent {
		q.worker.r.counts.shed(ShedFlood)
		if q.usage != nil {
			countReply(q.plan, q.usage, &q.Question, SourceShed, wire.RcodeServFail, 0, 0)
		}
		q.worker.tally.each[countDropped]++
		to.Reply(nil, &q.worker.batch)
		return
	}
	q.worker.r.counts.shed(why)
	waiting := q.waiter(to)
	if q.staleHeld {
		d := newResponse(q.worker.r, q.plan, q.now, &q.worker.batch)
		defer d.release()
		// As in askCache, the target of an alias gets no zone fallback.
		if !q.redirect.hasAlias() && d.useZoneFallback(q.plan.Zones, &q.Query) || d.useStale(q.plan.Cache, q.Key()) {
			if why != ShedClient { // a client over its limit must not delay the refresh for others
				q.plan.Cache.DelayRefresh(q.Key(), q.now.Add(shedBackoff), q.now)
			}
			d.deliver(&waiting)
			return
		}
	}
	q.worker.r.replyShed(why, &waiting, q.plan, &q.worker.batch)
}
