// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"bytes"
	"time"

	"github.com/nodecache/node-cache/pkg/names/blocklist"
	"github.com/nodecache/node-cache/pkg/names/tsig"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A Worker is the resolver's state for one goroutine that reads packets: the current query, what is reused
// for the next one, and counters that are added to the resolver's once per batch.
type Worker struct {
	r          *Resolver
	outside    bool // it answers in the outside view
	query      query
	room       redirect // memory for the query's redirect
	restorer   restorer
	rotation   uint32 // counts zone answers, to rotate their addresses
	tally      tally
	sampler    sampler
	rule       blocklist.Rule // the rule of the last reply with SourceBlock
	batch      wire.SendBatch // upstream queries and replies to send at the end of the batch
	spareQuery *inFlight      // used for the next in-flight query that starts; nil: not allocated
	walker     *Worker        // looks names up for walk; nil: not needed yet
	walk       *walk          // walk of the current query; nil if walker is nil
}

// NewWorker returns a worker.
func (r *Resolver) NewWorker() *Worker { return &Worker{r: r} }

// begin clears the current query for a new one of a client.
func (w *Worker) begin(plan *Plan, from *wire.Peer, now time.Time) *query {
	q := &w.query
	*q = query{}
	q.worker, q.plan, q.from, q.now = w, plan, from, now
	return q
}

// AnswerFromMemory answers the query in pkt from memory if it can, and appends the reply to dst. After
// wire.Missed the caller must call Resolve; until then pkt and from must not change.
func (w *Worker) AnswerFromMemory(pkt []byte, from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict) {
	plan := w.r.plan.Load()
	if w.outside {
		plan = plan.outside
	}
	q := w.begin(plan, from, now)
	w.tally.begin(now)
	if rcode := q.Parse(pkt); rcode != wire.RcodeSuccess {
		return q.answerFault(rcode, pkt, dst)
	}
	if w.outside {
		q.SetOutside()
	}
	if q.isSelfQuery() { // neither counted nor logged: the agent sends several a second
		q.initReplyOptions()
		return q.AppendRecord(dst, wire.TypeTXT, 0, q.plan.self, &q.opts), wire.Answered
	}
	w.tally.query(from, q.Type)
	if q.plan.Tap != nil {
		q.plan.Tap.ClientQuery(from, now, pkt)
	}
	var pod *pods.Pod
	if q.plan.Pods != nil {
		pod, q.usage = q.plan.Pods.UsageOf(from.Addr.Addr())
	}
	q.initReplyOptions()
	if q.Class != wire.ClassIN || oddType(q.Type) || q.TSIG > 0 && q.plan.verifies(from.Addr.Addr()) {
		return q.answerUnusual(pkt, dst)
	}
	if q.plan.SearchPath {
		q.beginSearch(pod)
	}
	q.applyExtras()
	return q.makeReply(dst)
}

// Resolve takes over the query that AnswerFromMemory missed. It joins or starts the in-flight query
// for its key, or starts a transfer.
func (w *Worker) Resolve(from *wire.Peer, now time.Time, to wire.Replier) {
	q := &w.query
	q.from, q.now = from, now
	if isTransfer(q.Type) {
		held := zone.Secondary{Addr: from.Addr.Addr(), Serial: q.Serial, HasSerial: q.HasSerial}
		t := transfer{r: w.r, plan: q.plan, zone: q.plan.Zones.At(q.Name()), waiter: q.heldWaiter(nil, to), client: held}
		t.start(q.signer, &w.batch)
		return
	}
	q.addrProven = from.Stream || q.Cookie != nil && w.r.cookies.isValid(q.Cookie, from.Addr.Addr(), now)
	q.wait(to)
}

// Flush ends the batch at the time now: it sends the collected queries and replies, and adds the
// worker's counters to the resolver's.
func (w *Worker) Flush(now time.Time) {
	if w.walker != nil {
		w.walker.Flush(now)
	}
	w.batch.Flush()
	w.sampler.mean = w.tally.flush(&w.r.counts, now)
}

// withWorker calls do with a cleared query of a pooled worker, for a client whose query arrived elapsed ago.
func (r *Resolver) withWorker(plan *Plan, from *wire.Peer, now time.Time, elapsed time.Duration, batch *wire.SendBatch, do func(*query)) {
	w, ok := r.workerPool.Get().(*Worker)
	if !ok {
		w = r.NewWorker()
	}
	q := w.begin(plan, from, now)
	q.elapsed = elapsed
	w.batch, *batch = *batch, w.batch
	done := false
	defer func() {
		w.batch, *batch = *batch, w.batch
		if done { // after a panic the worker is not reused
			r.workerPool.Put(w)
		}
	}()
	do(q)
	if w.walker != nil {
		w.walker.Flush(now)
	}
	w.tally.flush(&r.counts, now)
	done = true
}

