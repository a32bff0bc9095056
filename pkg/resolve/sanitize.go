// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"cmp"
	"hash/maphash"
	"slices"

	"github.com/nodecache/node-cache/pkg/wire"
)

// The cache stores an answer whole under its question, so that an unrelated record cannot answer
// another question here. In a stub resolver or a cache behind this one it could. So only these
// records stay (RFC 2181 section 5.4.1, CVE-2021-25220, CVE-2025-40778):
//
//	answer      the aliases that lead from the name asked for to the last name, in
//	            this order; the data of the type asked for that the last name has;
//	            the signatures of both
//	authority   SOA, NS and DS records of zones that a name of this chain is in;
//	            NSEC and NSEC3 records of such a zone; their signatures
//	additional  addresses of the names that the answer's data lead to; their
//	            signatures
//
// All these are of class IN, the only class that is queried. Other records are removed.

// Limits of an answer. Legitimate answers are far below them.
const (
	maxChain     = 16   // aliases in the chain to the data
	maxAliases   = 64   // alias records and their signatures in the answer section
	maxRecords   = 4096 // records in the message: 64 KiB hold fewer addresses (CVE-2024-1737)
	maxAuthority = 64   // authority records that are examined; others are removed
	maxZones     = 16   // zones that may have authority records; records of further ones are removed
	maxTargets   = 256  // maximum size of a targets map that is reused for the next answer
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

// A sanitizer keeps the records that belong in an answer. It is reused.
//
// The chain is the path from the query name to the data: CNAME records, each of which may follow from a
// DNAME record.
type sanitizer struct {
	m       *wire.Message
	answers int     // number of records in the answer section
	names   []int   // the chain: offsets of the query name and of each alias target
	places  []place // place of each record, by its index
	aliases []int   // indexes of the alias records that have no place yet

	zones   []int               // offsets of the names of zones that may have authority records
	seed    maphash.Seed        // random, so that senders cannot construct hash collisions
	targets map[uint64]struct{} // hashes of the names that the answer's data refer to
	name    []byte              // reused
	order   []uint16            // reused
	sift    wire.Rewriter
}

// keepRelated removes unrelated records from an answer that is not plain, and puts the aliases in order.
func (s *sanitizer) keepRelated(m *wire.Message) error {
	if err := s.followChain(m); err != nil {
		return err
	}
	lost := s.placeAnswer()
	if lost > 0 && (m.Rcode() == wire.RcodeNXDomain || s.unrelated()) {
		return errContradiction
	}
	lost += s.placeOtherSections()
	ordered := s.inOrder()
	if lost == 0 && ordered {
		return nil
	}
	if err := s.sift.Keep(m, s.keptRecords(ordered)); err != nil {
		return err
	}
	if m.IsReferral() { // without the removed records m is a referral
		return errReferral
	}
	return nil
}

// unrelated reports whether nothing in the answer section is about the query name. Data of another
// type are related: they show that there is none of this type.
func (s *sanitizer) unrelated() bool {
	for i := range s.answers {
		r := s.m.Records[i]
		if s.places[i] != discarded || r.Class == wire.ClassIN && s.m.SameName(int(r.Owner), wire.QuestionNameOffset) {
			return false
		}
	}
	return true
}

// placeOtherSections assigns places to the records after the answer section. It returns the number of
// records to remove.
func (s *sanitizer) placeOtherSections() (lost int) {
	rest := s.m.Records[s.answers:]
	if len(rest) == 0 {
		return 0
	}
	additional := slices.IndexFunc(rest, func(r wire.Record) bool { return r.Section == wire.Additional })
	if additional < 0 {
		additional = len(rest)
	}
	s.collectZones(rest[:min(additional, maxAuthority)])
	s.collectTargets(len(rest) > additional)
	for i, r := range rest {
		at := discarded
		if r.Class == wire.ClassIN && (i < min(additional, maxAuthority) && s.hasAuthority(r) || i >= additional && s.isGlue(r)) {
			at = dataPlace
		} else {
			lost++
		}
		s.places[s.answers+i] = at
	}
	return lost
}

// collectZones collects the zones of the chain that the authority section has records of.
func (s *sanitizer) collectZones(authority []wire.Record) {
	s.zones = s.zones[:0]
	for _, r := range authority {
		zone := s.zone(r)
		if zone < 0 || len(s.zones) == maxZones || !s.isIn(zone) {
			continue
		}
		if !slices.ContainsFunc(s.zones, func(known int) bool { return s.m.SameName(zone, known) }) {
			s.zones = append(s.zones, zone)
		}
	}
}

// zone returns the offset of the zone name for a record of the authority section, or -1.
func (s *sanitizer) zone(r wire.Record) int {
	switch {
	case r.Class != wire.ClassIN:
	case isApex(r.Type):
		return int(r.Owner)
	case r.Type == wire.TypeRRSIG && isDenial(s.m.TypeCovered(r)):
		// The authority section of a wildcard answer may have only NSEC or NSEC3 records and their RRSIGs. The signer is the zone.
		if zone := s.m.Signer(r); zone >= 0 && s.m.Within(int(r.Owner), zone) {
			return zone
		}
	}
	return -1
}

// isApex reports whether authority records of this type are owned by the zone name itself.
func isApex(t uint16) bool { return t == wire.TypeSOA || t == wire.TypeNS || t == wire.TypeDS }

// isDenial reports whether records of the type deny names or types.
func isDenial(t uint16) bool { return t == wire.TypeNSEC || t == wire.TypeNSEC3 }

// hasAuthority reports whether r belongs in the authority section.
func (s *sanitizer) hasAuthority(r wire.Record) bool {
	rrtype, owner := s.signed(r), int(r.Owner)
	switch {
	case isApex(rrtype):
		return slices.ContainsFunc(s.zones, func(zone int) bool { return s.m.SameName(owner, zone) })
	case isDenial(rrtype):
		return slices.ContainsFunc(s.zones, func(zone int) bool { return s.m.Within(owner, zone) })
	}
	return false
}

// signed returns the type of r, or the type that r covers if r is a signature.
func (s *sanitizer) signed(r wire.Record) uint16 {
	if r.Type == wire.TypeRRSIG {
		return s.m.TypeCovered(r)
	}
	return r.Type
}

// collectTargets collects the names that the answer's data refer to; use: there are additional records.
func (s *sanitizer) collectTargets(use bool) {
	if len(s.targets) > maxTargets {
		s.targets = nil
	}
	clear(s.targets)
	switch s.m.QuestionType() {
	case wire.TypeNS, wire.TypeMX, wire.TypeSRV, wire.TypeSVCB, wire.TypeHTTPS, wire.TypeNAPTR:
	default:
		return
	}
	if !use {
		return
	}
	if s.targets == nil {
		s.targets, s.seed = make(map[uint64]struct{}), maphash.MakeSeed()
	}
	for i, r := range s.m.Records[:s.answers] {
		if s.places[i] != dataPlace || r.Type == wire.TypeRRSIG {
			continue
		}
		if target := s.m.Target(r); target >= 0 {
			s.targets[s.hash(target)] = struct{}{}
		}
	}
}

// isGlue reports whether r is an address, or the signature of one, of a collected target.
func (s *sanitizer) isGlue(r wire.Record) bool {
	if len(s.targets) == 0 {
		return false
	}
	if t := s.signed(r); t != wire.TypeA && t != wire.TypeAAAA {
		return false
	}
	_, ok := s.targets[s.hash(int(r.Owner))]
	return ok
}

// hash returns the hash of the name at an offset, whatever its case.
func (s *sanitizer) hash(name int) uint64 {
	s.name = s.m.AppendName(s.name[:0], name)
	return maphash.Bytes(s.seed, s.name)
}

// keptRecords returns the indexes of the records to keep, sorted by place unless they are in order.
func (s *sanitizer) keptRecords(ordered bool) []uint16 {
	s.order = s.order[:0]
	for i, at := range s.places {
		if at != discarded {
			s.order = append(s.order, uint16(i))
		}
	}
	if ordered {
		return s.order
	}
	slices.SortStableFunc(s.order, func(i, j uint16) int {
		return cmp.Or(cmp.Compare(s.m.Records[i].Section, s.m.Records[j].Section), cmp.Compare(s.places[i], s.places[j]))
	})
	return s.order
}

// A place is the sort position of a record in its section: that of an alias, see followChain, or one of these.
type place uint8

const (
	dataPlace place = 254 // the data, and all records after the answer section
	discarded place = 255 // the record is removed
)

// followChain follows the aliases in m, in any order of records, and assigns their places: to the n-th
// CNAME record 2n+1, and to the DNAME record that it follows from 2n, with n from 0.
func (s *sanitizer) followChain(m *wire.Message) error {
	s.m, s.names = m, append(s.names[:0], wire.QuestionNameOffset)
	s.places = slices.Grow(s.places[:0], len(m.Records))[:len(m.Records)]
	if err := s.collectAliases(); err != nil {
		return err
	}
	for at := place(0); len(s.aliases) > 0; at += 2 {
		name, final := s.lastName(), m.QuestionType() == wire.TypeCNAME
		to := at + 1
		if final { // the alias is the queried data
			to = dataPlace
		}
		alias := s.claim(to, func(r wire.Record) bool { return r.Type == wire.TypeCNAME && m.SameName(name, int(r.Owner)) })
		if alias < 0 {
			return nil
		}
		s.claim(at, func(r wire.Record) bool {
			return r.Type == wire.TypeDNAME && m.Within(name, int(r.Owner)) && !m.SameName(name, int(r.Owner))
		})
		if final {
			return nil
		}
		if len(s.names) > maxChain {
			return errExcess
		}
		s.names = append(s.names, m.Records[alias].Data())
	}
	return nil
}

// collectAliases counts the records of the answer section and lists its aliases. No record has a place
// yet.
func (s *sanitizer) collectAliases() error {
	s.aliases, s.answers = s.aliases[:0], 0
	signed := 0
	for i, r := range s.m.Records {
		s.places[i] = discarded
		if r.Section != wire.Answer {
			continue
		}
		s.answers++
		switch {
		case r.Class != wire.ClassIN:
		case isAlias(r.Type):
			s.aliases = append(s.aliases, i)
		case r.Type == wire.TypeRRSIG && isAlias(s.m.TypeCovered(r)):
			signed++
		}
	}
	if len(s.aliases)+signed > maxAliases {
		return errExcess
	}
	return nil
}

func isAlias(rrtype uint16) bool { return rrtype == wire.TypeCNAME || rrtype == wire.TypeDNAME }

// claim assigns the place to the first matching alias record, and returns the index of the record, or -1.
func (s *sanitizer) claim(at place, fits func(wire.Record) bool) int {
	for n, i := range s.aliases {
		if fits(s.m.Records[i]) {
			s.places[i] = at
			s.aliases = slices.Delete(s.aliases, n, n+1)
			return i
		}
	}
	return -1
}

// lastName returns the offset of the chain's last name.
func (s *sanitizer) lastName() int { return s.names[len(s.names)-1] }

// isIn reports whether a name of the chain is in the zone at the given offset.
func (s *sanitizer) isIn(zone int) bool {
	for _, name := range slices.Backward(s.names) {
		if s.m.Within(name, zone) {
			return true
		}
	}
	return false
}

// placeAnswer assigns places to the records of the answer section that are not aliases. It returns the
// number of records to remove.
func (s *sanitizer) placeAnswer() (lost int) {
	want, end := s.m.QuestionType(), s.lastName()
	for i, r := range s.m.Records[:s.answers] {
		switch {
		case s.places[i] != discarded:
			continue
		case r.Class != wire.ClassIN:
		case r.Type == want && s.m.SameName(int(r.Owner), end):
			s.places[i] = dataPlace
		case r.Type == wire.TypeRRSIG:
			s.places[i] = s.placeSignature(r, want, end)
		}
		if s.places[i] == discarded {
			lost++
		}
	}
	return lost
}

// placeSignature returns the place of the records that the RRSIG record r signs, or discarded if there are none.
func (s *sanitizer) placeSignature(r wire.Record, want uint16, end int) place {
	covered := s.m.TypeCovered(r)
	if covered == want && s.m.SameName(int(r.Owner), end) {
		return dataPlace
	}
	if !isAlias(covered) {
		return discarded
	}
	for i, signed := range s.m.Records[:s.answers] {
		at := s.places[i]
		if at < dataPlace && signed.Type == covered && s.m.SameName(int(r.Owner), int(signed.Owner)) {
			return at
		}
	}
	return discarded
}

// inOrder reports whether every alias precedes its target. Signatures may be anywhere.
func (s *sanitizer) inOrder() bool {
	before := place(0)
	for i, r := range s.m.Records[:s.answers] {
		at := s.places[i]
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
