// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"slices"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/static"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A detour is what lies between the question that a client asked and the one that is
// looked for in its place, in the order in which it is taken:
//
//	rule    a rewrite rule gave another name
//	head    an alias of the zone, of a template or of DNS64 led to the name of another server
//	second  there is no IPv6 address, and IPv4 addresses are looked for
//
// The answer comes back the other way round, see way.back. The queries of few clients
// take one: all others pay for a look at taken.
type redirect struct {
	active bool // if not, nothing else here means anything

	rule     *rewriteRule // nil: the name is the client's
	aliasMsg []byte       // a message that ends with the CNAME record whose target is looked for; empty: none
	target   int          // offset of that name in head, where it stands uncompressed

	dns64       *DNS64    // nil: IPv6 addresses are not made for this query
	retryA      bool      // the question for IPv4 addresses is in hand
	firstAnswer []byte    // then: the answer to the one for IPv6 addresses; empty: there was none
	client      wire.Peer // with six: the client
	addrProven  bool      // with six: its address is, see clientKey
	synthesized bool      // the answer has addresses that were made
	maxTTL      uint32    // with second: for how many seconds at most one that is made may be kept
	useFirst    bool      // with second: the answer to the first question is given after all
	subnet      []byte    // with six: of the client, if a route may want it
}

// take begins a detour, unless it has begun.
func (d *redirect) start() {
	if !d.active {
		*d = redirect{active: true, aliasMsg: d.aliasMsg[:0], firstAnswer: d.firstAnswer[:0]}
	}
}

// led tells whether an alias led to the name that is looked for.
func (d *redirect) hasAlias() bool { return d.active && len(d.aliasMsg) > 0 }

// maxKept is how many octets of the answer to a first question are kept for a client that
// waits for that to the second: what any client takes over UDP, and far more than a denial
// has. It is given only if nothing comes of the second question, with TC if that was not
// all. Without a bound each packet of a client could have a whole message kept.
const maxFirstAnswer = 4096

// clone is a detour that owns its bytes, for a client that is going to wait.
func (d *redirect) clone() *redirect {
	d.firstAnswer = wire.Truncate(d.firstAnswer, maxFirstAnswer)
	c := *d
	c.aliasMsg, c.firstAnswer, c.subnet = slices.Clone(d.aliasMsg), slices.Clone(d.firstAnswer), slices.Clone(d.subnet)
	return &c
}

// sought appends the canonical name that is looked for in place of the one asked for,
// which is canonical too.
func (d *redirect) lookupName(dst, asked []byte) []byte {
	switch {
	case d.hasAlias():
		return append(dst, d.aliasMsg[d.target:]...)
	case d.active && d.rule != nil:
		return d.rule.target(dst, asked)
	}
	return append(dst, asked...)
}

// A step says where an answer has got to on its way back.
type restoreState uint8

const (
	restored   restoreState = iota // it is the answer to the client's question
	needsRetry                     // another question is to be answered first
	failed                         // there is none, or none that a message holds
)

// A way is what it takes to lead an answer back. It is reused.
type restorer struct {
	tail     wire.Message
	denial   wire.Message
	held     []byte
	recaster wire.Rewriter
	sift     wire.RecordFilter
	order    []uint16 // reused
	renamer  reverseRenamer
	name     [wire.MaxName]byte
}

// ways are for answers that flights bring.
var restorerPool = sync.Pool{New: func() any { return new(restorer) }} //nolint:gochecknoglobals // a pool is shared by design and holds no state