// A query is what a worker knows of one query of a client: what it asks, and who asks. It is cleared for
// the next one.
type query struct {
	lookup

	usage      *pods.Usage   // counters of the client's pod, or of all clients without one; nil: not counted
	retried    *sender       // the client as it was when the query arrived, for a DNS64 retry or a walk; nil: see from
	elapsed    time.Duration // since the query arrived; 0 except for DNS64 retries and walks
	cookieRoom [cookieLen]byte
	signer     *tsig.Signer // signs the reply; nil: the reply is not signed
	addrProven bool         // the source address is verified, see clientKey; set only for a miss
	walking    bool         // a lookup of the walk must wait for upstream
	inner      bool         // the reply is for a walk, and not counted
}

// makeReply appends the reply to the query, if memory has the answer.
func (q *query) makeReply(dst []byte) ([]byte, wire.Verdict) {
	start := len(dst)
	dst, source := q.answer(dst)
	if q.redirect != nil && q.redirect.mayWalk(dst[start:]) {
		dst, source = q.walkFromMemory(source, dst, start)
	}
	if len(dst) > start {
		dst = q.Reply(dst, start, &q.opts)
	}
	return q.finishReply(source, dst, start)
}

// initReplyOptions sets the options of the reply.
func (q *query) initReplyOptions() {
	q.opts = wire.ReplyOptions{Limit: q.Limit(q.from.Stream, q.plan.UDPSize), UDPSize: uint16(q.plan.UDPSize), EDE: wire.EDENone}
	if !q.EDNS {
		return
	}
	if q.Explain { // only a client on this host gets an explanation; reserve room for it
		if q.Explain = q.isLocal(); q.Explain {
			q.opts.Limit -= wire.ExplanationRoom
		}
	}
	q.opts.Pad = q.Padding && q.from.TLS && !q.Explain
	if q.Cookie != nil {
		q.opts.Cookie = q.worker.r.cookies.makeCookie(&q.cookieRoom, q.Cookie, q.from.Addr.Addr(), q.now)
	}
	if q.Keepalive && q.from.Stream {
		q.opts.Keepalive = uint16(min(q.plan.Keepalive/(100*time.Millisecond), 1<<16-1)) // units of 100 ms (RFC 7828)
	}
}

// oddType reports whether a query type does not ask for records.
func oddType(t uint16) bool { return t >= 128 && t <= 255 || t == wire.TypeOPT || t == 0 }

// isTransfer reports whether a query type asks for a zone transfer.
func isTransfer(t uint16) bool { return t == wire.TypeAXFR || t == wire.TypeIXFR }

// isSelfQuery reports whether the query is the agent's own, from an address of this host: for SelfName, or for the same labels below
// another domain. A test of the fallback uses the cluster domain: a DNS server that has it does not forward the query.
func (q *query) isSelfQuery() bool {
	return q.Class == wire.ClassCH && q.Type == wire.TypeTXT && len(q.plan.self) > 0 &&
		bytes.HasPrefix(q.Name(), []byte(selfName[:len(selfName)-1])) && q.isLocal()
}

// isLocal reports whether the client is on this host.
func (q *query) isLocal() bool { return q.plan.Local != nil && q.plan.Local(q.from.Addr.Addr()) }

// wait makes the client wait for the answer that memory does not have.
func (q *query) wait(to wire.Replier) {
	if q.walking {
		q.joinWalk(to)
	} else {
		q.join(to)
	}
}

// finishReply counts and logs the reply dst[start:] of AnswerFromMemory, and adds the explanation that
// a client asked for.
func (q *query) finishReply(source Source, dst []byte, start int) ([]byte, wire.Verdict) {
	if source == undecided {
		return dst, wire.Missed
	}
	if len(dst) == start {
		dst = q.AppendEmpty(dst, q.rcode, &q.opts)
	}
	if q.inner {
		return dst, wire.Answered
	}
	rcode := int(dst[start+3] & 0x0f)
	q.worker.tally.response(source, rcode)
	if n := q.worker.sampler.next(); n > 0 {
		q.worker.r.addRecent(q.plan, &q.Question, q.from.Addr.Addr(), source, rcode, n, 0, q.now)
	}
	if source == SourceFailure {
		q.worker.r.failures.add(q.plan, &q.Question, q.from.Addr.Addr())
	}
	if source == SourceBlock {
		q.worker.rule.Count()
	}
	if q.usage != nil {
		countReply(q.plan, q.usage, &q.Question, source, rcode, len(dst)-start, 0)
	}
	if isReported(q.plan) {
		now := q.worker.r.now()
		done := report{
			ask: &q.Question, from: q.sender(), source: source, rcode: rcode, ede: q.opts.EDE,
			at: now, took: now.Sub(q.now) + q.elapsed, reply: dst[start:], memory: &q.lookup,
		}
		done.passOn(q.plan)
	}
	if q.Explain {
		dst = q.explain(source, dst)
	}
	return dst, wire.Answered
}

// isReported reports whether queries are logged, watched or sent to a dnstap collector.
func isReported(p *Plan) bool {
	return p.QueryLog != nil || p.Tap != nil || p.Watchers != nil && p.Watchers.list.Load() != nil
}
