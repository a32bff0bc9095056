// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"errors"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

var errRcode = errors.New("response code is neither NOERROR nor NXDOMAIN")

// A validator checks and sanitizes upstream answers. It is reused.
type validator struct {
	bailiwick bailiwick
	answer    cache.Answer
}

// validate converts an answer in place to the form in which it is cached: no OPT record, no unrelated
// records, the question in canonical case, no AA flag, TTLs within the route's bounds. life is how
// long it may be cached, 0 for not at all. The TTL offsets and the rotating address set are left in
// j.answer.
func (j *validator) validate(route *Route, m *wire.Message) (life time.Duration, err error) {
	if err := m.StripOPT(); err != nil {
		return 0, err
	}
	if m.Rcode() != wire.RcodeSuccess && m.Rcode() != wire.RcodeNXDomain {
		return 0, errRcode
	}
	if err := j.bailiwick.sanitize(m); err != nil {
		return 0, err
	}
	m.CanonicalizeQuestion()
	m.ClearAuthority()
	kind := classify(m)
	if kind == contradictory {
		return 0, errContradiction
	}
	lowest, highest := route.ttlBounds(kind)
	if kind == negative {
		highest = min(highest, denialTTL(m))
	}
	shortest := clampTTLs(m, lowest, highest)
	j.answer.TTLs = j.answer.TTLs[:0]
	for _, r := range m.Records {
		j.answer.TTLs = append(j.answer.TTLs, r.TTL)
	}
	j.answer.RotateFirst, j.answer.RotateCount = m.AddressRun()
	j.answer.NXDomain = m.Rcode() == wire.RcodeNXDomain && (len(m.Records) == 0 || m.Records[0].Section != wire.Answer)
	if kind == uncacheable {
		shortest = 0
	}
	return time.Duration(shortest) * time.Second, nil
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
func classify(m *wire.Message) answerKind {
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
func denialTTL(m *wire.Message) uint32 {
	for _, r := range m.Records {
		if r.Section == wire.Authority && r.Type == wire.TypeSOA {
			return min(m.RecordTTL(r), m.SOAMinimum(r))
		}
	}
	return 0
}

// sanitize removes unrelated records from m and sorts the aliases. It returns an error if that is not
// enough.
func (b *bailiwick) sanitize(m *wire.Message) error {
	switch {
	case m.IsReferral():
		return errReferral
	case len(m.Records) > maxRecords:
		return errExcess
	case isPlain(m):
		return nil
	}
	return b.keepRelated(m)
}

// isPlain reports whether the answer has only data of the queried name and type, which is the usual
// case. Answers with aliases are not plain.
func isPlain(m *wire.Message) bool {
	want := m.QuestionType()
	if want == wire.TypeCNAME || want == wire.TypeDNAME {
		return false
	}
	for _, r := range m.Records {
		if r.Section != wire.Answer || r.Type != want || r.Class != wire.ClassIN || !m.SameName(int(r.Owner), wire.QuestionNameOffset) {
			return false
		}
	}
	return true
}

// clampTTLs clamps all TTLs to the bounds and returns the shortest. A TTL of zero stays, because it
// forbids caching (RFC 1035 section 3.2.1).
func clampTTLs(m *wire.Message, lowest, highest uint32) uint32 {
	shortest := highest
	for _, r := range m.Records {
		ttl := m.RecordTTL(r)
		if ttl > 0 {
			ttl = min(max(ttl, lowest), highest)
		}
		m.SetRecordTTL(r, ttl)
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
	d.answer.Owner, d.answer.QueriedAt = f.plan.owner(f.name()), f.r.epoch.Add(f.begunAt)
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
	if plan := f.r.plan.Load(); plan != f.plan {
		if route := plan.route(f.name()); route != nil && route.NoStore {
			// A reload set NoStore, and may have flushed the cache before this answer arrived.
			c.Remove(f.key)
		}
	}
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
	if !l.restorer.hold(held[start:]) {
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
