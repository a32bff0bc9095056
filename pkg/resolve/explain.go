// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"fmt"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A client on this host may ask for an explanation of its reply with an EDNS option. The explanation
// contains words of closed sets, numbers, addresses of upstreams, and names from the configuration or from the question, as
// `name=value` separated by spaces:
//
//	source   origin of the reply, one of Sources
//	upstream the one that answered, or that failed last
//	failure  what was wrong with it
//	reason   the limit that shed the query, one of Sheds
//	denied   why the zone denies the name or the type, one of [zone.Denials]
//	below    denied name that covers all names below it
//	list     base name of the file whose rule blocks the name
//	rule     that rule: a name, with *. the names below it; or what of the configuration decides, see [localdata.Data.Rule]
//	rewritten name looked up in place of the query name
//	found    search: the name that has the addresses
//	made     dns64: addresses were synthesized, or A records were queried for that
//	state    of the cache entry or the zone: a cache.Freshness, or unready
//	age      of the entry, whole seconds
//	left     seconds until the entry expires; negative: since then; for synthesized addresses: until these expire
//	took     milliseconds from the query to its reply, if upstream was queried
//	kept     no: the answer may not be cached; push: kept since it was stored, see [cache.Cache.Vouch]
//	route    the zone of the route; none: no route takes the name
//	kernel   yes: pods get a copy of the answer from the kernel
//
// For other clients the option is unknown: it is ignored and not echoed. The explanation is built
// after the reply, so that other queries pay for one test only.

// An explanation is the text under construction.
type explanation struct {
	waiter *waiter
	text   []byte
}

// add adds a member if there is room for all of it.
func (a *explanation) add(format string, args ...any) {
	size := len(a.text)
	if size > 0 {
		a.text = append(a.text, ' ')
	}
	if a.text = fmt.Appendf(a.text, format, args...); len(a.text) > wire.MaxExplanation {
		a.text = a.text[:size]
	}
}

// name adds a member whose value is a canonical name.
func (a *explanation) name(member string, name []byte) {
	a.add("%s=%s", member, wire.AppendText(nil, name))
}

// left adds the time until expiry, rounded up to whole seconds: d, or the TTL of synthesized addresses if that is less.
func (a *explanation) left(d time.Duration) {
	if to := a.waiter.redirect; to != nil && to.retryA && to.synthesized {
		d = min(d, time.Duration(to.maxTTL)*time.Second)
	}
	if d > 0 {
		d += time.Second - 1
	}
	a.add("left=%ds", d/time.Second)
}

// begin returns an explanation with the source of the reply, how the question was redirected, and the detail.
func (w *waiter) begin(source Source, said *detail) *explanation {
	a := &explanation{waiter: w}
	a.add("source=%s", Sources()[source])
	if d := w.redirect; d != nil {
		if d.rule != nil {
			var room, to [wire.MaxName]byte
			a.name("rewritten", d.rule.target(to[:0], canonical(&room, &w.ask)))
		}
		if d.retryA {
			a.add("made=dns64")
		}
		if source == SourceSearch {
			var room [wire.MaxName]byte
			a.name("found", append(canonical(&room, &w.ask)[:d.prefix:d.prefix], d.path.Suffixes[d.suffix]...))
		}
	}
	for _, m := range said.members() {
		if m[1] != "" {
			a.add("%s=%s", m[0], strings.ReplaceAll(m[1], " ", `\032`)) // the path of a file may have spaces
		}
	}
	return a
}

// explain appends the explanation to a reply of AnswerFromMemory.
func (q *query) explain(source Source, dst []byte) []byte {
	if q.redirect != nil && q.redirect.useFirst { // the current key is that of the A query
		q.SetType(q.OriginalType())
		q.addSubnetToKey()
	}
	waiting, said := q.waiter(nil), q.detail(source)
	return waiting.explainFromMemory(q.plan, source, &said, dst, q.Name(), q.Key(), q.now)
}

// explain appends the explanation to a reply of the slow path.
func (w *waiter) explain(plan *Plan, source Source, said *detail, msg []byte, now time.Time, took time.Duration) []byte {
	var room, name [wire.MaxName]byte
	sought := canonical(&room, &w.ask)
	ask := w.ask // the question whose answer the waiter got
	if d := w.redirect; d != nil {
		sought = d.lookupName(name[:0], sought)
		if d.retryA && !d.useFirst {
			ask.Type = wire.TypeA
		}
	}
	a, key := w.begin(source, said), ask.AppendKey(nil, sought) // a key without the client subnet
	if plan.isOutside() {
		key = ask.AppendOutsideKey(nil, sought)
	}
	switch source {
	case SourceUpstream:
		if e, ok := plan.Cache.Peek(key, now); ok && e.State <= cache.PrefetchDue {
			a.left(e.Left)
		} else {
			a.add("kept=no")
		}
	case SourceZone, SourceStale, SourceFailure:
		a.state(plan, source, key, sought, now)
	default: // the reply is from no cache entry
		return w.ask.AppendExplanation(msg, &w.opts, a.text)
	}
	a.add("took=%.2fms", float64(took)/float64(time.Millisecond))
	a.route(plan, sought)
	return w.ask.AppendExplanation(msg, &w.opts, a.text)
}

// explainFromMemory appends the explanation to a reply of AnswerFromMemory. name is the name looked up,
// and key the cache key.
func (w *waiter) explainFromMemory(plan *Plan, source Source, said *detail, msg, name, key []byte, now time.Time) []byte {
	a := w.begin(source, said)
	switch source {
	case SourceZone, SourceCache, SourceStale, SourceFailure:
		a.state(plan, source, key, name, now)
		if source != SourceZone {
			a.route(plan, name)
		}
		if w.redirect == nil && plan.Copied != nil && plan.Copied(name, w.ask.Type) {
			a.add("kernel=yes")
		}
	default: // the reply is from no cache entry
	}
	return w.ask.AppendExplanation(msg, &w.opts, a.text)
}

// state adds the state of the zone's answer, of the cache entry under key, or of the cached denial of a parent name.
func (a *explanation) state(p *Plan, source Source, key, name []byte, now time.Time) {
	if source == SourceZone {
		state := cache.Fresh.String()
		switch a.waiter.opts.EDE {
		case wire.EDENotReady:
			state = "unready"
		case wire.EDEStaleAnswer, wire.EDEStaleNXDomain:
			state = cache.Stale.String()
		}
		a.add("state=%s", state)
		return
	}
	e, ok := p.Cache.Peek(key, now)
	if !ok || e.State >= cache.Expired {
		e, ok = parentDenial(p.Cache, key, name, now)
	}
	if !ok {
		return
	}
	a.add("state=%s", e.State)
	if e.Vouched {
		a.add("kept=push")
	}
	a.add("age=%ds", e.Age/time.Second)
	a.left(e.Left)
}

// parentDenial returns the fresh cached denial of a parent name.
func parentDenial(c *cache.Cache, key, name []byte, now time.Time) (e cache.Entry, ok bool) {
	flags := key[len(name)+2]
	for above := name; len(above) > 1 && !ok; {
		above = above[1+above[0]:]
		e, ok = c.PeekNXDomainCut(above, flags, now)
	}
	return e, ok
}

// route adds the zone of the name's route.
func (a *explanation) route(p *Plan, name []byte) {
	r := p.route(name)
	if r == nil {
		a.add("route=none")
		return
	}
	a.name("route", r.Suffix)
}
