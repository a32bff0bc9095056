// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"strconv"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A client on this machine may ask how its reply came about, by an EDNS option: it is
// who would look for a fault here. It is told words of closed sets, numbers, and names
// that the configuration or its own question has, as `name=value` parted by blanks:
//
//	source   where the reply came from, one of Sources
//	rewritten the name that was looked up in place of the one that was asked
//	made     dns64: addresses were made, or looked for to be made
//	state    of what the cache holds, or the zone: a cache.State, or unready
//	age      of it, whole seconds
//	left     of its time, whole seconds; negative: since it was over; of made addresses, of theirs
//	took     from the query's arrival to its reply, in milliseconds, of a flight
//	kept     no: the answer may not be kept
//	below    the name whose denial answers for all below it
//	reason   of a shed, one of Sheds
//	route    the zone of the route; none: no route takes the name
//
// To everybody else the option is an unknown one: ignored and not echoed. What costs
// time is done after the reply was made, so that who does not ask pays one test.

// An account is the text of an explanation as it is written.
type explanation struct {
	buf         [wire.MaxExplanation]byte
	n           int
	synthesized bool          // the answer has addresses that were made
	maxTTL      time.Duration // then: for how long at most
}

// add adds a member, if there is room for all of it.
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

// seconds adds a time in whole seconds.
func (a *explanation) seconds(name string, d time.Duration) {
	a.add(name, append(strconv.AppendInt(nil, int64(d/time.Second), 10), 's'))
}

// left adds what is left of a time, a part of a second as a whole one: of a minute that
// has just begun that is the minute.
func (a *explanation) left(d time.Duration) {
	if a.synthesized {
		d = min(d, a.maxTTL)
	}
	if d > 0 {
		d += time.Second - 1
	}
	a.seconds("left", d)
}

// took adds how long a flight took.
func (a *explanation) took(d time.Duration) {
	a.add("took", append(strconv.AppendFloat(nil, float64(d)/float64(time.Millisecond), 'f', 2, 64), "ms"...))
}

func (a *explanation) text() []byte { return a.buf[:a.n] }

// admitExplain forgets that a client asked how its reply comes about if it may not
// know, and else keeps room for that in the reply.
func (l *Worker) admitExplain(from *wire.Peer) {
	if l.plan.Local == nil || !l.plan.Local(from.Addr.Addr()) {
		l.q.Explain = false
		return
	}
	l.opts.Limit -= wire.ExplanationRoom
}

// explain appends to a reply of AnswerFromMemory how it came about.
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
		if l.redirect.active && l.redirect.useFirst { // the key in hand is that of the second question
			l.q.SetType(l.q.OriginalType())
			l.addSubnetToKey()
		}
		a.cacheState(l.plan, l.q.Key(), l.q.Name(), now)
		a.route(l.plan, l.q.Name())
	default: // made here, of nothing that is held
	}
	return l.q.AppendExplanation(dst, &l.opts, a.text())
}

// explain appends to a reply of the slow path how it came about.
func (w *waiter) explain(plan *Plan, source Source, msg []byte, now time.Time) []byte {
	var name [wire.MaxName]byte
	sought := w.lookupName(name[:0])
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
		if e, ok := plan.Cache.Peek(key, now); ok && source == SourceUpstream && e.State <= cache.StateDue {
			a.left(e.Left)
		} else if source == SourceUpstream {
			a.word("kept", "no")
		} else {
			a.cacheState(plan, key, sought, now)
		}
	default: // made here, of nothing that is held
		return w.ask.AppendExplanation(msg, &w.opts, a.text())
	}
	a.took(now.Sub(w.since))
	a.route(plan, sought)
	return w.ask.AppendExplanation(msg, &w.opts, a.text())
}

// soughtKey is the key, without a subnet, of the question whose answer the waiter got,
// for the name that was sought.
func (w *waiter) lookupKey(name []byte) []byte {
	ask := w.ask
	if d := w.redirect; d != nil && d.retryA && !d.useFirst {
		ask.Type = wire.TypeA
	}
	return ask.AppendKey(nil, name)
}

// explainShed appends to the reply of a client for whom there was no room which
// bound was reached.
func (w *waiter) explainShed(reason Shed, msg []byte) []byte {
	a := explanation{}
	a.word("source", Sources()[SourceShed])
	a.word("reason", Sheds()[reason])
	return w.ask.AppendExplanation(msg, &w.opts, a.text())
}

// sought appends the canonical name that the waiter's flight was for: its own
// question's, or the target of the alias that the zone gave for it.
func (w *waiter) lookupName(dst []byte) []byte {
	var room [wire.MaxName]byte
	asked := canonical(&room, &w.ask)
	if w.redirect == nil {
		return append(dst, asked...)
	}
	return w.redirect.lookupName(dst, asked)
}

// detour adds which way led to what was looked for.
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

// canonical is the canonical name that is asked for.
func canonical(room *[wire.MaxName]byte, ask *wire.Question) []byte {
	question := ask.QuestionSection()
	name := room[:len(question)-4]
	wire.Canonical(name, question[:len(name)])
	return name
}

// zoneState adds how sure of itself the zone was.
func (a *explanation) zoneState(ede int) {
	switch ede {
	case wire.EDENotReady:
		a.word("state", "unready")
	case wire.EDEStaleAnswer, wire.EDEStaleNXDomain:
		a.word("state", cache.StateStale.String())
	default:
		a.word("state", cache.StateFresh.String())
	}
}

// held adds what the cache holds under key, or what denies a name above.
func (a *explanation) cacheState(p *Plan, key, name []byte, now time.Time) {
	e, ok := p.Cache.Peek(key, now)
	var above []byte
	if !ok || !e.State.Usable() {
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

// denial is the fresh denial of a name above, by which everything below it is denied,
// and that name.
func (p *Plan) denial(key, name []byte, now time.Time) (e cache.Entry, above []byte, ok bool) {
	flags := key[len(name)+2]
	for above = name; len(above) > 1; {
		above = above[1+above[0]:]
		e, ok = p.Cache.Peek(append(append([]byte(nil), above...), 0, 0, flags), now)
		if ok && e.State <= cache.StateDue {
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
