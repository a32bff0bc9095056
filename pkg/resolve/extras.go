// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"github.com/nodecache/node-cache/pkg/names/localdata"
	"github.com/nodecache/node-cache/pkg/names/skydns"
	"github.com/nodecache/node-cache/pkg/wire"
)

// redirectQuery redirects the current query if a rewrite rule matches it, and enables DNS64 for it if it
// qualifies.
func (l *lookup) redirectQuery() {
	p, q := l.plan, &l.Query
	if p.Rewrites != nil {
		if to, rule := p.Rewrites.match(l.worker.restorer.name[:0], q.Name()); rule != nil {
			l.startRedirect().rule = rule
			l.worker.tally.each[countRewritten]++
			q.SetName(to)
		}
	}
	if p.DNS64 != nil && p.DNS64.appliesTo(q, l.from) {
		d := l.startRedirect()
		d.dns64, d.client = p.DNS64, *l.from
		if p.anySubnet {
			d.subnet = q.Subnet
		}
	}
}

// askStatic asks the hosts and templates of the configuration. It redirects the query to the target of an
// alias there.
func (l *lookup) askStatic(dst []byte) ([]byte, Source) {
	start := len(dst)
	if l.plan.LocalData.Leaves(&l.Query) {
		l.startRedirect().exists = true
	}
	dst, verdict, target := l.plan.LocalData.Answer(&l.Query, dst)
	switch verdict {
	case localdata.Answered:
		return dst, SourceStatic
	case localdata.Alias:
		return l.followAlias(dst, start, len(target))
	case localdata.Failed:
		l.opts.EDE = wire.EDEOther
		return l.empty(SourceStatic, wire.RcodeServFail, dst[:start])
	case localdata.None:
	}
	return dst[:start], undecided
}

// askHosts asks the hosts of the configuration, but no templates, for the target of an alias.
func (l *lookup) askHosts(dst []byte) ([]byte, Source) {
	dst, found := l.plan.LocalData.AnswerHosts(&l.Query, dst)
	if !found {
		return dst, undecided
	}
	return dst, SourceStatic
}

// askSkyDNS asks the records of etcd. It redirects the query to the target of an alias there.
func (l *lookup) askSkyDNS(dst []byte) ([]byte, Source) {
	start := len(dst)
	dst, verdict, target := l.plan.SkyDNS.Answer(&l.Query, l.AnswerLimit(&l.opts), dst)
	switch verdict {
	case skydns.Answered:
		return dst, SourceEtcd
	case skydns.Alias:
		return l.followAlias(dst, start, len(target))
	case skydns.Failed:
		l.opts.EDE = wire.EDEOther
		return l.empty(SourceEtcd, wire.RcodeServFail, dst)
	case skydns.NotReady:
		l.opts.EDE = wire.EDENotReady
		return l.empty(SourceEtcd, wire.RcodeServFail, dst)
	case skydns.None:
	}
	return dst, undecided
}

// followAlias redirects the query to the target of an alias: dst[start:] is the answer so far, and its
// last target bytes are the target's name. It answers if the hosts have the target. The query fails if
// the alias cannot be appended to the message of the previous aliases.
func (l *lookup) followAlias(dst []byte, start, target int) ([]byte, Source) {
	d := l.startRedirect()
	d.firstAnswer, d.maxTTL = d.firstAnswer[:0], defaultTTL // drop the AAAA answer and the maximum TTL of the previous name
	if len(d.aliasMsg) == 0 {
		d.aliasMsg = append(d.aliasMsg, dst[start:]...)
	} else {
		ok := l.worker.restorer.tail.Parse(dst[start:]) == nil
		if ok {
			d.aliasMsg, ok = l.worker.restorer.tail.AppendToChain(d.aliasMsg, 0, d.target)
		}
		if !ok {
			return l.empty(SourceFailure, wire.RcodeServFail, dst[:start])
		}
	}
	d.target = len(d.aliasMsg) - target
	l.SetName(d.aliasMsg[d.target:])
	if l.plan.LocalData != nil {
		return l.askHosts(dst[:start])
	}
	return dst[:start], undecided
}

// askPrefix answers the names that reveal the DNS64 prefix, and redirects PTR queries for its addresses.
func (l *lookup) askPrefix(dst []byte) ([]byte, Source) {
	p, q, source := l.plan, &l.Query, undecided
	if q.DO && q.CD {
		return dst, undecided
	}
	start := len(dst)
	if q.Type == wire.TypePTR && !l.redirect.hasAlias() {
		var target int
		if dst, target = p.DNS64.appendReverse(q, dst); target > 0 {
			if dst, source = l.followAlias(dst, start, target); source == undecided && p.LocalData != nil {
				dst, source = l.askStatic(dst)
			}
			if source != undecided {
				return dst, source
			}
		}
	}
	dst, ok := p.DNS64.answerWellKnown(q, l.redirect != nil && l.redirect.dns64 != nil, dst)
	if ok {
		source = SourceLocal
	}
	return dst, source
}