// lead makes dst[start:], the answer to what is looked for by ask and the client, the
// answer to the client's question. failed says that it is none. What is beyond the limit
// of the client's reply is cut off first: every record that is left costs time here.
func (w *restorer) restore(d *redirect, ask *wire.Question, limit int, failure bool, dst []byte, start int) ([]byte, restoreState) {
	dst = dst[:start+len(wire.Truncate(dst[start:], limit))]
	if d.dns64 != nil {
		switch next := w.restoreDNS64(d, failure, dst[start:]); next {
		case needsRetry:
			return dst[:start], needsRetry
		case failed: // what is in hand are addresses of IPv4
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

// graft puts the head before dst[start:]. It is false if a name of one does not reach
// into the other any more.
func (w *restorer) prependAlias(d *redirect, dst []byte, start int) ([]byte, bool) {
	w.held = append(w.held[:0], dst[start:]...)
	if w.tail.Parse(w.held) != nil {
		return dst, false
	}
	return w.tail.AppendToChain(append(dst[:start], d.aliasMsg...), start, d.target)
}

// rename makes dst[start:] the answer to the name that was asked for.
func (w *restorer) rename(rule *rewriteRule, ask *wire.Question, dst []byte, start int) ([]byte, restoreState) {
	w.held = append(w.held[:0], dst[start:]...)
	if w.tail.Parse(w.held) != nil {
		return dst[:start], failed
	}
	asked := canonical(&w.name, ask)
	end := wire.HeaderLen
	for w.held[end] != 0 {
		end += 1 + int(w.held[end])
	}
	w.renamer = reverseRenamer{rule: rule, lookupName: w.held[wire.HeaderLen : end+1], asked: asked}
	dst = w.recaster.Rename(dst[:start], &w.tail, asked, &w.renamer)
	w.renamer.rule = nil
	return dst, restored
}

// aside is the rest of AnswerFromMemory where a plan has more than a zone and a cache.
func (l *Worker) answerWithExtras(from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict) {
	var done bool
	if !wire.IsLoopName(l.q.Name()) { // else it is to be known again by whoever sent it
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

// fromExtras answers from what few plans have, or has another name or address looked
// for.
func (l *Worker) answerFromExtras(from *wire.Peer, now time.Time, dst []byte) (_ []byte, done bool) {
	x := l.plan.extras
	if x.rewrites != nil {
		l.applyRewrites(x.rewrites)
	}
	if x.dns64 != nil {
		l.enableDNS64(x.dns64, from)
	}
	if x.static != nil {
		if dst, done = l.answerFromStatic(from, now, dst); done {
			return dst, true
		}
	}
	if x.dns64 != nil {
		return l.answerFromPrefix(x, from, now, dst)
	}
	return dst, false
}

// rewrite has another name looked for if a rule says so.
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

// fromStatic answers from the configuration itself, or goes on for the target of an
// alias from there.
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

// follow has the target of an alias looked for: dst[start:] is the answer as far as it
// goes, and ends with the target, of so many octets. It is false if that does not fit
// behind what led here.
func (l *Worker) followAlias(dst []byte, start, target int) bool {
	d := &l.redirect
	d.start()
	d.firstAnswer, d.maxTTL = d.firstAnswer[:0], defaultTTL // it is of the name that led here
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

// deliver makes dst[start:], the answer to what is looked for, the client's reply. It is
// false, and dst as it was before, if another question, which is in hand now, is to be
// answered first.
func (l *Worker) restoreAndReply(source Source, from *wire.Peer, now time.Time, dst []byte, start int) ([]byte, bool) {
	if l.redirect.active {
		var next restoreState
		if dst, next = l.restorer.restore(&l.redirect, &l.q.Question, l.opts.Limit, source == SourceFailure, dst, start); next != restored {
			return l.continueOrFail(next, from, now, dst, start)
		}
		l.q.Type = l.q.OriginalType()
		if l.redirect.synthesized {
			l.tally.synthesized++
		}
	}
	dst = l.q.Reply(dst, start, &l.opts)
	return l.finishReply(source, dst, start, from, now), true
}

// second answers the second question from memory, of which the cache had the answer to the first, or an upstream. A
// template may be for the one type and not for the other.
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

// notYet goes on with a query whose answer has not come to its client's question.
func (l *Worker) continueOrFail(next restoreState, from *wire.Peer, now time.Time, dst []byte, start int) ([]byte, bool) {
	if next == failed {
		l.q.Type = l.q.OriginalType()
		dst, _ = l.answerEmpty(SourceFailure, wire.RcodeServFail, from, now, dst[:start])
		return dst, true
	}
	l.opts.EDE = wire.EDENone
	l.q.SetType(wire.TypeA)
	return dst[:start], false
}

// comeBack has the second question of a waiter answered, whose first one was: from
// memory, or by a flight that it joins or begins as any query does, and as the same
// client's. It runs on whatever goroutine brought the first answer. It is false, and
// nothing done, if the client's time is over.
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
		if done { // a worker that a panic left is not used again
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

// worker is one to use for a moment.
func (r *Resolver) idleWorker() *Worker {
	if l, ok := r.workerPool.Get().(*Worker); ok {
		return l
	}
	return r.NewWorker()
}
