// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A walk looks for a name under the other suffixes of a pod's search path once the first is denied, as the pod's
// resolver would with one query after the other. It looks up addresses of both families under each suffix in turn:
//
//	one family has addresses            found: the client gets a CNAME record to that name, and its answer
//	both are denied, with NXDOMAIN      the next suffix
//	anything else, or no suffix left    the client gets the answer for the name it asked, and continues by itself
//
// Resolvers differ in the third case: after an answer without records musl ends its search and glibc continues.
//
// A and AAAA queries for one name must end under the same suffix. The first of them to find one records it in
// the pod's path. The other one goes there, unless a suffix before it has addresses by then.
//
// Each lookup passes the same parts as a query of the client: rewrite rules, templates, zone, cache and routes. A lookup
// that waits for upstream counts against the limits of its client.
type walk struct {
	path   *pods.SearchPath
	prefix []byte // labels of the name asked before its suffix
	rrtype uint16 // type in the client's question
	asked  []byte // the answer to that question, NXDOMAIN

	at    int         // index of the current suffix in path.Suffixes
	other bool        // the current lookup is for the address family that rrtype is not
	own   []byte      // answer for rrtype under the current suffix; empty: SERVFAIL
	ede   int         // Extended DNS Error of own
	state familyState // what own says
	ended bool
	found bool // the client gets own as its answer

	question []byte // reused
	answer   []byte // reused

	// source is always set, the others only while the walk waits for upstream.
	r           *Resolver
	plan        *Plan
	client      waiter
	from        wire.Peer
	addrProven  bool
	source      Source // source of asked
	askedDetail detail // detail of asked
	detail      detail // of the latest lookup
}

// familyState is what a lookup says about one address family of a name.
type familyState uint8

const (
	hasAddresses familyState = iota
	nameDenied
	otherState // no addresses of this family, or no answer
)

// maxSearchTTL is the maximum TTL of the CNAME record of a walk, in seconds. The SOA record of the
// denial that it replaces may lower it.
const maxSearchTTL = 30

// beginSearch makes the current query of a pod a candidate for a walk if the pod's resolver may continue its search after a
// denial. pod is nil for a client without one.
func (q *query) beginSearch(pod *pods.Pod) {
	if q.Explain && q.ExplainTo != nil {
		addr, _ := netip.AddrFromSlice(q.ExplainTo)
		pod, _ = q.plan.Pods.Of(addr, q.now)
	}
	if pod == nil || pod.SearchPath() == nil || q.Type != wire.TypeA && q.Type != wire.TypeAAAA || !q.RD || q.DO {
		return
	}
	prefix := pod.SearchPath().Prefix(q.Name())
	if prefix == nil || q.plan.Pods.IsStale(q.now) || wire.IsLoopName(q.Name()) {
		return
	}
	d := q.startRedirect()
	d.path, d.prefix, d.client = pod.SearchPath(), len(prefix), *q.from
}

// walkFromMemory walks for the current query, whose answer is dst[start:]. The source is undecided if a lookup must wait
// for upstream.
func (q *query) walkFromMemory(source Source, dst []byte, start int) ([]byte, Source) {
	w := q.worker
	if w.walker == nil {
		w.walker, w.walk = w.r.NewWorker(), new(walk)
	}
	k, l := w.walk, w.walker.begin(q.plan, q.from, q.now)
	k.begin(q.redirect, &q.Question, dst[start:])
	k.source = source
	l.elapsed, l.usage, w.walker.rotation = q.elapsed, q.usage, w.rotation
	if q.walking = k.advance(l, &q.Question, &q.opts); q.walking {
		return dst[:start], undecided
	}
	if dst, k.found = k.appendFound(l, dst, start); !k.found {
		return dst, source
	}
	q.opts.EDE, q.redirect.suffix = k.ede, k.at
	return dst, SourceSearch
}

