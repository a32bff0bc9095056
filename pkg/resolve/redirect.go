// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"slices"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/static"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A redirect is the way from the client's question to the question that is looked up in its place, in
// this order:
//
//	rule      a rewrite rule replaced the name
//	aliasMsg  an alias of the zone, of a template or of DNS64 leads to an external name
//	retryA    there is no IPv6 address, and A records are queried
//
// restorer.restore reverses it for the answer. Most queries have no redirect and pay for the check of
// active only.
type redirect struct {
	active bool // if false, the other fields mean nothing

	rule     *rewriteRule // nil: the name is the client's
	aliasMsg []byte       // a message that ends with the CNAME record whose target is looked up; empty: none
	target   int          // offset of that target in aliasMsg, where it is uncompressed

	dns64       *DNS64    // nil: no DNS64 for this query
	retryA      bool      // the current question is for A records
	firstAnswer []byte    // with retryA: the answer to the AAAA query; empty: none
	client      wire.Peer // with dns64
	addrProven  bool      // with dns64: the client's address is verified, see clientKey
	synthesized bool      // the answer has synthesized addresses
	maxTTL      uint32    // with retryA: of synthesized addresses, in seconds
	useFirst    bool      // with retryA: the answer to the AAAA query is returned after all
	subnet      []byte    // with dns64: of the client, if a route may forward it
}

// start activates the redirect, unless it is active.
func (d *redirect) start() {
	if !d.active {
		*d = redirect{active: true, aliasMsg: d.aliasMsg[:0], firstAnswer: d.firstAnswer[:0]}
	}
}

// hasAlias reports whether an alias led to the current name.
func (d *redirect) hasAlias() bool { return d.active && len(d.aliasMsg) > 0 }

// maxFirstAnswer bounds the bytes of the AAAA answer that are kept while the client waits for A
// records: the maximum of a UDP reply, and far more than a denial has. The answer is used only if the
// A query has no result, truncated with TC if it was longer. Without this bound each query could hold
// a whole message.
const maxFirstAnswer = 4096

// clone returns a copy with its own bytes, for a client that waits.
func (d *redirect) clone() *redirect {
	d.firstAnswer = wire.Truncate(d.firstAnswer, maxFirstAnswer)
	c := *d
	c.aliasMsg, c.firstAnswer, c.subnet = slices.Clone(d.aliasMsg), slices.Clone(d.firstAnswer), slices.Clone(d.subnet)
	return &c
}

// lookupName appends the canonical name that is looked up in place of the canonical name asked.
func (d *redirect) lookupName(dst, asked []byte) []byte {
	switch {
	case d.hasAlias():
		return append(dst, d.aliasMsg[d.target:]...)
	case d.active && d.rule != nil:
		return d.rule.target(dst, asked)
	}
	return append(dst, asked...)
}

// A restoreState is the progress of an answer on its way back to the client's question.
type restoreState uint8

const (
	restored   restoreState = iota // it answers the client's question
	needsRetry                     // A records must be queried first
	failed                         // there is no answer, or none that fits a message
)

// A restorer turns answers back into answers to the client's question. It is reused.
type restorer struct {
	tail     wire.Message
	denial   wire.Message
	held     []byte
	recaster wire.Rewriter
	order    []uint16 // reused
	renamer  reverseRenamer
	renames  func(dst, name []byte) ([]byte, bool)
	name     [wire.MaxName]byte
}

// restorerPool is for answers from upstream.
var restorerPool = sync.Pool{New: func() any { return new(restorer) }} //nolint:gochecknoglobals // a pool is shared by design and holds no state

// restore turns dst[start:], the answer to the current question, into the answer to the client's
// question. failure says that there is no answer. It first truncates the answer to limit, because each
// record costs time here.
func (w *restorer) restore(d *redirect, ask *wire.Question, limit int, failure bool, dst []byte, start int) ([]byte, restoreState) {
	dst = dst[:start+len(wire.Truncate(dst[start:], limit))]
	if d.dns64 != nil {
		switch next := w.restoreDNS64(d, failure, dst[start:]); next {
		case needsRetry:
			return dst[:start], needsRetry
		case failed: // the message has A records
			failure = true
		case restored:
			dst = append(dst[:start], w.held...)
			failure = false
		}
	}
	if failure {
		return dst[:start], failed
	}
	if d.hasAlias() {
		var ok bool
		if dst, ok = w.prependAlias(d, dst, start); !ok {
			return dst[:start], failed
		}
	}
	if d.rule != nil {
		return w.rename(d.rule, ask, dst, start)
	}
	return dst, restored
}

