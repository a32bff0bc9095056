// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"github.com/nodecache/node-cache/pkg/static"
	"github.com/nodecache/node-cache/pkg/wire"
)

// redirectQuery redirects the current query if a rewrite rule matches it, and enables DNS64 for it if it
// qualifies.
func (w *Worker) redirectQuery() {
	p, q := w.plan, &w.q
	if p.Rewrites != nil {
		if to, rule := p.Rewrites.match(w.restorer.name[:0], q.Name()); rule != nil {
			w.redirect.start()
			w.redirect.rule = rule
			w.tally.each[countRewritten]++
			q.SetName(to)
		}
	}
	if p.DNS64 != nil && p.DNS64.appliesTo(q, w.from) {
		w.redirect.start()
		w.redirect.dns64, w.redirect.client = p.DNS64, *w.from
		if p.anySubnet {
			w.redirect.subnet = q.Subnet
		}
	}
}

// askStatic asks the hosts and templates of the configuration. It redirects the query to the target of an
// alias there.
func (w *Worker) askStatic(dst []byte) ([]byte, Source) {
	start := len(dst)
	dst, verdict, target := w.plan.Static.Answer(&w.q, dst)
	switch verdict {
	case static.Answered:
		return dst, SourceStatic
	case static.Alias:
		return w.followAlias(dst, start, len(target))
	case static.Failed:
		w.opts.EDE = wire.EDEOther
		return w.empty(SourceStatic, wire.RcodeServFail, dst[:start])
	case static.None:
	}
	return dst[:start], undecided
}

// followAlias redirects the query to the target of an alias: dst[start:] is the answer so far, and
// ends with the target, of so many bytes. The query fails if the alias does not fit behind the previous
// one.
func (w *Worker) followAlias(dst []byte, start, target int) ([]byte, Source) {
	d := &w.redirect
	d.start()
	d.firstAnswer, d.maxTTL = d.firstAnswer[:0], defaultTTL // of the previous name
	if len(d.aliasMsg) == 0 {
		d.aliasMsg = append(d.aliasMsg, dst[start:]...)
	} else {
		ok := w.restorer.tail.Parse(dst[start:]) == nil
		if ok {
			d.aliasMsg, ok = w.restorer.tail.AppendToChain(d.aliasMsg, 0, d.target)
		}
		if !ok {
			return w.empty(SourceFailure, wire.RcodeServFail, dst[:start])
		}
	}
	d.target = len(d.aliasMsg) - target
	w.q.SetName(d.aliasMsg[d.target:])
	return dst[:start], undecided
}

// askPrefix answers queries about the prefix of DNS64 itself, or redirects them.
func (w *Worker) askPrefix(dst []byte) ([]byte, Source) {
	p, q, source := w.plan, &w.q, undecided
	if q.DO && q.CD {
		return dst, undecided
	}
	start := len(dst)
	if q.Type == wire.TypePTR && !w.redirect.hasAlias() {
		var target int
		if dst, target = p.DNS64.appendReverse(q, dst); target > 0 {
			if dst, source = w.followAlias(dst, start, target); source == undecided && p.Static != nil {
				dst, source = w.askStatic(dst)
			}
			if source != undecided {
				return dst, source
			}
		}
	}
	dst, ok := p.DNS64.answerWellKnown(q, w.redirect.active && w.redirect.dns64 != nil, dst)
	if ok {
		source = SourceLocal
	}
	return dst, source
}

// retryWithA answers the A query of a waiter after its AAAA query: from memory, or by an in-flight
// query as for any miss, accounted to the same client. It runs on the goroutine that delivered the
// first answer. It returns false, without effect, if the client's deadline has passed.
func (d *responseBuilder) retryWithA(w *waiter) bool {
	elapsed := d.now.Sub(w.since)
	if elapsed >= d.plan.Deadline {
		return false
	}
	l, ok := d.r.workerPool.Get().(*Worker)
	if !ok {
		l = d.r.NewWorker()
	}
	l.plan, l.opts, l.redirect, l.addrProven = d.plan, w.opts, *w.redirect, w.redirect.addrProven
	l.from, l.now, l.elapsed, l.useFallback = &w.redirect.client, d.now, elapsed, false
	l.retried, l.usage = w.from, w.usage
	l.batch, *d.batch = *d.batch, l.batch
	done := false
	defer func() {
		l.batch, *d.batch = *d.batch, l.batch
		if done { // after a panic the worker is not reused
			d.r.workerPool.Put(l)
		}
	}()
	l.q.SetQuestion(&w.ask)
	l.q.Subnet = w.redirect.subnet
	if w.redirect.rule != nil || w.redirect.hasAlias() {
		var room [wire.MaxName]byte
		l.q.SetName(w.redirect.lookupName(room[:0], l.q.Name()))
	}
	l.q.SetType(wire.TypeA)
	l.tally.begin(w.since)
	room := replyBuffers.Get().(*[]byte)
	defer replyBuffers.Put(room)
	msg, verdict := l.answer((*room)[:0])
	if verdict == wire.Missed {
		to := w.to
		w.to = nil
		l.join(to)
	} else {
		*room = msg
		w.end(msg, &l.batch)
	}
	l.tally.flush(&d.r.counts, d.now)
	done = true
	return true
}
