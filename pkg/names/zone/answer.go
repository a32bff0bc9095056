// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"bytes"
	"math"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// maxAliases bounds the CNAME records of one answer.
const maxAliases = 8

// Zones are the zones of a process. No domain is below that of another zone. The first zone that knows an address answers its reverse name.
// If no zone knows the address, the first zone denies the name if that is in its reverse zones.
type Zones []*Zone

// Answer appends the answer to q, a query of class IN, to dst: header with QR and AA, the question in canonical case, and
// the records, without an OPT record. [wire.Question.Reply] adapts it to the client. Answer keeps no reference to dst and
// does not allocate if dst has room.
//
// A set that exceeds the client's size or the budget of steps is truncated: it has TC, and another part of the set for each rotation.
func (zs Zones) Answer(q *wire.Query, c Client, now time.Time, dst []byte) ([]byte, Result) {
	return zs.answer(q, c, now, dst, false)
}

// A Client holds what an answer depends on besides its question.
type Client struct {
	MaxSize  int    // bytes of the answer without OPT record; at most the size of a message
	Rotation uint32 // number of the answer: with the next number, the next address of a set comes first
}

// AnswerStale is Answer for a query that the fallback failed to answer: stale data denies names, as if there were no
// fallback. For data that was never complete, the verdict is still UseFallback.
func (zs Zones) AnswerStale(q *wire.Query, c Client, now time.Time, dst []byte) ([]byte, Result) {
	return zs.answer(q, c, now, dst, true)
}

func (zs Zones) answer(q *wire.Query, c Client, now time.Time, dst []byte, last bool) ([]byte, Result) {
	name := q.Name()
	for _, z := range zs {
		if !bytes.HasSuffix(name, z.domain) {
			continue
		}
		r := newReply(z, q, c, now, dst, last)
		if !r.splitName(name, wire.HeaderLen) {
			continue
		}
		r.begin()
		res := r.resolve(zs)
		return r.dst, res
	}
	return zs.reverse(q, c, now, dst, last)
}

// At returns the zone whose domain is the name, in canonical wire form, or nil.
func (zs Zones) At(name []byte) *Zone {
	for _, z := range zs {
		if bytes.Equal(z.domain, name) {
			return z
		}
	}
	return nil
}

// Follows reports whether the zones alone answer a name with an [Owner], so that all changes of its answers are reported to the
// observer. Owner must have found one.
func (zs Zones) Follows(name []byte) bool {
	for _, z := range zs {
		if z.cfg.External || !bytes.HasSuffix(name, z.domain) {
			continue
		}
		n := zoneName{z: z}
		if !n.splitName(name, 0) {
			continue
		}
		insecure := z.cfg.Pods == PodsInsecure && bytes.HasSuffix(name[:n.apex], []byte(treePod))
		federated := false
		if n.labels >= depthService {
			_, federated = z.federations[string(n.label(n.labels-depthNamespace))]
		}
		return !insecure && !federated && !z.hasFallback && !n.within(z.fallthroughs)
	}
	var buf [16]byte
	addr, _ := wire.ReverseAddr(name, &buf)
	return addr != nil && len(zs) > 0 && !zs[0].cfg.KnownNamespaces && zs[0].servesReverse(name)
}

// FreshFor returns how long all data of the zones stay fresh without another confirmation: 0 if some are not fresh now.
func (zs Zones) FreshFor(now time.Time) time.Duration {
	shortest := time.Duration(math.MaxInt64)
	for _, z := range zs {
		s := z.cfg.Store
		for k := range Kind(kindCount) {
			switch {
			case k != Services && !s.states[k].expected.Load():
			case !s.states[k].synced.Load():
				return 0
			default:
				shortest = min(shortest, max(0, z.cfg.StaleAfter-s.Age(k, now)))
			}
		}
	}
	return shortest
}

// reverse answers a name outside of the domains: the reverse name of a known address, or any name in a reverse zone of the cluster.
func (zs Zones) reverse(q *wire.Query, c Client, now time.Time, dst []byte, last bool) ([]byte, Result) {
	var buf [16]byte
	addr, tree := wire.ReverseAddr(q.Name(), &buf)
	if addr != nil {
		for _, z := range zs {
			r := newReverseReply(z, q, c, now, dst, tree)
			name := reverseName{&r, addr}
			if res := name.resolve(); res.Verdict == Answered {
				return r.dst, res
			}
		}
	}
	if tree == 0 || len(zs) == 0 || !zs[0].servesReverse(q.Name()) {
		return dst, Result{Verdict: NotInZone, EDE: wire.EDENone}
	}
	r := newReverseReply(zs[0], q, c, now, dst, tree)
	r.fallbackFailed = last
	if set := slices.IndexFunc(zs, (*Zone).inSet); set >= 0 {
		r.other = zs[set]
	}
	var res Result
	switch {
	case addr == nil && zs[0].cfg.HasFallback():
		return dst, Result{Verdict: NotInZone, EDE: wire.EDENone}
	case addr == nil:
		res = r.nodata(needsNothing) // an empty non-terminal: names of addresses may be below it
	case !zs[0].cfg.AllSlices:
		res = r.denyUnlessFallback(NoAddress, needsEndpoints)
	default:
		res = r.nxdomain(NoAddress, needsEndpoints)
	}
	return r.dst, res
}