// prependAlias inserts the alias message before dst[start:]. It returns false if the compression
// pointers of one cannot reach into the other any more.
func (w *restorer) prependAlias(d *redirect, dst []byte, start int) ([]byte, bool) {
	if !w.hold(dst[start:]) {
		return dst, false
	}
	return w.tail.AppendToChain(append(dst[:start], d.aliasMsg...), start, d.target)
}

// hold copies msg to w.held and parses it into w.tail.
func (w *restorer) hold(msg []byte) bool {
	w.held = append(w.held[:0], msg...)
	return w.tail.Parse(w.held) == nil
}

// rename turns dst[start:] into the answer for the client's name.
func (w *restorer) rename(rule *rewriteRule, ask *wire.Question, dst []byte, start int) ([]byte, restoreState) {
	if !w.hold(dst[start:]) {
		return dst[:start], failed
	}
	asked := canonical(&w.name, ask)
	end := wire.HeaderLen
	for w.held[end] != 0 {
		end += 1 + int(w.held[end])
	}
	w.renamer = reverseRenamer{rule: rule, lookupName: w.held[wire.HeaderLen : end+1], asked: asked}
	if w.renames == nil {
		w.renames = w.renamer.rename // made once: a method value allocates
	}
	dst = w.recaster.Rename(dst[:start], &w.tail, asked, w.renames)
	w.renamer.rule = nil
	return dst, restored
}

// answerWithExtras is the rest of AnswerFromMemory for plans with extras.
func (l *Worker) answerWithExtras(from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict) {
	var done bool
	if !wire.IsLoopName(l.q.Name()) { // the sender must recognize a loop name unchanged
		if dst, done = l.answerFromExtras(from, now, dst); done {
			return dst, wire.Answered
		}
	}
	if l.plan.Zone != nil {
		if dst, done = l.answerFromZone(from, now, dst); done {
			return dst, wire.Answered
		}
	}
	return l.answerFromCache(from, now, dst)
}

// answerFromExtras answers from the extras, or redirects the query.
func (l *Worker) answerFromExtras(from *wire.Peer, now time.Time, dst []byte) (_ []byte, done bool) {
	p := l.plan
	if p.Rewrites != nil {
		l.applyRewrites(p.Rewrites)
	}
	if p.DNS64 != nil {
		l.enableDNS64(p.DNS64, from)
	}
	if p.Static != nil {
		if dst, done = l.answerFromStatic(from, now, dst); done {
			return dst, true
		}
	}
	if p.DNS64 != nil {
		return l.answerFromPrefix(p, from, now, dst)
	}
	return dst, false
}

// applyRewrites redirects the query if a rule matches.
func (l *Worker) applyRewrites(rules *Rewrites) {
	to, rule := rules.match(l.restorer.name[:0], l.q.Name())
	if rule == nil {
		return
	}
	l.redirect.start()
	l.redirect.rule = rule
	l.tally.rewritten++
	l.q.SetName(to)
}

// answerFromStatic answers from the configuration, or redirects the query to the target of an alias
// there.
func (l *Worker) answerFromStatic(from *wire.Peer, now time.Time, dst []byte) ([]byte, bool) {
	start := len(dst)
	dst, result := l.plan.Static.Answer(&l.q, dst)
	switch result.Verdict {
	case static.Answered:
		if dst, done := l.restoreAndReply(SourceStatic, from, now, dst, start); done {
			return dst, true
		}
		return l.answerFromStatic(from, now, dst[:start])
	case static.Alias:
		if l.followAlias(dst, start, len(result.Target)) {
			return dst[:start], false
		}
		dst, _ = l.answerEmpty(SourceFailure, wire.RcodeServFail, from, now, dst[:start])
		return dst, true
	case static.Failed:
		l.opts.EDE = wire.EDEOther
		dst, _ = l.answerEmpty(SourceStatic, wire.RcodeServFail, from, now, dst[:start])
		return dst, true
	case static.None:
	}
	return dst[:start], false
}

