// SPDX-License-Identifier: Apache-2.0

package resolve

import (
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
