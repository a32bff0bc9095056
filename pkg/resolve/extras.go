// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"net/netip"
	"slices"

	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/skydns"
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
	if w.plan.Static.Leaves(&w.q) {
		w.redirect.start()
		w.redirect.exists = true
	}
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

// askHosts asks the hosts of the configuration for the target of an alias.
func (w *Worker) askHosts(dst []byte) ([]byte, Source) {
	dst, found := w.plan.Static.AnswerHosts(&w.q, dst)
	if !found {
		return dst, undecided
	}
	return dst, SourceStatic
}

// askSkyDNS asks the records of etcd. It redirects the query to the target of an alias there.
func (w *Worker) askSkyDNS(dst []byte) ([]byte, Source) {
	start := len(dst)
	dst, verdict, target := w.plan.SkyDNS.Answer(&w.q, w.q.AnswerLimit(&w.opts), dst)
	switch verdict {
	case skydns.Answered:
		return dst, SourceEtcd
	case skydns.Alias:
		return w.followAlias(dst, start, len(target))
	case skydns.Failed:
		w.opts.EDE = wire.EDEOther
		return w.empty(SourceEtcd, wire.RcodeServFail, dst)
	case skydns.NotReady:
		w.opts.EDE = wire.EDENotReady
		return w.empty(SourceEtcd, wire.RcodeServFail, dst)
	case skydns.None:
	}
	return dst, undecided
}

// followAlias redirects the query to the target of an alias: dst[start:] is the answer so far, and
// ends with the target, of so many bytes. It answers if the hosts have the target. The query fails if the alias does not
// fit behind the previous one.
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
	if w.plan.Static != nil {
		return w.askHosts(dst[:start])
	}
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
	d.r.withWorker(d.plan, &w.redirect.client, d.now, elapsed, d.batch, func(l *Worker) {
		l.opts, l.redirect, l.addrProven, l.retried, l.usage = w.opts, *w.redirect, w.redirect.addrProven, w.from, w.usage
		_, l.inner = w.to.(*walk)
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
		if verdict == wire.Answered {
			*room = msg
			w.end(msg, &l.batch)
			return
		}
		to := w.to
		w.to = nil
		if l.walking {
			l.joinWalk(to)
		} else {
			l.join(to)
		}
	})
	return true
}

// beginSearch makes the current query of a pod a candidate for a walk if the pod's resolver may continue its search after a
// denial. pod is nil for a client without one.
func (w *Worker) beginSearch(pod *pods.Pod) {
	q := &w.q
	if q.Explain && q.ExplainTo != nil {
		addr, _ := netip.AddrFromSlice(q.ExplainTo)
		pod, _ = w.plan.Pods.Of(addr, w.now)
	}
	if pod == nil || pod.SearchPath() == nil || q.Type != wire.TypeA && q.Type != wire.TypeAAAA || !q.RD || q.DO {
		return
	}
	prefix := pod.SearchPath().Prefix(q.Name())
	if prefix == nil || w.plan.Pods.IsStale(w.now) || wire.IsLoopName(q.Name()) {
		return
	}
	w.redirect.start()
	w.redirect.path, w.redirect.prefix, w.redirect.client = pod.SearchPath(), len(prefix), *w.from
}

// walkFromMemory walks for the current query, whose answer is dst[start:]. The source is undecided if a lookup must wait
// for upstream.
func (w *Worker) walkFromMemory(source Source, dst []byte, start int) ([]byte, Source) {
	if w.walker == nil {
		w.walker = w.r.NewWorker()
		w.walk = new(walk)
	}
	k, l := w.walk, w.walker
	k.begin(&w.redirect, &w.q.Question, dst[start:])
	k.source = source
	l.plan, l.from, l.now, l.elapsed, l.usage = w.plan, w.from, w.now, w.elapsed, w.usage
	l.rotation = w.rotation
	if w.walking = k.advance(l, &w.q.Question, &w.opts); w.walking {
		return dst[:start], undecided
	}
	if dst, k.found = k.appendFound(l, dst, start); !k.found {
		return dst, source
	}
	w.opts.EDE, w.redirect.suffix = k.ede, k.at
	return dst, SourceSearch
}

// joinWalk makes the client of the current query wait for its walk.
func (w *Worker) joinWalk(to wire.Replier) {
	k := w.walk
	waiting := *k
	waiting.prefix, waiting.asked, waiting.own = slices.Clone(k.prefix), slices.Clone(k.asked), slices.Clone(k.own)
	waiting.question, waiting.answer = nil, nil
	waiting.r, waiting.plan, waiting.client, waiting.from, waiting.addrProven = w.r, w.plan, w.waiter(nil, to), *w.from, w.addrProven
	w.walker.addrProven = w.addrProven
	w.walker.join(&waiting)
}

// walkOn walks for a waiter after the answer for the name it asked came from upstream.
func (d *responseBuilder) walkOn(w *waiter, answer []byte) {
	k := &walk{r: d.r, plan: d.plan, from: w.redirect.client, addrProven: w.redirect.addrProven, source: d.source}
	k.begin(w.redirect, &w.ask, answer)
	k.client = *w
	w.to = nil
	k.resume(nil, d.now, d.batch)
}
