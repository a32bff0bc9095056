// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Shared says for how long, and until which change, a reply is the same for all clients.
type Shared struct {
	Source Source        // SourceZone or SourceCache
	Key    []byte        // cache key of the answer; valid until the next call
	Single bool          // zone answer: only a change of the name's cluster object or namespace ends it; false: any change of the zones does
	Near   int           // zone answer: number of first addresses, which rotate apart from the others; see [zone.Result]
	Age    time.Duration // cached answer: time since it was stored; the TTLs are counted down by its whole seconds
	Left   time.Duration // time until the answer expires, becomes stale, or must be refreshed
	Inside bool          // the name is in the cluster's domain
}

// SharedReply appends the reply that AnswerFromMemory would give to the query in pkt from any client, if the reply depends on
// nothing but the question, and is a fresh answer of the zones or the cache. The query is of class IN and has no TSIG. The reply is
// neither counted nor reported. SharedReply starts the refresh of an answer that is due.
func (w *Worker) SharedReply(pkt []byte, now time.Time, dst []byte) (_ []byte, s Shared, ok bool) {
	q := w.begin(w.r.plan.Load(), new(wire.Peer), now)
	p := q.plan
	if q.Parse(pkt) != wire.RcodeSuccess || oddType(q.Type) {
		return dst, s, false
	}
	q.initReplyOptions()
	q.applyExtras()
	start := len(dst)
	dst, source := q.answer(dst)
	w.tally = tally{}
	w.batch.Flush()
	if q.redirect != nil || len(dst) == start || q.opts.EDE != wire.EDENone || p.SkyDNS != nil && p.SkyDNS.Has(q.Name()) {
		return dst[:start], s, false
	}
	s = Shared{Source: source, Key: q.Key(), Inside: isIn(q.Name(), p.Cluster)}
	switch source {
	case SourceZone:
		s.Left, s.Near = p.Zones.FreshFor(now), q.near
	case SourceCache:
		s.Age, s.Left, _ = p.Cache.Validity(s.Key, now)
	default: // other replies are not shared: Left is 0
	}
	dst = q.Reply(dst, start, &q.opts)
	s.Single = source == SourceZone && q.Type != wire.TypePTR && p.owner(q.Name()) != nil && isPlainSet(dst[start:], q.Type)
	return dst, s, s.Left > 0 && !mayBeWalked(p, &q.Query, dst[start:])
}

// isPlainSet reports whether the answer begins with a record of the type asked for, not an alias. Such an answer depends on one object.
func isPlainSet(msg []byte, rrtype uint16) bool {
	end := wire.HeaderLen
	for msg[end] != 0 {
		end += 1 + int(msg[end])
	}
	first := msg[end+5:]
	return msg[6]|msg[7] != 0 && rrtype == uint16(first[2])<<8|uint16(first[3])
}

// mayBeWalked reports whether a pod may get another reply, from a walk of its search path.
func mayBeWalked(p *Plan, q *wire.Query, reply []byte) bool {
	return p.SearchPath && (q.Type == wire.TypeA || q.Type == wire.TypeAAAA) && reply[3]&0x0f == wire.RcodeNXDomain
}

// CountCopies counts replies that the kernel gave to queries of IPv4 and IPv6 clients. Their durations are
// not measured, and count as 0 in the first of [Buckets].
func (r *Resolver) CountCopies(rrtype uint16, rcode int, ipv4, ipv6 uint64) {
	c := &r.counts
	at := countQueries + typeClass(rrtype)
	c.each[at].Add(ipv4)
	c.each[at+typeClassCount].Add(ipv6)
	c.each[responseCounter(SourceKernel, rcode)].Add(ipv4 + ipv6)
	c.took(timed(SourceKernel), 0, ipv4+ipv6)
}
