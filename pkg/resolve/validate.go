// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"errors"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

var errRcode = errors.New("response code is neither NOERROR nor NXDOMAIN")

// TTLs bounds the time that answers are cached, in whole seconds.
type TTLs struct {
	Min, Max time.Duration // bounds for positive answers
	Negative time.Duration // maximum for denials
}

// A validator checks upstream answers, and determines for how long they may be cached. It is reused.
type validator struct {
	sanitizer

	answer     cache.Answer
	deniesName bool // the answer is NXDOMAIN for the name asked for, not for the target of an alias
}

// validate converts an answer in place to the form in which it is cached: no OPT record, no unrelated records, the
// names of a large one compressed, the question in canonical case, no AA flag, one TTL for each set, within bounds. life
// is how long it may be cached, 0 for not at all. The TTL offsets and the rotating address set are left in v.answer.
func (v *validator) validate(bounds TTLs, m *wire.Message) (life time.Duration, err error) {
	if err := m.StripOPT(); err != nil {
		return 0, err
	}
	if m.Rcode() != wire.RcodeSuccess && m.Rcode() != wire.RcodeNXDomain {
		return 0, errRcode
	}
	if err := v.sanitize(m); err != nil {
		return 0, err
	}
	m.CanonicalizeQuestion()
	if len(m.Raw) > wire.MinUDP { // larger than a client without EDNS accepts
		if err := v.sift.Compress(m); err != nil {
			return 0, err
		}
	}
	m.ClearAuthority()
	positive, err := isPositive(m)
	if err != nil {
		return 0, err
	}
	lowest, highest := bounds.Min, bounds.Max
	denied, soa := denialTTL(m)
	if !positive {
		lowest, highest = 0, bounds.Negative
		if soa {
			highest = min(highest, time.Duration(denied)*time.Second)
		}
	}
	levelTTLs(m)
	shortest := clampTTLs(m, uint32(lowest/time.Second), uint32(highest/time.Second))
	v.answer.TTLs = v.answer.TTLs[:0]
	for _, r := range m.Records {
		v.answer.TTLs = append(v.answer.TTLs, r.TTL)
	}
	v.answer.RotateFirst, v.answer.RotateCount = m.AddressRun()
	v.deniesName = m.Rcode() == wire.RcodeNXDomain && (len(m.Records) == 0 || m.Records[0].Section != wire.Answer)
	if !positive && !soa { // a denial without SOA, or an incomplete alias chain: for the waiters only (RFC 2308 section 5)
		shortest = 0
	}
	return time.Duration(shortest) * time.Second, nil
}

// isPositive reports whether the answer has data of the queried type, and not a denial. It returns an
// error if rcode and records contradict each other.
func isPositive(m *wire.Message) (bool, error) {
	want, nxdomain := m.QuestionType(), m.Rcode() == wire.RcodeNXDomain
	found := hasType(m, want) // sanitize left only aliases and data of the queried type
	if nxdomain && found && !isAlias(want) {
		return false, errContradiction // a name that does not exist has no data
	}
	return found && !nxdomain, nil
}

// hasType reports whether the answer section has a record of a type.
func hasType(m *wire.Message, rrtype uint16) bool {
	return slices.ContainsFunc(m.Records, func(r wire.Record) bool { return r.Section == wire.Answer && r.Type == rrtype })
}

// denialTTL returns the lifetime of a denial: the SOA record's TTL or its MINIMUM, whichever is less
// (RFC 2308 section 5). It returns false without an SOA record.
func denialTTL(m *wire.Message) (ttl uint32, ok bool) {
	for _, r := range m.Records {
		if r.Section == wire.Authority && r.Type == wire.TypeSOA {
			return min(m.RecordTTL(r), m.SOAMinimum(r)), true
		}
	}
	return 0, false
}

// sanitize removes unrelated records from m and sorts the aliases. It returns an error if m cannot be used.
func (v *validator) sanitize(m *wire.Message) error {
	switch {
	case m.IsReferral():
		return errReferral
	case len(m.Records) > maxRecords:
		return errExcess
	case isPlain(m):
		return nil
	}
	return v.keepRelated(m)
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

// levelTTLs gives all records of an RRset the lowest TTL among them (RFC 2181 section 5.2). Otherwise a cache behind this
// one could drop some of them earlier, and answer with the rest.
func levelTTLs(m *wire.Message) {
	for first := 0; first < len(m.Records); {
		r := m.Records[first]
		lowest, next, differ := m.RecordTTL(r), first+1, false
		for ; next < len(m.Records) && inSameSet(m, r, m.Records[next]); next++ {
			ttl := m.RecordTTL(m.Records[next])
			differ = differ || ttl != lowest
			lowest = min(lowest, ttl)
		}
		for ; differ && first < next; first++ {
			m.SetRecordTTL(m.Records[first], lowest)
		}
		first = next
	}
}

// inSameSet reports whether two adjacent records are of one RRset. RRSIG records are not: each belongs to the set it signs.
func inSameSet(m *wire.Message, a, b wire.Record) bool {
	return a.Type == b.Type && a.Class == b.Class && a.Section == b.Section && a.Type != wire.TypeRRSIG && m.SameName(int(a.Owner), int(b.Owner))
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
