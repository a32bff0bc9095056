// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

// miss is for a name that is not held. It is denied if that follows from what is, and
// missed if not, unless it may not be asked for upstream.
func (l *Worker) handleMiss(found cache.Freshness, from *wire.Peer, now time.Time, dst []byte) (_ []byte, _ wire.Verdict, denied bool) {
	l.staleHeld = found == cache.Stale
	loop := l.isLoop()
	if !l.staleHeld && !loop {
		if dst, denied = l.answerFromCut(now, dst); denied {
			return dst, wire.Answered, true
		}
	}
	if !l.q.RD || loop { // asked for what is held, and it is not; or by ourselves
		dst, verdict := l.answerEmpty(SourceRefused, wire.RcodeRefused, from, now, dst)
		return dst, verdict, false
	}
	return dst, wire.Missed, false
}

// cut appends the denial of the name in hand that follows from the denial of a name
// above it (RFC 8020), if one is held. It is for external names: those of the cluster
// come and go one by one. A client that asks for proof gets that of its own name, and
// an answer made for a subnet is made for one name. A name of one label denies nothing
// below: one forged answer would take a whole top-level domain off the node.
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

// cutBy is cut by the denial of one name, given with the name one label longer. The names
// above the route's are another server's to deny (CVE-2026-44687), and the route's own is
// there because the configuration says so.
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

// cutPlaces is how many moments cuts has. While fewer names than these are denied at
// once, a miss rarely looks for a denial that is not there.
const cutFilterSlots = 1 << 13

// cuts knows at a glance of most names that no denial of them is held, so that a miss
// need not look for those of all the names above its own. By hash of the name it has
// the moment until which one may be. What it does not know of, as denials of before a
// restart, is not looked for.
type cutFilter struct {
	seed   maphash.Seed
	latest atomic.Int64 // of all moments, as nanoseconds since the resolver was made; 0: there are none
	until  [cutFilterSlots]atomic.Int64
}

func (c *cutFilter) init() { c.seed = maphash.MakeSeed() }

// may tells whether the denial of name may be held.
func (c *cutFilter) mayHold(name []byte, at time.Duration) bool {
	return c.slot(name).Load() > int64(at)
}

// note has the denial of name be looked for until a moment.
func (c *cutFilter) add(name []byte, until time.Duration) {
	raise(&c.latest, int64(until))
	raise(c.slot(name), int64(until))
}

func (c *cutFilter) slot(name []byte) *atomic.Int64 {
	return &c.until[maphash.Bytes(c.seed, name)%cutFilterSlots]
}

// raise makes a moment no earlier than until.
func raise(moment *atomic.Int64, until int64) {
	for {
		was := moment.Load()
		if was >= until || moment.CompareAndSwap(was, until) {
			return
		}
	}
}