// joinWalk makes the client of the current query wait for its walk.
func (q *query) joinWalk(to wire.Replier) {
	k, l := q.worker.walk, &q.worker.walker.query
	waiting := *k
	waiting.prefix, waiting.asked, waiting.own = slices.Clone(k.prefix), slices.Clone(k.asked), slices.Clone(k.own)
	waiting.question, waiting.answer = nil, nil
	waiting.r, waiting.plan, waiting.client, waiting.from, waiting.addrProven = q.worker.r, q.plan, q.heldWaiter(nil, to), *q.from, q.addrProven
	waiting.askedDetail = q.detail(k.source)
	l.addrProven = q.addrProven
	l.join(&waiting)
}

// begin starts a walk after the answer to the name asked.
func (k *walk) begin(d *redirect, ask *wire.Question, answer []byte) {
	var room [wire.MaxName]byte
	k.path, k.rrtype = d.path, ask.OriginalType()
	k.prefix = append(k.prefix[:0], canonical(&room, ask)[:d.prefix]...)
	k.asked = append(k.asked[:0], answer...)
	k.at, k.other, k.state, k.ended, k.found = 0, true, nameDenied, false, false
}

// advance looks names up from memory until the walk ends, or until a lookup must wait for upstream, which it reports. ask
// and opts are those of the client.
func (k *walk) advance(l *query, ask *wire.Question, opts *wire.ReplyOptions) (missed bool) {
	for !k.ended {
		decided := k.path.Found(k.prefix, l.now)
		if k.other && k.at < decided {
			k.next()
			continue
		}
		answer, ok := k.lookup(l, ask, opts)
		switch {
		case ok:
			k.detail = detail{}
			k.take(l, answer, l.opts.EDE, decided)
		case k.at < decided:
			k.next()
		default:
			return true
		}
	}
	return false
}

// lookup asks for the current name from memory. An empty answer means SERVFAIL.
func (k *walk) lookup(l *query, ask *wire.Question, opts *wire.ReplyOptions) (answer []byte, ok bool) {
	rrtype := k.rrtype
	if k.other {
		rrtype ^= wire.TypeA ^ wire.TypeAAAA
	}
	var inner wire.Question
	inner, k.question = ask.For(k.question[:0], k.prefix, k.path.Suffixes[k.at], rrtype)
	l.lookup = lookup{
		worker: l.worker, plan: l.plan, from: l.from, now: l.now,
		opts: wire.ReplyOptions{Limit: opts.Limit, UDPSize: opts.UDPSize, EDE: wire.EDENone},
	}
	l.SetQuestion(&inner)
	l.worker.tally.begin(l.now)
	l.applyExtras()
	answer, source := l.answer(k.answer[:0])
	k.answer = answer
	return answer, source != undecided
}

// take continues the walk with an answer to the current lookup. decided is the index of the suffix recorded for the name,
// or -1.
func (k *walk) take(l *query, answer []byte, ede, decided int) {
	state := addressesIn(&l.worker.restorer.tail, answer)
	switch {
	case k.other && state == nameDenied && k.state == nameDenied:
		k.next()
	case k.other:
		k.end(l, state == hasAddresses && k.at > 0)
	default:
		k.own, k.ede, k.state = append(k.own[:0], answer...), ede, state
		if state != hasAddresses && len(answer) > maxFirstAnswer { // too large to be kept in own while the client waits
			k.end(l, false)
			return
		}
		if k.other = state != hasAddresses && k.at != decided; !k.other {
			k.end(l, true)
		}
	}
}

// next turns to the next suffix. It ends the walk without a result after the last one.
func (k *walk) next() {
	k.at, k.other = k.at+1, false
	k.ended = k.at == len(k.path.Suffixes)
}

// end ends the walk. If the query for the other family has ended under another suffix in the meantime, the walk goes
// there instead.
func (k *walk) end(l *query, found bool) {
	k.ended, k.found = true, found
	if !found {
		return
	}
	if at := k.path.SetFound(k.prefix, k.at, l.now); at != k.at {
		k.at, k.other, k.ended = at, false, false
	}
}

