// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"errors"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

var errRcode = errors.New("response code that is no answer")

// A judge decides what an upstream's answer is worth. It is reused.
type validator struct {
	m         wire.Message
	bailiwick bailiwick
	answer    cache.Answer
}

// judge makes the answer what it may be stored as, in place: no OPT record and
// none that does not belong there, the question in canonical spelling, no AA flag,
// TTLs within the route's bounds. life is
// how long it may be kept, 0 for not at all. The offsets of the TTLs and the
// address set that rotates are left in j.answer.
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

// A kind is what an answer says.
type answerKind uint8

const (
	positive    answerKind = iota // it has the type that was asked for
	negative                      // NXDOMAIN or NODATA, with the SOA that says for how long (RFC 2308)
	uncacheable                   // a denial without SOA, a chain without end: for those who asked, not to keep (RFC 2308 section 5)
	contradictory
)

// kind reads the answer's meaning from its rcode and records.
func (j *validator) classify() answerKind {
	m := &j.m
	want := m.QuestionType()
	var found, soa bool
	for _, r := range m.Records {
		switch r.Section {
		case wire.Answer: // what is left of it is aliases and data that were asked for
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

// seconds are the bounds the route sets to TTLs of a kind.
func (r *Route) ttlBounds(k answerKind) (lowest, highest uint32) {
	if k != positive {
		return 0, uint32(r.TTL.Negative / time.Second)
	}
	if !r.Exact {
		lowest = uint32(r.TTL.Min / time.Second)
	}
	return lowest, uint32(r.TTL.Max / time.Second)
}

// denialTTL is how long a denial holds: the SOA record's TTL or its MINIMUM,
// whichever is less (RFC 2308 section 5).
func (j *validator) denialTTL() uint32 {
	for _, r := range j.m.Records {
		if r.Section == wire.Authority && r.Type == wire.TypeSOA {
			return min(j.m.RecordTTL(r), j.m.SOAMinimum(r))
		}
	}
	return 0
}

// clampTTLs brings every TTL within the bounds and returns the shortest. A TTL
// of zero stays: it forbids keeping, not shows carelessness (RFC 1035 section 3.2.1).
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

// store keeps the judged answer to f for life. One that may not be kept takes with it
// what is held: that is known to be old.
func (d *responseBuilder) store(f *inFlight, life time.Duration, now time.Time) {
	if f.route.NoStore {
		return
	}
	c := f.plan.Cache
	if d.answer.Owner = nil; f.plan.Owner != nil {
		d.answer.Owner, d.answer.QueriedAt = f.plan.Owner(f.name()), f.r.epoch.Add(f.begunAt)
	}
	if life <= 0 {
		// An answer from before its owner's last event says nothing of what came after.
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
		// A reload turned keeping off, and may have emptied the cache before this came.
		c.Remove(f.key)
	}
}

// name is the canonical name that the flight asks for.
func (f *inFlight) name() []byte {
	end := 0
	for f.key[end] != 0 {
		end += 1 + int(f.key[end])
	}
	return f.key[:end+1]
}

// owner is what Owner gives, nil without one.
func (p *Plan) owner(name []byte) []byte {
	if p.Owner == nil {
		return nil
	}
	return p.Owner(name)
}

// noStore tells whether no answer to a name is kept.
func (p *Plan) noStore(name []byte) bool {
	route := p.route(name)
	return route != nil && route.NoStore
}

// joinableLocked is the flight for key, the worker's query's, that the query may join,
// nil if there is none: one that began before the last event of the name's owner has
// an answer from before. Another begins beside it then, and is found first.
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
