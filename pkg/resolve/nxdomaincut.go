// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

// handleMiss handles a query without a usable cache entry. It denies the name if a cached denial of a
// parent covers it, and refuses queries that must not go upstream.
func (l *Worker) handleMiss(found cache.Freshness, from *wire.Peer, now time.Time, dst []byte) (_ []byte, _ wire.Verdict, denied bool) {
	l.staleHeld = found == cache.Stale
	loop := l.isLoop()
	if !l.staleHeld && !loop {
		if dst, denied = l.answerFromCut(now, dst); denied {
			return dst, wire.Answered, true
		}
	}
	if !l.q.RD || loop { // no recursion desired, or a loop
		dst, verdict := l.answerEmpty(SourceRefused, wire.RcodeRefused, from, now, dst)
		return dst, verdict, false
	}
	return dst, wire.Missed, false
}

// answerFromCut appends the denial of the name that follows from a cached denial of a parent name (RFC
// 8020). It applies to external names only, because cluster names come and go one by one. It does not
// apply to DO queries, which need the proof for their own name, nor to subnet routes. A name of one
// label denies nothing below it: one forged answer would remove a whole top-level domain from the
// node.
func (l *Worker) answerFromCut(now time.Time, dst []byte) ([]byte, bool) {
	latest := l.r.cuts.latest.Load()
	if latest == 0 || !l.plan.Cut || l.q.DO {
		return dst, false
	}
	at := l.r.sinceStart(now)
	if latest <= int64(at) {
		return dst, false
	}
	for child := l.q.Name(); len(child) > 1; {
		parent := child[1+int(child[0]):]
		if len(parent) <= 2+int(parent[0]) { // one label, or the root
			break
		}
		if l.r.cuts.mayHold(parent, at) {
			if denied, ok := l.answerFromCutAt(parent, child, now, dst); ok {
				return denied, true
			}
		}
		child = parent
	}
	return dst, false
}

// answerFromCutAt is answerFromCut for the denial of parent; child is the name one label longer. Names
// above the route's belong to other servers (CVE-2026-44687), and the route's own name exists by
// configuration.
func (l *Worker) answerFromCutAt(parent, child []byte, now time.Time, dst []byte) ([]byte, bool) {
	name := l.q.Name()
	route := l.plan.route(name)
	if route == nil || len(parent) <= len(route.Suffix) || route.Exact || route.Subnet || l.plan.owner(name) != nil {
		return dst, false
	}
	start, flags := len(dst), l.q.Key()[len(name)+2]
	held, ok := l.plan.Cache.LookupNXDomainCut(child, len(parent), flags, now, dst)
	if !ok {
		return dst, false
	}
	l.restorer.held = append(l.restorer.held[:0], held[start:]...)
	if l.restorer.tail.Parse(l.restorer.held) != nil {
		return dst, false
	}
	return l.restorer.tail.AppendDenial(held[:start], name, l.q.Type)
}

// cutFilterSlots is the number of slots in a cutFilter. With fewer denied names a miss rarely looks up
// a denial that is not cached.
const cutFilterSlots = 1 << 13

// A cutFilter tells for most names without a lookup that no denial of them is cached. By hash of the
// name it holds the time until which a denial may be cached. Denials that it does not know, such as
// restored ones, are not used.
type cutFilter struct {
	seed   maphash.Seed
	latest atomic.Int64 // maximum of until, in ns since the resolver was made; 0: empty
	until  [cutFilterSlots]atomic.Int64
}

func (c *cutFilter) init() { c.seed = maphash.MakeSeed() }

// mayHold reports whether the denial of name may be cached.
func (c *cutFilter) mayHold(name []byte, at time.Duration) bool {
	return c.slot(name).Load() > int64(at)
}

// add records that the denial of name is cached until the given time.
func (c *cutFilter) add(name []byte, until time.Duration) {
	raise(&c.latest, int64(until))
	raise(c.slot(name), int64(until))
}

func (c *cutFilter) slot(name []byte) *atomic.Int64 {
	return &c.until[maphash.Bytes(c.seed, name)%cutFilterSlots]
}

// raise sets a time to until if that is later.
func raise(moment *atomic.Int64, until int64) {
	for {
		was := moment.Load()
		if was >= until || moment.CompareAndSwap(was, until) {
			return
		}
	}
}
