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
type detour struct {
	taken bool // if not, nothing else here means anything

	rule   *rewrite // nil: the name is the client's
	head   []byte   // a message that ends with the CNAME record whose target is looked for; empty: none
	target int      // offset of that name in head, where it stands uncompressed

	six    *DNS64    // nil: IPv6 addresses are not made for this query
	second bool      // the question for IPv4 addresses is in hand
	kept   []byte    // then: the answer to the one for IPv6 addresses; empty: there was none
	from   wire.Peer // with six: the client
	proven bool      // with six: its address is, see clientKey
	made   bool      // the answer has addresses that were made
	most   uint32    // with second: for how many seconds at most one that is made may be kept
	back   bool      // with second: the answer to the first question is given after all
	subnet []byte    // with six: of the client, if a route may want it
}

// take begins a detour, unless it has begun.
func (d *detour) take() {
	if !d.taken {
		*d = detour{taken: true, head: d.head[:0], kept: d.kept[:0]}
	}
}

// led tells whether an alias led to the name that is looked for.
func (d *detour) led() bool { return d.taken && len(d.head) > 0 }

// maxKept is how many octets of the answer to a first question are kept for a client that
// waits for that to the second: what any client takes over UDP, and far more than a denial
// has. It is given only if nothing comes of the second question, with TC if that was not
// all. Without a bound each packet of a client could have a whole message kept.
const maxKept = 4096

// clone is a detour that owns its bytes, for a client that is going to wait.
func (d *detour) clone() *detour {
	d.kept = wire.Truncate(d.kept, maxKept)
	c := *d
	c.head, c.kept, c.subnet = slices.Clone(d.head), slices.Clone(d.kept), slices.Clone(d.subnet)
	return &c
}

// sought appends the canonical name that is looked for in place of the one asked for,
// which is canonical too.
func (d *detour) sought(dst, asked []byte) []byte {
	switch {
	case d.led():
		return append(dst, d.head[d.target:]...)
	case d.taken && d.rule != nil:
		return d.rule.of(dst, asked)
	}
	return append(dst, asked...)
}

// A step says where an answer has got to on its way back.
type step uint8

const (
	arrived step = iota // it is the answer to the client's question
	again               // another question is to be answered first
	lost                // there is none, or none that a message holds
)

// A way is what it takes to lead an answer back. It is reused.
type way struct {
	tail   wire.Message
	denial wire.Message
	held   []byte
	cast   wire.Rewriter
	sift   wire.RecordFilter
	order  []uint16 // reused
	back   reversal
	name   [wire.MaxName]byte
}

// ways are for answers that flights bring.
var ways = sync.Pool{New: func() any { return new(way) }} //nolint:gochecknoglobals // a pool is shared by design and holds no state

// lead makes dst[start:], the answer to what is looked for by ask and the client, the
// answer to the client's question. failed says that it is none. What is beyond the limit
// of the client's reply is cut off first: every record that is left costs time here.
func (w *way) lead(d *detour, ask *wire.Question, limit int, failed bool, dst []byte, start int) ([]byte, step) {
	dst = dst[:start+len(wire.Truncate(dst[start:], limit))]
	if d.six != nil {
		switch next := w.sixth(d, failed, dst[start:]); next {
		case again:
			return dst[:start], again
		case lost: // what is in hand are addresses of IPv4
			failed = true
		case arrived:
			dst = append(dst[:start], w.held...)
			failed = false
		}
	}
	if failed {
		return dst[:start], lost
	}
	if d.led() {
		var ok bool
		if dst, ok = w.graft(d, dst, start); !ok {
			return dst[:start], lost
		}
	}
	if d.rule != nil {
		return w.rename(d.rule, ask, dst, start)
	}
	return dst, arrived
}

// graft puts the head before dst[start:]. It is false if a name of one does not reach
// into the other any more.
func (w *way) graft(d *detour, dst []byte, start int) ([]byte, bool) {
	w.held = append(w.held[:0], dst[start:]...)
	if w.tail.Parse(w.held) != nil {
		return dst, false
	}
	return w.tail.AppendToChain(append(dst[:start], d.head...), start, d.target)
}

// rename makes dst[start:] the answer to the name that was asked for.
func (w *way) rename(rule *rewrite, ask *wire.Question, dst []byte, start int) ([]byte, step) {
	w.held = append(w.held[:0], dst[start:]...)
	if w.tail.Parse(w.held) != nil {
		return dst[:start], lost
	}
	asked := canonical(&w.name, ask)
	end := wire.HeaderLen
	for w.held[end] != 0 {
		end += 1 + int(w.held[end])
	}
	w.back = reversal{rule: rule, sought: w.held[wire.HeaderLen : end+1], asked: asked}
	dst = w.cast.Rename(dst[:start], &w.tail, asked, &w.back)
	w.back.rule = nil
	return dst, arrived
}

