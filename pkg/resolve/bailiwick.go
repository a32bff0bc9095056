// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"cmp"
	"hash/maphash"
	"slices"

	"github.com/nodecache/node-cache/pkg/wire"
)

// An answer is stored whole and under its question alone, so that a record too
// many cannot answer another question here. Behind us it could: a stub resolver,
// a second cache and an application read what they are given. So each record
// needs a reason to be there (RFC 2181 section 5.4.1, CVE-2021-25220,
// CVE-2025-40778):
//
//	answer      the aliases that lead from the name asked for to the last name, in
//	            this order; the data of the type asked for that the last name has;
//	            the signatures of both
//	authority   SOA, NS and DS records of zones that a name of this chain is in;
//	            NSEC and NSEC3 records of such a zone; their signatures
//	additional  addresses of the names that the answer's data lead to; their
//	            signatures
//
// and the class IN, the only one that is ever asked for. What has no reason is
// taken out.

// What an answer may have. An honest one meets none of these.
const (
	maxLinks     = 16   // aliases that lead to the data
	maxAliases   = 64   // alias records and signatures of such in the answer section
	maxRecords   = 4096 // in all: more addresses than 64 KiB hold (CVE-2024-1737)
	maxAuthority = 64   // records of the authority section that are looked at: the others go
	maxZones     = 16   // zones that these are of
	maxLeads     = 256  // names, room for which is kept from one answer to the next
)

// A refusal is why an answer that can be read is not taken.
type refusal string

const (
	errNonsense refusal = "answer that contradicts itself"
	errReferral refusal = "referral in place of an answer"
	errExcess   refusal = "answer with more records or aliases than are taken"
)

// Error is the reason.
func (r refusal) Error() string { return string(r) }

// EDE is the Extended DNS Error that clients get (RFC 8914 section 4.25).
func (refusal) EDE() int { return wire.EDEInvalidData }

// A bailiwick finds out which records of an answer belong there. It is reused.
type bailiwick struct {
	chain

	zones []int               // offsets of the names of zones that the authority section may speak of
	seed  maphash.Seed        // keeps those who write answers from finding two names of one hash
	leads map[uint64]struct{} // hashes of the names that the answer's data lead to
	name  []byte              // reused
	order []uint16            // reused
	sift  wire.RecordFilter
}

// clean takes out of m what does not belong there and puts the aliases in order.
// An answer that cannot be mended so is an error.
func (b *bailiwick) clean(m *wire.Message) error {
	switch {
	case m.IsReferral():
		return errReferral
	case len(m.Records) > maxRecords:
		return errExcess
	case plain(m):
		return nil
	}
	if err := b.follow(m); err != nil {
		return err
	}
	lost := b.placeAnswer()
	if lost > 0 && (m.Rcode() == wire.RcodeNXDomain || b.beside()) {
		return errNonsense
	}
	lost += b.placeRest()
	ordered := b.inOrder()
	if lost == 0 && ordered {
		return nil
	}
	if err := b.sift.Keep(m, b.kept(ordered)); err != nil {
		return err
	}
	if m.IsReferral() { // what hid it is gone
		return errReferral
	}
	return nil
}

// plain tells of most answers, fast, that there is nothing to be found: data of
// the name and type asked for and nothing else. Aliases are never plain.
func plain(m *wire.Message) bool {
	want := m.QuestionType()
	if isAlias(want) {
		return false
	}
	for _, r := range m.Records {
		if r.Section != wire.Answer || r.Type != want || r.Class != wire.ClassIN || !m.SameName(int(r.Owner), wire.QuestionNameOffset) {
			return false
		}
	}
	return true
}

// beside tells whether nothing in the answer section is about the name that was
// asked for. Data of another type are: they say that there is none of this type.
func (b *bailiwick) beside() bool {
	for i := range b.answers {
		r := b.m.Records[i]
		if b.places[i] != nowhere || r.Class == wire.ClassIN && b.m.SameName(int(r.Owner), wire.QuestionNameOffset) {
			return false
		}
	}
	return true
}

// placeRest gives the records behind the answer section their places. It returns
// how many belong nowhere.
func (b *bailiwick) placeRest() (lost int) {
	rest := b.m.Records[b.answers:]
	if len(rest) == 0 {
		return 0
	}
	additional := slices.IndexFunc(rest, func(r wire.Record) bool { return r.Section == wire.Additional })
	if additional < 0 {
		additional = len(rest)
	}
	b.findZones(rest[:min(additional, maxAuthority)])
	b.findLeads(len(rest) > additional)
	for i, r := range rest {
		at := nowhere
		if r.Class == wire.ClassIN && (i < min(additional, maxAuthority) && b.hasAuthority(r) || i >= additional && b.isLedTo(r)) {
			at = last
		} else {
			lost++
		}
		b.places[b.answers+i] = at
	}
	return lost
}

