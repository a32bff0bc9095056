// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"bytes"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// maxAliases bounds the CNAME records of one answer.
const maxAliases = 8

// Zones are the zones of a process. No domain is below another one. A reverse name is that of the first zone that knows the
// address; the first zone denies those of its reverse zones that none knows.
type Zones []*Zone

// Answer appends the answer to q, a query of class IN, to dst: header with QR and AA, the question in canonical case, and
// the records, without an OPT record. [wire.Question.Reply] adapts it to the client. Answer keeps no reference to dst and
// does not allocate if dst has room.
//
// A set that exceeds the client's size or the budget of steps is truncated, with TC set and another part for each rotation.
func (zs Zones) Answer(q *wire.Query, c Client, now time.Time, dst []byte) ([]byte, Result) {
	return zs.answer(q, c, now, dst, false)
}

// A Client holds what an answer depends on besides its question.
type Client struct {
	MaxSize  int    // bytes of the answer without OPT record; at most the size of a message
	Rotation uint32 // rotates sets of addresses: each next number puts the next address first
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
		r := z.newReply(q, c, now, dst, last)
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

// Serial returns the serial number of the zone's SOA record.
func (z *Zone) Serial() uint32 { return z.cfg.Store.Serial() }

// splitName makes name, at that offset in the message, the current name. It reports false for a name outside of the zone.
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
		return false // the domain's bytes, but not its labels
	}
	r.name, r.at, r.labels, r.apex = name, at, n, at+left
	return !r.within(r.z.excluded)
}

// within reports whether the current name is at or below one of the names, which are in the zone.
func (r *reply) within(names [][]byte) bool {
	return slices.ContainsFunc(names, func(name []byte) bool { return isWithin(r.name, name) })
}

// label returns the i-th label of the name from the left, without its length byte.
func (r *reply) label(i int) []byte {
	off := int(r.offsets[i])
	return r.name[off+1 : off+1+int(r.name[off])]
}

// labelRange returns the bytes of the labels i to before j.
func (r *reply) labelRange(i, j int) []byte {
	end := len(r.name) - len(r.z.domain)
	if j < r.labels {
		end = int(r.offsets[j])
	}
	return r.name[r.offsets[i]:end]
}

// resolve answers the current name. An alias within the zones replaces the current name, until there is none.
func (r *reply) resolve(zs Zones) Result {
	for {
		alias, res := r.lookup()
		if alias == "" {
			return res
		}
		if r.answer == maxAliases {
			r.clear() // with part of the chain, a client would only follow it further
			r.enter(zs, r.q.Name(), wire.HeaderLen)
			return r.nodata(needsNothing)
		}
		r.appendAlias(alias)
		if r.q.Type == wire.TypeCNAME {
			return r.positive(needsServices)
		}
		target := len(r.dst) - r.start - len(alias)
		if name := r.dst[r.start+target:]; !r.enter(zs, name, target) {
			return r.leave(name)
		}
	}
}

// enter makes name, at that offset in the message, the current name, in the zone that it belongs to. It reports false for a
// name outside of the zones.
func (r *reply) enter(zs Zones, name []byte, at int) bool {
	for _, z := range zs {
		r.z = z
		if r.splitName(name, at) {
			return true
		}
	}
	return false
}

// leave ends the answer with an alias for a name outside of the zones.
func (r *reply) leave(target []byte) Result {
	res := r.positive(needsServices)
	res.Verdict, res.Target = Alias, target
	return res
}

// appendAlias appends the CNAME record of the current name.
func (r *reply) appendAlias(target string) {
	r.appendOwner(r.at)
	r.appendFixed(wire.TypeCNAME, r.ttl, len(target))
	r.dst = append(r.dst, target...)
	r.answer++
}

// ttlOf returns the TTL of the service's names.
func (r *reply) ttlOf(svc *service) uint32 {
	if svc.ttl >= 0 {
		return uint32(svc.ttl)
	}
	return r.z.ttl
}

// lookup answers the current name, or returns the target if it is an alias.
func (r *reply) lookup() (alias string, res Result) {
	if r.labels == 0 {
		return "", r.apexName()
	}
	if r.z.cfg.External {
		return r.externalName()
	}
	switch string(r.label(r.labels - 1)) {
	case "svc":
		return r.serviceTree()
	case "pod":
		return "", r.podTree()
	}
	return "", r.ownName()
}

// apexName answers the cluster domain.
func (r *reply) apexName() Result {
	switch r.q.Type {
	case wire.TypeSOA:
		r.appendSOA()
		r.answer++
		return r.finish(wire.RcodeSuccess, 0)
	case wire.TypeNS:
		r.appendOwner(r.apex)
		r.appendFixed(wire.TypeNS, r.z.ttl, len(r.z.server)+2)
		server := len(r.dst) - r.start
		r.dst = append(r.dst, r.z.server...)
		r.appendOwner(r.apex)
		r.answer++
		r.extra += r.appendAddrs(server, r.z.ns4, 4, r.z.ttl) + r.appendAddrs(server, r.z.ns6, 16, r.z.ttl)
		return r.finish(wire.RcodeSuccess, 0)
	}
	return r.nodata(needsNothing)
}

// The zone's own names, as labels left of the domain.
const (
	labelsDNS     = "\x03dns"
	labelsVersion = "\x0bdns-version"
)

// The TXT record with the version of the specification.
const (
	versionText    = "\x051.1.0"
	versionTextSet = "\x051.0.0" // of a cluster set
	versionTTL     = 28800
)

// ownName answers the few names outside of svc and pod. A central resolver may have others.
func (r *reply) ownName() Result {
	switch string(r.labelRange(0, r.labels)) {
	case labelsDNS:
		return r.nodata(needsNothing) // ns.dns exists
	case labelsNS:
		return r.serverAddrs()
	case labelsVersion:
		if r.q.Type != wire.TypeTXT {
			return r.nodata(needsNothing)
		}
		version := versionText
		if r.z.inSet() {
			version = versionTextSet
		}
		r.appendOwner(r.at)
		r.appendFixed(wire.TypeTXT, versionTTL, len(version))
		r.dst = append(r.dst, version...)
		r.answer++
		return r.finish(wire.RcodeSuccess, 0)
	}
	return r.denyUnlessFallback(needsNothing)
}

// serverAddrs answers the name of the zone's server.
func (r *reply) serverAddrs() Result {
	n := 0
	switch r.q.Type {
	case wire.TypeA:
		n = r.appendRotated(r.z.ns4, 4, r.z.ttl)
	case wire.TypeAAAA:
		n = r.appendRotated(r.z.ns6, 16, r.z.ttl)
	}
	if n == 0 {
		return r.nodata(needsNothing)
	}
	return r.finish(wire.RcodeSuccess, 0)
}
