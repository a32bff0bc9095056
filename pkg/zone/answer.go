// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"bytes"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// maxAliases is the most CNAME records in one answer.
const maxAliases = 8

// Answer appends to dst the answer to q, a query of class IN: header with QR and
// AA, the question in canonical spelling, records, no OPT record. [wire.Question.Reply]
// makes it the client's. It keeps no reference to dst and allocates nothing where
// dst has room.
//
// Of a set that is more than the client takes, or takes more than its share of time to
// find, a part is given, with TC set: with each turn another one.
func (z *Zone) Answer(q *wire.Query, c Client, now time.Time, dst []byte) ([]byte, Result) {
	return z.answer(q, c, now, dst, false)
}

// A Client is what an answer depends on besides its question.
type Client struct {
	MaxSize  int    // octets that the answer may have without OPT record; more than a message has: what a message has
	Rotation uint32 // rotates sets of addresses: with each next number the next one comes first
}

// LastWord is Answer for a query that somebody else could not answer: a stale view
// denies, as if there were nobody else to ask. What this zone never knew is
// Elsewhere still.
func (z *Zone) AnswerStale(q *wire.Query, c Client, now time.Time, dst []byte) ([]byte, Result) {
	return z.answer(q, c, now, dst, true)
}

func (z *Zone) answer(q *wire.Query, c Client, now time.Time, dst []byte, last bool) ([]byte, Result) {
	name := q.Name()
	if !bytes.HasSuffix(name, z.domain) {
		return z.reverse(q, c, now, dst, last)
	}
	r := z.newReply(q, c, now, dst, last)
	if !r.splitName(name, wire.HeaderLen) {
		return dst, Result{Verdict: NotInZone, EDE: wire.EDENone}
	}
	r.begin()
	res := r.resolve()
	return r.dst, res
}

// locate takes the name apart, which is at the offset in the message. It is false
// for a name outside of the zone.
func (r *reply) splitName(name []byte, at int) bool {
	left := len(name) - len(r.z.domain)
	if left < 0 || string(name[left:]) != string(r.z.domain) {
		return false
	}
	n, off := 0, 0
	for off < left {
		r.offsets[n] = uint8(off)
		n++
		off += int(name[off]) + 1
	}
	if off != left {
		return false // the domain's octets, but not its labels
	}
	r.name, r.at, r.labels, r.apex = name, at, n, at+left
	return !r.excluded()
}

// apart tells whether the name is kept from this zone.
func (r *reply) excluded() bool {
	for _, apart := range r.z.excluded {
		for i := range r.labels {
			if string(r.name[r.offsets[i]:]) == string(apart) {
				return true
			}
		}
	}
	return false
}

// label is the i-th label of the name, from the left, without its length.
func (r *reply) label(i int) []byte {
	off := int(r.offsets[i])
	return r.name[off+1 : off+1+int(r.name[off])]
}

// from is the octets of the labels i to before j.
func (r *reply) labelRange(i, j int) []byte {
	end := len(r.name) - len(r.z.domain)
	if j < r.labels {
		end = int(r.offsets[j])
	}
	return r.name[r.offsets[i]:end]
}

// resolve answers the current name. An alias within the zone changes that name,
// until there is no alias.
func (r *reply) resolve() Result {
	for {
		svc, res := r.lookup()
		if svc == nil {
			return res
		}
		if r.answer == maxAliases {
			return r.aliasLoop()
		}
		r.appendAlias(svc)
		if r.q.Type == wire.TypeCNAME {
			return r.positive(needsServices)
		}
		target := len(r.dst) - r.start - len(svc.data)
		if !r.splitName(r.dst[r.start+target:], target) {
			res = r.positive(needsServices)
			res.Verdict, res.Target = Alias, r.dst[r.start+target:]
			return res
		}
	}
}

// appendAlias appends the CNAME record of the current name.
func (r *reply) appendAlias(svc *service) {
	r.appendOwner(r.at)
	r.appendFixed(wire.TypeCNAME, r.ttlOf(svc), len(svc.data))
	r.dst = append(r.dst, svc.data...)
	r.answer++
}

// endless answers for a chain of aliases that has no end: there is no data. A
// part of the chain would only have the client go round in it.
func (r *reply) aliasLoop() Result {
	r.clear()
	r.splitName(r.q.Name(), wire.HeaderLen)
	return r.nodata(needsNothing)
}

// ttlOf is the TTL of the service's names.
func (r *reply) ttlOf(svc *service) uint32 {
	if svc.ttl >= 0 {
		return uint32(svc.ttl)
	}
	return r.z.ttl
}

// lookup answers the current name, or gives the service whose alias it is.
func (r *reply) lookup() (*service, Result) {
	if r.labels == 0 {
		return nil, r.apexName()
	}
	switch string(r.label(r.labels - 1)) {
	case "svc":
		return r.serviceTree()
	case "pod":
		return nil, r.podTree()
	}
	return nil, r.ownName()
}

// apexName answers the zone's own name.
func (r *reply) apexName() Result {
	switch r.q.Type {
	case wire.TypeSOA:
		r.appendSOA()
		r.answer++
		return r.finish(wire.RcodeSuccess, 0)
	case wire.TypeNS:
		r.appendOwner(r.apex)
		r.appendFixed(wire.TypeNS, r.z.ttl, len(labelsNS)+2)
		server := len(r.dst) - r.start
		r.dst = append(r.dst, labelsNS...)
		r.appendOwner(r.apex)
		r.answer++
		r.appendNameservers(server, 4, &r.extra)
		r.appendNameservers(server, 16, &r.extra)
		return r.finish(wire.RcodeSuccess, 0)
	}
	return r.nodata(needsNothing)
}

// Names of the zone's own, as labels left of the domain.
const (
	labelsDNS     = "\x03dns"
	labelsVersion = "\x0bdns-version"
)

// The TXT record that says which version of the specification is followed.
const (
	versionText = "\x051.1.0"
	versionTTL  = 28800
)

// ownName answers the few names outside of svc and pod. There may be others that
// a central resolver knows of.
func (r *reply) ownName() Result {
	switch string(r.labelRange(0, r.labels)) {
	case labelsDNS:
		return r.nodata(needsNothing) // there is ns.dns
	case labelsNS:
		octets := addrLenOf(r.q.Type)
		before := r.answer // the aliases that led here
		if octets != 0 {
			at := len(r.dst)
			r.appendNameservers(r.at, octets, &r.answer)
			r.rotate(at, r.answer-before, octets)
		}
		if r.answer == before {
			return r.nodata(needsNothing)
		}
		return r.finish(wire.RcodeSuccess, 0)
	case labelsVersion:
		if r.q.Type != wire.TypeTXT {
			return r.nodata(needsNothing)
		}
		r.appendOwner(r.at)
		r.appendFixed(wire.TypeTXT, versionTTL, len(versionText))
		r.dst = append(r.dst, versionText...)
		r.answer++
		return r.finish(wire.RcodeSuccess, 0)
	}
	return r.denyUnlessFallback(needsNothing)
}

// appendNameservers appends the addresses of ns.dns, which is named at the offset.
func (r *reply) appendNameservers(at, octets int, count *int) {
	list := r.z.ns4
	if octets == 16 {
		list = r.z.ns6
	}
	for ; list != "" && !r.full(addressRecordLen(octets)); list = list[octets:] {
		r.appendAddress(at, list[:octets], r.z.ttl)
		*count++
	}
}