// aside is the rest of AnswerFromMemory where a plan has more than a zone and a cache.
func (l *Worker) aside(from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict) {
	var done bool
	if !wire.IsLoopName(l.q.Name()) { // else it is to be known again by whoever sent it
		if dst, done = l.fromExtras(from, now, dst); done {
			return dst, wire.Answered
		}
	}
	if l.plan.Zone != nil {
		if dst, done = l.fromZone(from, now, dst); done {
			return dst, wire.Answered
		}
	}
	return l.fromCache(from, now, dst)
}

// fromExtras answers from what few plans have, or has another name or address looked
// for.
func (l *Worker) fromExtras(from *wire.Peer, now time.Time, dst []byte) (_ []byte, done bool) {
	x := l.plan.extras
	if x.rewrites != nil {
		l.rewrite(x.rewrites)
	}
	if x.six != nil {
		l.markSix(x.six, from)
	}
	if x.static != nil {
		if dst, done = l.fromStatic(from, now, dst); done {
			return dst, true
		}
	}
	if x.six != nil {
		return l.fromPrefix(x, from, now, dst)
	}
	return dst, false
}

// rewrite has another name looked for if a rule says so.
func (l *Worker) rewrite(rules *Rewrites) {
	to, rule := rules.find(l.way.name[:0], l.q.Name())
	if rule == nil {
		return
	}
	l.detour.take()
	l.detour.rule = rule
	l.tally.rewritten++
	l.q.SetName(to)
}

// fromStatic answers from the configuration itself, or goes on for the target of an
// alias from there.
func (l *Worker) fromStatic(from *wire.Peer, now time.Time, dst []byte) ([]byte, bool) {
	start := len(dst)
	dst, result := l.plan.Static.Answer(&l.q, dst)
	switch result.Verdict {
	case static.Answered:
		if dst, done := l.deliver(SourceStatic, from, now, dst, start); done {
			return dst, true
		}
		return l.fromStatic(from, now, dst[:start])
	case static.Alias:
		if l.follow(dst, start, len(result.Target)) {
			return dst[:start], false
		}
		dst, _ = l.empty(SourceFailure, wire.RcodeServFail, from, now, dst[:start])
		return dst, true
	case static.Failed:
		l.opts.EDE = wire.EDEOther
		dst, _ = l.empty(SourceStatic, wire.RcodeServFail, from, now, dst[:start])
		return dst, true
	case static.None:
	}
	return dst[:start], false
}

// follow has the target of an alias looked for: dst[start:] is the answer as far as it
// goes, and ends with the target, of so many octets. It is false if that does not fit
// behind what led here.
func (l *Worker) follow(dst []byte, start, target int) bool {
	d := &l.detour
	d.take()
	d.kept, d.most = d.kept[:0], unknownTTL // it is of the name that led here
	if len(d.head) == 0 {
		d.head = append(d.head, dst[start:]...)
	} else {
		if l.way.tail.Parse(dst[start:]) != nil {
			return false
		}
		head, ok := l.way.tail.AppendToChain(d.head, 0, d.target)
		if d.head = head; !ok {
			return false
		}
	}
	d.target = len(d.head) - target
	l.q.SetName(d.head[d.target:])
	return true
}

// deliver makes dst[start:], the answer to what is looked for, the client's reply. It is
// false, and dst as it was before, if another question, which is in hand now, is to be
// answered first.
func (l *Worker) deliver(source Source, from *wire.Peer, now time.Time, dst []byte, start int) ([]byte, bool) {
	if l.detour.taken {
		var next step
		if dst, next = l.way.lead(&l.detour, &l.q.Question, l.opts.Limit, source == SourceFailure, dst, start); next != arrived {
			return l.notYet(next, from, now, dst, start)
		}
		l.q.Type = l.q.OriginalType()
		if l.detour.made {
			l.tally.made++
		}
	}
	dst = l.q.Reply(dst, start, &l.opts)
	return l.answered(source, dst, start, from, now), true
}

// second answers the second question from memory, of which the cache had the answer to the first, or an upstream. A
// template may be for the one type and not for the other.
func (l *Worker) second(from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict) {
	var done bool
	if l.plan.Static != nil && !l.detour.led() {
		if dst, done = l.fromStatic(from, now, dst); done {
			return dst, wire.Answered
		}
		if l.plan.Zone != nil && l.detour.led() {
			if dst, done = l.fromZone(from, now, dst); done {
				return dst, wire.Answered
			}
		}
	}
	return l.fromCache(from, now, dst)
}

// notYet goes on with a query whose answer has not come to its client's question.
func (l *Worker) notYet(next step, from *wire.Peer, now time.Time, dst []byte, start int) ([]byte, bool) {
	if next == lost {
		l.q.Type = l.q.OriginalType()
		dst, _ = l.empty(SourceFailure, wire.RcodeServFail, from, now, dst[:start])
		return dst, true
	}
	l.opts.EDE = wire.EDENone
	l.q.SetType(wire.TypeA)
	return dst[:start], false
}
