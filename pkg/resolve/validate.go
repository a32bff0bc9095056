// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"errors"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

var errRcode = errors.New("response code is neither NOERROR nor NXDOMAIN")

// A validator checks and sanitizes upstream answers. It is reused.
type validator struct {
	m         wire.Message
	bailiwick bailiwick
	answer    cache.Answer
}

// validate converts an answer in place to the form in which it is cached: no OPT record, no unrelated
// records, the question in canonical case, no AA flag, TTLs within the route's bounds. life is how
// long it may be cached, 0 for not at all. The TTL offsets and the rotating address set are left in
// j.answer.
func (j *validator) validate(route *Route, answer []byte) (msg []byte, life time.Duration, err error) {
	m := &j.m
	if err := m.Parse(answer); err != nil {
		return nil, 0, err
	}
	if err := m.StripOPT(); err != nil {
		return nil, 0, err
	}
	if m.Rcode() != wire.RcodeSuccess && m.Rcode() != wire.RcodeNXDomain {
		return nil, 0, errRcode
	}
	if err := j.bailiwick.sanitize(m); err != nil {
		return nil, 0, err
	}
	m.CanonicalizeQuestion()
	m.ClearAuthority()
	kind := j.classify()
	if kind == contradictory {
		return nil, 0, errContradiction
	}
	lowest, highest := route.ttlBounds(kind)
	if kind == negative {
		highest = min(highest, j.denialTTL())
	}
	shortest := j.clampTTLs(lowest, highest)
	j.answer.TTLs = j.answer.TTLs[:0]
	for _, r := range m.Records {
		j.answer.TTLs = append(j.answer.TTLs, r.TTL)
	}
	j.answer.RotateFirst, j.answer.RotateCount = j.m.AddressRun()
	j.answer.NXDomain = m.Rcode() == wire.RcodeNXDomain && (len(m.Records) == 0 || m.Records[0].Section != wire.Answer)
	if kind == uncacheable {
		shortest = 0
	}
	return m.Raw, time.Duration(shortest) * time.Second, nil
}

// An answerKind classifies an answer.
type answerKind uint8

const (
	positive      answerKind = iota // has the queried type
	negative                        // NXDOMAIN or NODATA with an SOA record (RFC 2308)
	uncacheable                     // a denial without SOA, or an incomplete alias chain: for the waiters only (RFC 2308 section 5)
	contradictory                   // rcode and records contradict each other
)

// classify returns the kind of the answer.
func (j *validator) classify() answerKind {
	m := &j.m
	want := m.QuestionType()
	var found, soa bool
	for _, r := range m.Records {
		switch r.Section {
		case wire.Answer: // only aliases and data of the queried type are left
			found = found || r.Type == want
		case wire.Authority:
			soa = soa || r.Type == wire.TypeSOA
		}
	}
	nxdomain := m.Rcode() == wire.RcodeNXDomain
	switch {
	case nxdomain && found && want != wire.TypeCNAME && want != wire.TypeDNAME:
		return contradictory // a name that does not exist has no data
	case found && !nxdomain:
		return positive
	case soa:
		return negative
	default:
		return uncacheable
	}
}

// ttlBounds returns the route's TTL bounds for a kind, in seconds.
func (r *Route) ttlBounds(k answerKind) (lowest, highest uint32) {
	if k != positive {
		return 0, uint32(r.TTL.Negative / time.Second)
	}
	if !r.Exact {
		lowest = uint32(r.TTL.Min / time.Second)
	}
	return lowest, uint32(r.TTL.Max / time.Second)
}

// denialTTL returns the lifetime of a denial: the SOA record's TTL or its MINIMUM, whichever is less
// (RFC 2308 section 5).
func (j *validator) denialTTL() uint32 {
	for _, r := range j.m.Records {
		if r.Section == wire.Authority && r.Type == wire.TypeSOA {
			return min(j.m.RecordTTL(r), j.m.SOAMinimum(r))
		}
	}
	return 0
}

// clampTTLs clamps all TTLs to the bounds and returns the shortest. A TTL of zero stays, because it
// forbids caching (RFC 1035 section 3.2.1).
func (j *validator) clampTTLs(lowest, highest uint32) uint32 {
	shortest := highest
	for _, r := range j.m.Records {
		ttl := j.m.RecordTTL(r)
		if ttl > 0 {
			ttl = min(max(ttl, lowest), highest)
		}
		j.m.SetRecordTTL(r, ttl)
		shortest = min(shortest, ttl)
	}
	return shortest
}

// store caches the validated answer for life. An answer that may not be cached removes the cached one,
// which is known to be outdated.
func (d *responseBuilder) store(f *inFlight, life time.Duration, now time.Time) {
	if f.route.NoStore {
		return
	}
	c := f.plan.Cache
	if d.answer.Owner = nil; f.plan.Owner != nil {
		d.answer.Owner, d.answer.QueriedAt = f.plan.Owner(f.name()), f.r.epoch.Add(f.begunAt)
	}
	if life <= 0 {
		// An answer from before its owner's last change does not outdate a later one.
		if d.answer.Owner == nil || !c.ChangedSince(d.answer.Owner, d.answer.QueriedAt) {
			c.Remove(f.key)
		}
		return
	}
	d.answer.Msg, d.answer.Lifetime = d.result.msg, life
	c.Put(f.key, &d.answer, now)
	if d.answer.NXDomain {
		f.r.cuts.add(f.name(), f.r.sinceStart(now)+life)
	}
	if plan := f.r.plan.Load(); plan != f.plan && plan.noStore(f.name()) {
		// A reload set NoStore, and may have flushed the cache before this answer arrived.
		c.Remove(f.key)
	}
}

// name returns the canonical query name.
func (f *inFlight) name() []byte {
	end := 0
	for f.key[end] != 0 {
		end += 1 + int(f.key[end])
	}
	return f.key[:end+1]
}

// owner returns the owner of a name, nil for none.
func (p *Plan) owner(name []byte) []byte {
	if p.Owner == nil {
		return nil
	}
	return p.Owner(name)
}

// noStore reports whether the name's route forbids caching.
func (p *Plan) noStore(name []byte) bool {
	route := p.route(name)
	return route != nil && route.NoStore
}

// joinableLocked returns the in-flight query for key that the current query may join, nil if there is
// none. A query that began before the owner's last change may return an outdated answer, so a new one
// starts next to it.
func (l *Worker) joinableLocked(hash uint64, key []byte) *inFlight {
	f := l.r.queries.findLocked(hash, key)
	if f == nil {
		return nil
	}
	if owner := l.plan.owner(l.q.Name()); owner != nil && l.plan.Cache.ChangedSince(owner, l.r.epoch.Add(f.begunAt)) {
		return nil
	}
	return f
}