// followAlias redirects the query to the target of an alias: dst[start:] is the answer so far, and
// ends with the target, of so many bytes. It returns false if the alias does not fit behind the
// previous one.
func (l *Worker) followAlias(dst []byte, start, target int) bool {
	d := &l.redirect
	d.start()
	d.firstAnswer, d.maxTTL = d.firstAnswer[:0], defaultTTL // of the previous name
	if len(d.aliasMsg) == 0 {
		d.aliasMsg = append(d.aliasMsg, dst[start:]...)
	} else {
		if l.restorer.tail.Parse(dst[start:]) != nil {
			return false
		}
		head, ok := l.restorer.tail.AppendToChain(d.aliasMsg, 0, d.target)
		if d.aliasMsg = head; !ok {
			return false
		}
	}
	d.target = len(d.aliasMsg) - target
	l.q.SetName(d.aliasMsg[d.target:])
	return true
}

// restoreAndReply turns dst[start:], the answer to the current question, into the client's reply. If A
// records must be queried first it returns false and dst as it was before; the current question is
// changed then.
func (l *Worker) restoreAndReply(source Source, from *wire.Peer, now time.Time, dst []byte, start int) ([]byte, bool) {
	if l.redirect.active {
		var next restoreState
		dst, next = l.restorer.restore(&l.redirect, &l.q.Question, l.opts.Limit, source == SourceFailure, dst, start)
		if next == needsRetry {
			l.opts.EDE = wire.EDENone
			l.q.SetType(wire.TypeA)
			return dst[:start], false
		}
		l.q.Type = l.q.OriginalType()
		if next == failed {
			dst, _ = l.answerEmpty(SourceFailure, wire.RcodeServFail, from, now, dst[:start])
			return dst, true
		}
		if l.redirect.synthesized {
			l.tally.synthesized++
		}
	}
	dst = l.q.Reply(dst, start, &l.opts)
	return l.finishReply(source, dst, start, from, now), true
}

// answerRetry answers the A query from memory, after the AAAA answer came from the cache or an
// upstream. A template may cover one type and not the other.
func (l *Worker) answerRetry(from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict) {
	var done bool
	if l.plan.Static != nil && !l.redirect.hasAlias() {
		if dst, done = l.answerFromStatic(from, now, dst); done {
			return dst, wire.Answered
		}
		if l.plan.Zone != nil && l.redirect.hasAlias() {
			if dst, done = l.answerFromZone(from, now, dst); done {
				return dst, wire.Answered
			}
		}
	}
	return l.answerFromCache(from, now, dst)
}

// retryWithA answers the A query of a waiter after its AAAA query: from memory, or by an in-flight
// query as for any miss, accounted to the same client. It runs on the goroutine that delivered the
// first answer. It returns false, without effect, if the client's deadline has passed.
func (h *replySender) retryWithA(w *waiter) bool {
	if h.now.Sub(w.since) >= h.plan.Deadline {
		return false
	}
	d := w.redirect
	l := h.r.idleWorker()
	l.plan, l.opts, l.redirect, l.addrProven = h.plan, w.opts, *d, d.addrProven
	l.elapsed = h.now.Sub(w.since)
	l.batch, *h.batch = *h.batch, l.batch
	done := false
	defer func() {
		l.batch, *h.batch = *h.batch, l.batch
		if done { // after a panic the worker is not reused
			h.r.workerPool.Put(l)
		}
	}()
	l.q.SetQuestion(&w.ask)
	l.q.Subnet = d.subnet
	if d.rule != nil || d.hasAlias() {
		var room [wire.MaxName]byte
		l.q.SetName(d.lookupName(room[:0], l.q.Name()))
	}
	l.q.SetType(wire.TypeA)
	l.tally.begin(w.since)
	room := replyBuffers.Get().(*[]byte)
	defer replyBuffers.Put(room)
	msg, verdict := l.answerRetry(&d.client, h.now, (*room)[:0])
	if verdict == wire.Missed {
		to := w.to
		w.to = nil
		l.join(&d.client, h.now, to)
	} else {
		*room = msg
		w.end(msg, &l.batch)
	}
	l.tally.flush(&h.r.counts, h.now)
	done = true
	return true
}

// idleWorker returns a worker for temporary use.
func (r *Resolver) idleWorker() *Worker {
	if l, ok := r.workerPool.Get().(*Worker); ok {
		return l
	}
	return r.NewWorker()
}
