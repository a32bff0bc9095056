// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"strconv"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A client on this host may ask for an explanation of its reply with an EDNS option. The explanation
// contains words of closed sets, numbers, and names from the configuration or from the question, as
// `name=value` separated by spaces:
//
//	source   origin of the reply, one of Sources
//	rewritten name looked up in place of the query name
//	made     dns64: addresses were synthesized, or A records were queried for that
//	state    of the cache entry or the zone: a cache.Freshness, or unready
//	age      of the entry, whole seconds
//	left     seconds until expiry; negative: since expiry; for synthesized addresses: theirs
//	took     milliseconds from the query to its reply, if upstream was queried
//	kept     no: the answer may not be cached
//	below    denied name that covers all names below it
//	reason   the limit that shed the query, one of Sheds
//	route    the zone of the route; none: no route takes the name
//
// For other clients the option is unknown: it is ignored and not echoed. The explanation is built
// after the reply, so that other queries pay for one test only.

// An explanation is the text while it is written.
type explanation struct {
	buf         [wire.MaxExplanation]byte
	n           int
	synthesized bool          // the answer has synthesized addresses
	maxTTL      time.Duration // of these
}

// add adds a member if there is room for all of it.
func (a *explanation) add(name string, value []byte) {
	size := len(name) + 1 + len(value)
	if a.n > 0 {
		size++
	}
	if a.n+size > len(a.buf) {
		return
	}
	to := a.buf[:a.n]
	if a.n > 0 {
		to = append(to, ' ')
	}
	to = append(append(append(to, name...), '='), value...)
	a.n = len(to)
}

func (a *explanation) word(name, value string) { a.add(name, []byte(value)) }

// seconds adds a duration in whole seconds.
func (a *explanation) seconds(name string, d time.Duration) {
	a.add(name, append(strconv.AppendInt(nil, int64(d/time.Second), 10), 's'))
}

// left adds the time until expiry, rounded up to whole seconds.
func (a *explanation) left(d time.Duration) {
	if a.synthesized {
		d = min(d, a.maxTTL)
	}
	if d > 0 {
		d += time.Second - 1
	}
	a.seconds("left", d)
}

// took adds the duration of an upstream query.
func (a *explanation) took(d time.Duration) {
	a.add("took", append(strconv.AppendFloat(nil, float64(d)/float64(time.Millisecond), 'f', 2, 64), "ms"...))
}

func (a *explanation) text() []byte { return a.buf[:a.n] }

// admitExplain ignores the option of a client that may not use it. Otherwise it reserves room in the
// reply.
func (l *Worker) admitExplain(from *wire.Peer) {
	if l.plan.Local == nil || !l.plan.Local(from.Addr.Addr()) {
		l.q.Explain = false
		return
	}
	l.opts.Limit -= wire.ExplanationRoom
}

// explain appends the explanation to a reply of AnswerFromMemory.
func (l *Worker) explain(source Source, dst []byte, now time.Time) []byte {
	a := explanation{}
	a.word("source", Sources()[source])
	if l.redirect.active {
		a.redirect(&l.redirect, &l.q.Question)
	}
	switch source {
	case SourceZone:
		a.zoneState(l.opts.EDE)
	case SourceCache, SourceStale, SourceFailure:
		if l.redirect.active && l.redirect.useFirst { // the current key is that of the A query
			l.q.SetType(l.q.OriginalType())
			l.addSubnetToKey()
		}
		a.cacheState(l.plan, l.q.Key(), l.q.Name(), now)
		a.route(l.plan, l.q.Name())
	default: // from no cache entry
	}
	return l.q.AppendExplanation(dst, &l.opts, a.text())
}