// addressesIn returns what an answer says, which it parses into m.
func addressesIn(m *wire.Message, answer []byte) familyState {
	switch {
	case len(answer) < wire.HeaderLen:
		return otherState
	case answer[3]&0x0f == wire.RcodeNXDomain:
		return nameDenied
	case answer[3]&0x0f != wire.RcodeSuccess || binary.BigEndian.Uint16(answer[6:]) == 0 || m.Parse(answer) != nil:
		return otherState
	case m.Truncated() || hasType(m, m.QuestionType()):
		return hasAddresses
	}
	return otherState
}

// appendFound replaces dst[start:] by the answer that the walk found. It returns false, and the answer to the name asked,
// if it found none.
func (k *walk) appendFound(l *query, dst []byte, start int) ([]byte, bool) {
	if k.found {
		if to, ok := k.appendAnswer(l, dst[:start]); ok {
			return to, true
		}
	}
	return append(dst[:start], k.asked...), false
}

// appendAnswer appends a CNAME record from the name asked to the one found, and the answer for that.
func (k *walk) appendAnswer(l *query, dst []byte) ([]byte, bool) {
	m, start, ttl := &l.worker.restorer.tail, len(dst), uint32(maxSearchTTL)
	if m.Parse(k.asked) == nil {
		ttl = min(ttl, maxSynthesizedTTL(m))
	}
	dst = append(dst, 0, 0, 0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0) // QR
	dst = append(append(dst, k.prefix...), k.path.Suffixes[0]...)
	dst = binary.BigEndian.AppendUint16(dst, k.rrtype)
	dst = binary.BigEndian.AppendUint16(dst, wire.ClassIN)
	k.question = append(append(k.question[:0], k.prefix...), k.path.Suffixes[k.at]...)
	dst = appendOwn(dst, start, wire.TypeCNAME, ttl, k.question)
	if m.Parse(k.own) != nil { // own is empty: SERVFAIL
		return dst, false
	}
	return m.AppendToChain(dst, start, len(dst)-start-len(k.question))
}

// Reply implements [wire.Replier]: it takes the answer to the current lookup.
func (k *walk) Reply(answer []byte, batch *wire.SendBatch) {
	if answer == nil { // the client is flooding and gets no reply, or making the reply panicked
		k.client.end(nil, batch)
		return
	}
	k.resume(answer, k.r.now(), batch)
}

// resume continues a walk on the slow path. answer is that to its current lookup; nil: the walk only begins.
func (k *walk) resume(answer []byte, now time.Time, batch *wire.SendBatch) {
	defer func() {
		if defect := recover(); defect != nil {
			k.r.panicked("search path", defect)
			if k.client.to != nil {
				k.client.end(nil, batch)
			}
		}
	}()
	elapsed := now.Sub(k.r.epoch) - k.client.since
	k.r.withWorker(k.plan, &k.from, now, elapsed, batch, func(l *query) {
		l.addrProven, l.retried, l.usage = k.addrProven, k.client.from, k.client.usage
		if answer != nil {
			k.take(l, answer, wire.EDENone, k.path.Found(k.prefix, now))
		}
		if elapsed < k.plan.Deadline && k.advance(l, &k.client.ask, &k.client.opts) {
			l.join(k)
			return
		}
		k.found = k.found && k.ended
		k.reply(l)
	})
}

// reply ends the walk with the client's reply.
func (k *walk) reply(l *query) {
	source, said := k.source, &k.askedDetail
	msg, found := k.appendFound(l, nil, 0)
	if found {
		source, said, k.client.opts.EDE = SourceSearch, &k.detail, k.ede
		k.client.redirect.suffix = k.at
	}
	msg = k.client.ask.Reply(msg, 0, &k.client.opts)
	k.r.reply(k.plan, &k.client, source, said, msg, l.now, &l.worker.batch)
}
