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
type judge struct {
	m         wire.Message
	bailiwick bailiwick
	answer    cache.Answer
}

// judge makes the answer what it may be stored as, in place: no OPT record and
// none that does not belong there, the question in canonical spelling, no AA flag,
// TTLs within the route's bounds. life is
// how long it may be kept, 0 for not at all. The offsets of the TTLs and the
// address set that rotates are left in j.answer.
func (j *judge) judge(route *Route, answer []byte) (msg []byte, life time.Duration, err error) {
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
	if err := j.bailiwick.clean(m); err != nil {
		return nil, 0, err
	}
	m.CanonicalizeQuestion()
	m.ClearAuthority()
	kind := j.kind()
	if kind == nonsense {
		return nil, 0, errNonsense
	}
	lowest, highest := route.seconds(kind)
	if kind == denial {
		highest = min(highest, j.denialTTL())
	}
	shortest := j.clampTTLs(lowest, highest)
	j.answer.TTLs = j.answer.TTLs[:0]
	for _, r := range m.Records {
		j.answer.TTLs = append(j.answer.TTLs, r.TTL)
	}
	j.answer.RotateFirst, j.answer.RotateCount = j.m.AddressRun()
	j.answer.NXDomain = m.Rcode() == wire.RcodeNXDomain && (len(m.Records) == 0 || m.Records[0].Section != wire.Answer)
	if kind == passing {
		shortest = 0
	}
	return m.Raw, time.Duration(shortest) * time.Second, nil
}

// A kind is what an answer says.
type kind uint8

const (
	positive kind = iota // it has the type that was asked for
	denial               // NXDOMAIN or NODATA, with the SOA that says for how long (RFC 2308)
	passing              // a denial without SOA, a chain without end: for those who asked, not to keep (RFC 2308 section 5)
	nonsense
)

// kind reads the answer's meaning from its rcode and records.
func (j *judge) kind() kind {
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
		return nonsense // a name that does not exist has no data
	case found && !nxdomain:
		return positive
	case soa:
		return denial
	default:
		return passing
	}
}

// seconds are the bounds the route sets to TTLs of a kind.
func (r *Route) seconds(k kind) (lowest, highest uint32) {
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
func (j *judge) denialTTL() uint32 {
	for _, r := range j.m.Records {
		if r.Section == wire.Authority && r.Type == wire.TypeSOA {
			return min(j.m.RecordTTL(r), j.m.SOAMinimum(r))
		}
	}
	return 0
}

// clampTTLs brings every TTL within the bounds and returns the shortest. A TTL
// of zero stays: it forbids keeping, not shows carelessness (RFC 1035 section 3.2.1).
func (j *judge) clampTTLs(lowest, highest uint32) uint32 {
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