// explain appends the explanation to a reply of the slow path.
func (w *waiter) explain(plan *Plan, source Source, msg []byte, now time.Time) []byte {
	var room, name [wire.MaxName]byte
	sought := canonical(&room, &w.ask)
	if w.redirect != nil { // the name that was looked up
		sought = w.redirect.lookupName(name[:0], sought)
	}
	a := explanation{}
	a.word("source", Sources()[source])
	if w.redirect != nil {
		a.redirect(w.redirect, &w.ask)
	}
	switch source {
	case SourceZone:
		a.zoneState(w.opts.EDE)
	case SourceStale, SourceFailure, SourceUpstream:
		key := w.lookupKey(sought)
		if e, ok := plan.Cache.Peek(key, now); ok && source == SourceUpstream && e.State <= cache.PrefetchDue {
			a.left(e.Left)
		} else if source == SourceUpstream {
			a.word("kept", "no")
		} else {
			a.cacheState(plan, key, sought, now)
		}
	default: // from no cache entry
		return w.ask.AppendExplanation(msg, &w.opts, a.text())
	}
	a.took(now.Sub(w.since))
	a.route(plan, sought)
	return w.ask.AppendExplanation(msg, &w.opts, a.text())
}

// lookupKey returns the cache key, without a subnet, of the question whose answer the waiter got, for
// the name that was looked up.
func (w *waiter) lookupKey(name []byte) []byte {
	ask := w.ask
	if d := w.redirect; d != nil && d.retryA && !d.useFirst {
		ask.Type = wire.TypeA
	}
	return ask.AppendKey(nil, name)
}

// explainShed appends the limit that shed the query.
func (w *waiter) explainShed(reason Shed, msg []byte) []byte {
	a := explanation{}
	a.word("source", Sources()[SourceShed])
	a.word("reason", Sheds()[reason])
	return w.ask.AppendExplanation(msg, &w.opts, a.text())
}

// redirect adds how the question was redirected.
func (a *explanation) redirect(d *redirect, ask *wire.Question) {
	if d.rule != nil {
		var room, to [wire.MaxName]byte
		a.add("rewritten", wire.AppendText(nil, d.rule.target(to[:0], canonical(&room, ask))))
	}
	if d.retryA {
		a.word("made", "dns64")
		a.synthesized, a.maxTTL = d.synthesized, time.Duration(d.maxTTL)*time.Second
	}
}

// canonical returns the canonical query name.
func canonical(room *[wire.MaxName]byte, ask *wire.Question) []byte {
	question := ask.QuestionSection()
	name := room[:len(question)-4]
	wire.Canonical(name, question[:len(name)])
	return name
}

// zoneState adds the state of the zone.
func (a *explanation) zoneState(ede int) {
	switch ede {
	case wire.EDENotReady:
		a.word("state", "unready")
	case wire.EDEStaleAnswer, wire.EDEStaleNXDomain:
		a.word("state", cache.Stale.String())
	default:
		a.word("state", cache.Fresh.String())
	}
}

// cacheState adds the cache entry under key, or the denial of a parent name.
func (a *explanation) cacheState(p *Plan, key, name []byte, now time.Time) {
	e, ok := p.Cache.Peek(key, now)
	var above []byte
	if !ok || e.State >= cache.Expired {
		e, above, ok = p.denial(key, name, now)
	}
	if !ok {
		return
	}
	a.word("state", e.State.String())
	a.seconds("age", e.Age)
	a.left(e.Left)
	if above != nil {
		a.add("below", wire.AppendText(nil, above))
	}
}

// denial returns the fresh cached denial of a parent name, and that name.
func (p *Plan) denial(key, name []byte, now time.Time) (e cache.Entry, above []byte, ok bool) {
	flags := key[len(name)+2]
	for above = name; len(above) > 1; {
		above = above[1+above[0]:]
		e, ok = p.Cache.Peek(append(append([]byte(nil), above...), 0, 0, flags), now)
		if ok && e.State <= cache.PrefetchDue {
			return e, above, true
		}
	}
	return e, nil, false
}

// route adds the zone of the name's route.
func (a *explanation) route(p *Plan, name []byte) {
	r := p.route(name)
	if r == nil {
		a.word("route", "none")
		return
	}
	a.add("route", wire.AppendText(nil, r.Suffix))
}
