// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"cmp"
	"errors"
	"hash/maphash"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

var errRcode = errors.New("response code is neither NOERROR nor NXDOMAIN")

// TTLs bounds the time that answers are cached, in whole seconds.
type TTLs struct {
	Min, Max time.Duration // of positive answers
	Negative time.Duration // maximum of denials
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
	if len(m.Raw) > wire.MinUDP { // a client without EDNS would get a part of it
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
	found := hasType(m, want) // only aliases and data of the queried type are left
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

// sanitize removes unrelated records from m and sorts the aliases. It returns an error if that is not
// enough.
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

// levelTTLs gives all records of a set the lowest TTL among them (RFC 2181 section 5.2): a cache behind this one may keep
// each for its own, and then answer with a part of the set.
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

// inSameSet reports whether two neighbors are of one set. Signatures are not: they belong to the sets that they sign.
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

// The cache stores an answer whole under its question, so that an unrelated record cannot answer
// another question here. It could do so in a stub resolver or another cache behind this one. So only
// these records stay (RFC 2181 section 5.4.1, CVE-2021-25220, CVE-2025-40778):
//
//	answer      the aliases that lead from the name asked for to the last name, in
//	            this order; the data of the type asked for that the last name has;
//	            the signatures of both
//	authority   SOA, NS and DS records of zones that a name of this chain is in;
//	            NSEC and NSEC3 records of such a zone; their signatures
//	additional  addresses of the names that the answer's data lead to; their
//	            signatures
//
// All of class IN, the only class that is queried. Other records are removed.

// Limits of an answer. Legitimate answers are far below them.
const (
	maxChain     = 16   // aliases in the chain to the data
	maxAliases   = 64   // alias records and their signatures in the answer section
	maxRecords   = 4096 // in total: more addresses than 64 KiB hold (CVE-2024-1737)
	maxAuthority = 64   // authority records that are examined; others are removed
	maxZones     = 16   // zones of these
	maxTargets   = 256  // names whose map is kept for the next answer
)

// A sanitizeError is the reason why a parseable answer is rejected.
type sanitizeError string

const (
	errContradiction sanitizeError = "answer that contradicts itself"
	errReferral      sanitizeError = "referral in place of an answer"
	errExcess        sanitizeError = "answer has too many records or aliases"
	errInconclusive  sanitizeError = "answer says nothing"
)

// Error implements error.
func (r sanitizeError) Error() string { return string(r) }

// EDE returns the Extended DNS Error for clients (RFC 8914 section 4.25).
func (sanitizeError) EDE() int { return wire.EDEInvalidData }

// A validator checks and sanitizes upstream answers: it determines which records belong in one, and for
// how long it may be cached. It is reused.
//
// The chain is the path from the query name to the data: CNAME records, each of which may follow from a
// DNAME record.
type validator struct {
	answer     cache.Answer
	deniesName bool // the answer is NXDOMAIN for the name asked for, not for the target of an alias

	m       *wire.Message
	answers int     // records of the answer section
	names   []int   // the chain: offsets of the query name and of each alias target
	places  []place // by record index
	aliases []int   // indexes of alias records

	zones   []int               // offsets of the zone names that the authority section may have records of
	seed    maphash.Seed        // random, so that senders cannot construct hash collisions
	targets map[uint64]struct{} // hashes of the names that the answer's data refer to
	name    []byte              // reused
	order   []uint16            // reused
	sift    wire.Rewriter
}

// keepRelated is sanitize for an answer that is not plain.
func (v *validator) keepRelated(m *wire.Message) error {
	if err := v.followChain(m); err != nil {
		return err
	}
	lost := v.placeAnswer()
	if lost > 0 && (m.Rcode() == wire.RcodeNXDomain || v.unrelated()) {
		return errContradiction
	}
	lost += v.placeOtherSections()
	ordered := v.inOrder()
	if lost == 0 && ordered {
		return nil
	}
	if err := v.sift.Keep(m, v.keptRecords(ordered)); err != nil {
		return err
	}
	if m.IsReferral() { // a referral hidden by removed records
		return errReferral
	}
	return nil
}

// unrelated reports whether nothing in the answer section is about the query name. Data of another
// type are related: they show that there is none of this type.
func (v *validator) unrelated() bool {
	for i := range v.answers {
		r := v.m.Records[i]
		if v.places[i] != discarded || r.Class == wire.ClassIN && v.m.SameName(int(r.Owner), wire.QuestionNameOffset) {
			return false
		}
	}
	return true
}

// placeOtherSections assigns places to the records after the answer section. It returns the number of
// records to remove.
func (v *validator) placeOtherSections() (lost int) {
	rest := v.m.Records[v.answers:]
	if len(rest) == 0 {
		return 0
	}
	additional := slices.IndexFunc(rest, func(r wire.Record) bool { return r.Section == wire.Additional })
	if additional < 0 {
		additional = len(rest)
	}
	v.collectZones(rest[:min(additional, maxAuthority)])
	v.collectTargets(len(rest) > additional)
	for i, r := range rest {
		at := discarded
		if r.Class == wire.ClassIN && (i < min(additional, maxAuthority) && v.hasAuthority(r) || i >= additional && v.isGlue(r)) {
			at = dataPlace
		} else {
			lost++
		}
		v.places[v.answers+i] = at
	}
	return lost
}

// collectZones collects the zones of the chain that the authority section has records of.
func (v *validator) collectZones(authority []wire.Record) {
	v.zones = v.zones[:0]
	for _, r := range authority {
		zone := v.zone(r)
		if zone < 0 || len(v.zones) == maxZones || !v.isIn(zone) {
			continue
		}
		if !slices.ContainsFunc(v.zones, func(known int) bool { return v.m.SameName(zone, known) }) {
			v.zones = append(v.zones, zone)
		}
	}
}

// zone returns the offset of the zone name for a record of the authority section, or -1.
func (v *validator) zone(r wire.Record) int {
	switch {
	case r.Class != wire.ClassIN:
	case isApex(r.Type):
		return int(r.Owner)
	case r.Type == wire.TypeRRSIG && isDenial(v.m.TypeCovered(r)):
		// A wildcard answer has only this record: the proof that no closer name exists.
		if zone := v.m.Signer(r); zone >= 0 && v.m.Within(int(r.Owner), zone) {
			return zone
		}
	}
	return -1
}

// isApex reports whether the authority section has this type for a zone as such.
func isApex(t uint16) bool { return t == wire.TypeSOA || t == wire.TypeNS || t == wire.TypeDS }

// isDenial reports whether records of the type deny names or types.
func isDenial(t uint16) bool { return t == wire.TypeNSEC || t == wire.TypeNSEC3 }

// hasAuthority reports whether r belongs in the authority section.
func (v *validator) hasAuthority(r wire.Record) bool {
	rrtype, owner := v.signed(r), int(r.Owner)
	switch {
	case isApex(rrtype):
		return slices.ContainsFunc(v.zones, func(zone int) bool { return v.m.SameName(owner, zone) })
	case isDenial(rrtype):
		return slices.ContainsFunc(v.zones, func(zone int) bool { return v.m.Within(owner, zone) })
	}
	return false
}

// signed returns the type of r, or the type that r covers if r is a signature.
func (v *validator) signed(r wire.Record) uint16 {
	if r.Type == wire.TypeRRSIG {
		return v.m.TypeCovered(r)
	}
	return r.Type
}

// collectTargets collects the names that the answer's data refer to, if use is set.
func (v *validator) collectTargets(use bool) {
	if len(v.targets) > maxTargets {
		v.targets = nil
	}
	clear(v.targets)
	switch v.m.QuestionType() {
	case wire.TypeNS, wire.TypeMX, wire.TypeSRV, wire.TypeSVCB, wire.TypeHTTPS, wire.TypeNAPTR:
	default:
		return
	}
	if !use {
		return
	}
	if v.targets == nil {
		v.targets, v.seed = make(map[uint64]struct{}), maphash.MakeSeed()
	}
	for i, r := range v.m.Records[:v.answers] {
		if v.places[i] != dataPlace || r.Type == wire.TypeRRSIG {
			continue
		}
		if target := v.m.Target(r); target >= 0 {
			v.targets[v.hash(target)] = struct{}{}
		}
	}
}

// isGlue reports whether r is an address, or the signature of one, of a collected target.
func (v *validator) isGlue(r wire.Record) bool {
	if len(v.targets) == 0 {
		return false
	}
	if t := v.signed(r); t != wire.TypeA && t != wire.TypeAAAA {
		return false
	}
	_, ok := v.targets[v.hash(int(r.Owner))]
	return ok
}

// hash returns a hash that ignores case.
func (v *validator) hash(name int) uint64 {
	v.name = v.m.AppendName(v.name[:0], name)
	return maphash.Bytes(v.seed, v.name)
}

// keptRecords returns the indexes of the records to keep, sorted by place unless they are in order.
func (v *validator) keptRecords(ordered bool) []uint16 {
	v.order = v.order[:0]
	for i, at := range v.places {
		if at != discarded {
			v.order = append(v.order, uint16(i))
		}
	}
	if ordered {
		return v.order
	}
	slices.SortStableFunc(v.order, func(i, j uint16) int {
		return cmp.Or(cmp.Compare(v.m.Records[i].Section, v.m.Records[j].Section), cmp.Compare(v.places[i], v.places[j]))
	})
	return v.order
}

// A place is the position of a record in its section: at an alias, by number, or one of these.
type place uint8

const (
	dataPlace place = 254 // the data, and all records after the answer section
	discarded place = 255 // the record is removed
)

// followChain follows the aliases in m, in any order of records, and assigns their places: an even one
// to a DNAME record, the next one to the CNAME record that follows from it.
func (v *validator) followChain(m *wire.Message) error {
	v.m, v.names = m, append(v.names[:0], wire.QuestionNameOffset)
	v.places = slices.Grow(v.places[:0], len(m.Records))[:len(m.Records)]
	if err := v.collectAliases(); err != nil {
		return err
	}
	for at := place(0); len(v.aliases) > 0; at += 2 {
		name, final := v.lastName(), m.QuestionType() == wire.TypeCNAME
		to := at + 1
		if final { // the alias is the queried data
			to = dataPlace
		}
		alias := v.claim(to, func(r wire.Record) bool { return r.Type == wire.TypeCNAME && m.SameName(name, int(r.Owner)) })
		if alias < 0 {
			return nil
		}
		v.claim(at, func(r wire.Record) bool {
			return r.Type == wire.TypeDNAME && m.Within(name, int(r.Owner)) && !m.SameName(name, int(r.Owner))
		})
		if final {
			return nil
		}
		if len(v.names) > maxChain {
			return errExcess
		}
		v.names = append(v.names, m.Records[alias].Data())
	}
	return nil
}

// collectAliases counts the records of the answer section and lists its aliases. No record has a place
// yet.
func (v *validator) collectAliases() error {
	v.aliases, v.answers = v.aliases[:0], 0
	signed := 0
	for i, r := range v.m.Records {
		v.places[i] = discarded
		if r.Section != wire.Answer {
			continue
		}
		v.answers++
		switch {
		case r.Class != wire.ClassIN:
		case isAlias(r.Type):
			v.aliases = append(v.aliases, i)
		case r.Type == wire.TypeRRSIG && isAlias(v.m.TypeCovered(r)):
			signed++
		}
	}
	if len(v.aliases)+signed > maxAliases {
		return errExcess
	}
	return nil
}

func isAlias(rrtype uint16) bool { return rrtype == wire.TypeCNAME || rrtype == wire.TypeDNAME }

// claim assigns the place to the first matching alias record, and returns its index, or -1.
func (v *validator) claim(at place, fits func(wire.Record) bool) int {
	for n, i := range v.aliases {
		if fits(v.m.Records[i]) {
			v.places[i] = at
			v.aliases = slices.Delete(v.aliases, n, n+1)
			return i
		}
	}
	return -1
}

// lastName returns the offset of the chain's last name.
func (v *validator) lastName() int { return v.names[len(v.names)-1] }

// isIn reports whether a name of the chain is in the zone at the given offset.
func (v *validator) isIn(zone int) bool {
	for _, name := range slices.Backward(v.names) {
		if v.m.Within(name, zone) {
			return true
		}
	}
	return false
}

// placeAnswer assigns places to the records of the answer section that are not aliases. It returns the
// number of records to remove.
func (v *validator) placeAnswer() (lost int) {
	want, end := v.m.QuestionType(), v.lastName()
	for i, r := range v.m.Records[:v.answers] {
		switch {
		case v.places[i] != discarded:
			continue
		case r.Class != wire.ClassIN:
		case r.Type == want && v.m.SameName(int(r.Owner), end):
			v.places[i] = dataPlace
		case r.Type == wire.TypeRRSIG:
			v.places[i] = v.placeSignature(r, want, end)
		}
		if v.places[i] == discarded {
			lost++
		}
	}
	return lost
}

// placeSignature returns the place of the records that the RRSIG record r signs.
func (v *validator) placeSignature(r wire.Record, want uint16, end int) place {
	covered := v.m.TypeCovered(r)
	if covered == want && v.m.SameName(int(r.Owner), end) {
		return dataPlace
	}
	if !isAlias(covered) {
		return discarded
	}
	for i, signed := range v.m.Records[:v.answers] {
		at := v.places[i]
		if at < dataPlace && signed.Type == covered && v.m.SameName(int(r.Owner), int(signed.Owner)) {
			return at
		}
	}
	return discarded
}

// inOrder reports whether every alias precedes its target. Signatures may be anywhere.
func (v *validator) inOrder() bool {
	before := place(0)
	for i, r := range v.m.Records[:v.answers] {
		at := v.places[i]
		if at == discarded || r.Type == wire.TypeRRSIG {
			continue
		}
		if at < before {
			return false
		}
		before = at
	}
	return true
}