// findZones finds the zones that the chain goes through, as far as the authority
// section has records of them.
func (b *bailiwick) findZones(authority []wire.Record) {
	b.zones = b.zones[:0]
	for _, r := range authority {
		zone := b.zone(r)
		if zone < 0 || len(b.zones) == maxZones || !b.isIn(zone) {
			continue
		}
		if !slices.ContainsFunc(b.zones, func(known int) bool { return b.m.SameName(zone, known) }) {
			b.zones = append(b.zones, zone)
		}
	}
}

// zone is the offset of the name of the zone that r of the authority section
// names, or -1.
func (b *bailiwick) zone(r wire.Record) int {
	switch {
	case r.Class != wire.ClassIN:
	case isApex(r.Type):
		return int(r.Owner)
	case r.Type == wire.TypeRRSIG && isDenial(b.m.TypeCovered(r)):
		// A wildcard's answer has no other: the proof that there was no better name.
		if zone := b.m.Signer(r); zone >= 0 && b.m.Within(int(r.Owner), zone) {
			return zone
		}
	}
	return -1
}

// isApex tells of types that the authority section has of a zone as such.
func isApex(t uint16) bool { return t == wire.TypeSOA || t == wire.TypeNS || t == wire.TypeDS }

// isDenial tells of types that say what is not in a zone.
func isDenial(t uint16) bool { return t == wire.TypeNSEC || t == wire.TypeNSEC3 }

// hasAuthority tells whether r belongs in the authority section.
func (b *bailiwick) hasAuthority(r wire.Record) bool {
	rrtype, owner := b.signed(r), int(r.Owner)
	switch {
	case isApex(rrtype):
		return slices.ContainsFunc(b.zones, func(zone int) bool { return b.m.SameName(owner, zone) })
	case isDenial(rrtype):
		return slices.ContainsFunc(b.zones, func(zone int) bool { return b.m.Within(owner, zone) })
	}
	return false
}

// signed is the type of r, or, if r is a signature, of what it signs.
func (b *bailiwick) signed(r wire.Record) uint16 {
	if r.Type == wire.TypeRRSIG {
		return b.m.TypeCovered(r)
	}
	return r.Type
}

// findLeads finds the names that the answer's data lead to, if there is use for
// them.
func (b *bailiwick) findLeads(use bool) {
	if len(b.leads) > maxLeads {
		b.leads = nil
	}
	clear(b.leads)
	switch b.m.QuestionType() {
	case wire.TypeNS, wire.TypeMX, wire.TypeSRV, wire.TypeSVCB, wire.TypeHTTPS, wire.TypeNAPTR:
	default:
		return
	}
	if !use {
		return
	}
	if b.leads == nil {
		b.leads, b.seed = make(map[uint64]struct{}), maphash.MakeSeed()
	}
	for i, r := range b.m.Records[:b.answers] {
		if b.places[i] != last || r.Type == wire.TypeRRSIG {
			continue
		}
		if target := b.m.Target(r); target >= 0 {
			b.leads[b.hash(target)] = struct{}{}
		}
	}
}

// isLedTo tells whether r is an address, or the signature of one, of a name that
// the answer's data lead to.
func (b *bailiwick) isLedTo(r wire.Record) bool {
	if len(b.leads) == 0 {
		return false
	}
	if t := b.signed(r); t != wire.TypeA && t != wire.TypeAAAA {
		return false
	}
	_, ok := b.leads[b.hash(int(r.Owner))]
	return ok
}

// hash is the same for two spellings of one name.
func (b *bailiwick) hash(name int) uint64 {
	b.name = b.m.AppendName(b.name[:0], name)
	return maphash.Bytes(b.seed, b.name)
}

// kept are the indices of the records that have a place, in the order of their
// places if they are not ordered well enough as they are.
func (b *bailiwick) kept(ordered bool) []uint16 {
	b.order = b.order[:0]
	for i, at := range b.places {
		if at != nowhere {
			b.order = append(b.order, uint16(i))
		}
	}
	if ordered {
		return b.order
	}
	slices.SortStableFunc(b.order, func(i, j uint16) int {
		return cmp.Or(cmp.Compare(b.m.Records[i].Section, b.m.Records[j].Section), cmp.Compare(b.places[i], b.places[j]))
	})
	return b.order
}
