// SPDX-License-Identifier: Apache-2.0

package skydns

import (
	"bytes"
	"hash/maphash"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A Verdict classifies the result for a query.
type Verdict uint8

// The verdicts.
const (
	None     Verdict = iota // the name is in no zone, or has no record while names go onward
	Answered                // the answer is complete; it may be a denial
	Alias                   // the answer ends with a CNAME record to a name in no zone, which the caller must resolve
	Failed                  // the answer needs too many records, or an alias has no end
	NotReady                // the records were not read yet
)

const (
	// maxRead bounds the records read for a query, and so its time: a wildcard reads all that follow.
	maxRead = 1024
	// maxAliases bounds a chain of aliases, as in the cluster zone.
	maxAliases = 10
	// maxAnswer bounds the bytes of an answer, before the OPT record.
	maxAnswer = wire.MaxMessage - 128

	soaTTL = 30 // seconds; also of denials
)

// Answer appends to dst the answer to q, a query of class IN: header with QR and AA, the question in canonical case,
// records, no OPT record. With other verdicts than Answered and Alias it leaves dst unchanged. With Alias, target is the
// canonical name to resolve, at the end of the answer.
func (s *Source) Answer(q *wire.Query, dst []byte) (_ []byte, verdict Verdict, target []byte) {
	z := s.zoneOf(q.Name())
	if z == nil {
		return dst, None, nil
	}
	records := s.records.Load()
	if records == nil {
		return dst, NotReady, nil
	}
	key := q.Key()[:len(q.Name())+2] // name and type only
	slot := &records.recent[maphash.Bytes(s.seed, key)%recentSlots]
	m := slot.Load()
	if m == nil || m.key != string(key) || m.changes != records.changes.Load() {
		m = &recent{key: string(key), changes: records.changes.Load()}
		a := answer{source: s, records: records, zone: z, budget: maxRead}
		m.verdict, m.msg = a.message(q)
		m.target = len(a.target)
		m.findRun()
		if len(m.msg) <= maxRecent {
			slot.Store(m)
		}
	}
	if m.verdict == Failed {
		s.failed.Add(1)
	}
	start := len(dst)
	dst = append(dst, m.msg...)
	m.rotate(dst[start:])
	return dst, m.verdict, dst[len(dst)-m.target:]
}

// An answer is under construction.
type answer struct {
	dns.Msg

	source  *Source
	records *Records
	zone    *zone  // of the name that is looked up
	budget  int    // of records to read
	target  []byte // of the last alias, if it is in no zone
}

// message returns the verdict, and the answer in wire form, empty where there is none.
func (a *answer) message(q *wire.Query) (Verdict, []byte) {
	name, _, err := dns.UnpackDomainName(q.Name(), 0)
	if err != nil {
		return Failed, nil
	}
	a.Response, a.Authoritative = true, true
	a.Question = []dns.Question{{Name: name, Qtype: q.Type, Qclass: dns.ClassINET}}
	switch complete := a.lookup(name, q.Name(), q.Type); {
	case !complete || a.budget < 0:
		return Failed, nil
	case a.source.onward && a.Rcode == dns.RcodeNameError && len(a.Answer) == 0:
		return None, nil
	}
	if slices.IndexFunc(a.Answer, func(rr dns.RR) bool { return rr.Header().Rrtype != dns.TypeCNAME || q.Type == dns.TypeCNAME }) < 0 && a.target == nil {
		a.Ns = []dns.RR{a.soa()}
	}
	a.Answer, a.Extra = sets(a.Answer), sets(a.Extra)
	a.Compress = a.target == nil
	msg, err := a.Pack()
	switch {
	case err != nil || len(msg) > maxAnswer || !bytes.HasSuffix(msg, a.target):
		return Failed, nil
	case a.target != nil:
		return Alias, msg
	}
	return Answered, msg
}

// sets removes duplicates, and gives the records of each set their lowest TTL (RFC 2181 sections 5 and 5.2).
func sets(list []dns.RR) []dns.RR {
	type set struct {
		owner  string
		rrtype uint16
	}
	list = dns.Dedup(list, nil)
	lowest := map[set]uint32{}
	for _, rr := range list {
		h := rr.Header()
		ttl, found := lowest[set{h.Name, h.Rrtype}]
		if !found || h.Ttl < ttl {
			lowest[set{h.Name, h.Rrtype}] = h.Ttl
		}
	}
	for _, rr := range list {
		rr.Header().Ttl = lowest[set{rr.Header().Name, rr.Header().Rrtype}]
	}
	return list
}

// lookup adds the records of a name, which it has as text and in wire form. It returns false for aliases without an end.
func (a *answer) lookup(name string, wireName []byte, qtype uint16) bool {
	path := pathOf(wireName)
	isApex := path == a.zone.path
	switch qtype {
	case dns.TypeA, dns.TypeAAAA, dns.TypeTXT:
		return a.follow(name, wireName, qtype)
	case dns.TypeCNAME, dns.TypePTR:
		a.pointers(name, path, qtype)
	case dns.TypeSRV:
		a.services(name, a.read(path, false))
	case dns.TypeMX:
		a.mail(name, a.read(path, false))
	case dns.TypeNS:
		if isApex {
			a.nameServers(name, a.read(path+"dns/ns/", false))
		}
	case dns.TypeSOA:
		if isApex {
			a.Answer = []dns.RR{a.soa()}
		}
	}
	if len(a.Answer) == 0 && !a.exists(path) {
		a.Rcode = dns.RcodeNameError
	}
	return true
}

// exists reports whether a name has records, or names below it have.
func (a *answer) exists(path string) (found bool) {
	a.budget = a.records.find(path, a.budget, func(*record) bool {
		found = true
		return false
	})
	return found || path == a.zone.path
}

// read returns the records of a name that have a host, or with texts a text.
func (a *answer) read(path string, texts bool) []*record {
	var own, below []*record
	hasWildcard, isBelow := fixed(path) != path, false
	a.budget = a.records.find(path, a.budget, func(r *record) bool {
		isOwn := !hasWildcard && r.path == path
		isBelow = isBelow || !isOwn
		switch {
		case r.Host == "" && (!texts || r.Text == ""):
		case isOwn:
			own = append(own, r)
		default:
			below = append(below, r)
		}
		return true
	})
	if !isBelow {
		below = own
	}
	return group(below)
}

// group returns the records of one group and those of none. The first record has the group, or the first with a shorter
// path. Records of different groups whose paths are as short are not grouped.
func group(list []*record) []*record {
	if len(list) == 0 {
		return nil
	}
	depth := func(r *record) int { return strings.Count(r.path, "/") }
	name, least := list[0].Group, depth(list[0])
	for _, r := range list {
		if depth(r) < least {
			if r.Group == "" {
				break
			}
			name, least = r.Group, depth(r)
		}
	}
	if name == "" || slices.ContainsFunc(list, func(r *record) bool { return r.Group != "" && r.Group != name && depth(r) == least }) {
		return list
	}
	return slices.DeleteFunc(list, func(r *record) bool { return r.Group != "" && r.Group != name })
}

// follow adds addresses or texts, and the aliases that lead to them. It returns false for aliases without an end.
func (a *answer) follow(name string, wireName []byte, qtype uint16) bool {
	for range maxAliases + 1 {
		path := pathOf(wireName)
		list := a.recordsOf(a.zone, path, qtype)
		if !a.take(list, name, qtype) {
			return true
		}
		i := slices.IndexFunc(list, func(r *record) bool { return r.isAlias() && !dns.IsSubDomain(name, r.Host+".") })
		if i < 0 {
			if len(list) == 0 && !a.exists(path) {
				a.Rcode = dns.RcodeNameError
			}
			return true
		}
		alias := list[i]
		a.Answer = append(a.Answer, &dns.CNAME{Hdr: alias.header(name, dns.TypeCNAME), Target: alias.Host + "."})
		name = alias.Host + "."
		wireName, _ = pack(name) // a host is a valid name
		z := a.source.zoneOf(wireName)
		if z == nil {
			a.target = wireName
			return true
		}
		a.zone = z
	}
	return false
}

// take adds the addresses or texts of a name. It reports whether the name has none of any type, so that it can be an alias
// (RFC 1034 section 3.6.2).
func (a *answer) take(list []*record, name string, qtype uint16) bool {
	alone := true
	for _, r := range list {
		alone = alone && !r.isText() && !r.isAddress(dns.TypeNone)
		switch {
		case qtype == dns.TypeTXT && r.isText():
			a.Answer = append(a.Answer, r.txt(name))
		case qtype != dns.TypeTXT && r.isAddress(qtype):
			a.Answer = append(a.Answer, r.address(name))
		}
	}
	return alone
}

// recordsOf returns the records of a name for a query of type A, AAAA or TXT. The addresses of a zone are at apex.dns.
func (a *answer) recordsOf(z *zone, path string, qtype uint16) []*record {
	if apex := path + "dns/apex/"; path == z.path && qtype != dns.TypeTXT && a.exists(apex) {
		path = apex
	}
	return a.read(path, qtype == dns.TypeTXT)
}

// pointers adds the CNAME or PTR records of the path itself. There is one CNAME record at most (RFC 2181 section 10.1).
func (a *answer) pointers(name, path string, qtype uint16) {
	a.budget = a.records.find(path, a.budget, func(r *record) bool {
		switch {
		case r.path != path:
			return false
		case r.Host == "" || r.addr.IsValid():
		case qtype == dns.TypePTR:
			a.Answer = append(a.Answer, &dns.PTR{Hdr: r.header(name, qtype), Ptr: r.Host + "."})
		case len(a.Answer) == 0:
			a.Answer = []dns.RR{&dns.CNAME{Hdr: r.header(name, qtype), Target: r.Host + "."}}
		}
		return true
	})
}

// services adds SRV records. A weight is the part in percent of all weights of its priority.
func (a *answer) services(name string, list []*record) {
	const defaultWeight = 100
	weights := map[int]int{}
	weight := func(r *record) int {
		if r.Weight == 0 {
			return defaultWeight
		}
		return r.Weight
	}
	for _, r := range list {
		weights[r.Priority] += weight(r)
	}
	for _, r := range list {
		if r.Port < 0 || r.isText() {
			continue
		}
		part := max(1, 100*weight(r)/weights[r.Priority])
		a.Answer = append(a.Answer, &dns.SRV{
			Hdr: r.header(name, dns.TypeSRV), Priority: uint16(r.Priority), Weight: uint16(part), Port: uint16(r.Port), Target: r.target(),
		})
		a.addresses(r)
	}
}

// mail adds MX records.
func (a *answer) mail(name string, list []*record) {
	for _, r := range list {
		if r.Mail && !r.isText() {
			a.Answer = append(a.Answer, &dns.MX{Hdr: r.header(name, dns.TypeMX), Preference: uint16(r.Priority), Mx: r.target()})
			a.addresses(r)
		}
	}
}

// nameServers adds NS records.
func (a *answer) nameServers(name string, list []*record) {
	for _, r := range list {
		if !r.isText() {
			a.Answer = append(a.Answer, &dns.NS{Hdr: r.header(name, dns.TypeNS), Ns: r.target()})
			a.addresses(r)
		}
	}
}

// addresses adds the addresses of the target of a record, unless it is in no zone, or an alias.
func (a *answer) addresses(r *record) {
	target := r.target()
	if r.addr.IsValid() {
		a.Extra = append(a.Extra, r.address(target))
		return
	}
	wireName, _ := pack(target)
	if z := a.source.zoneOf(wireName); z != nil {
		for _, other := range a.recordsOf(z, pathOf(wireName), dns.TypeA) {
			if other.addr.IsValid() {
				a.Extra = append(a.Extra, other.address(target))
			}
		}
	}
}

// soa returns the SOA record of the zone. Its serial is the revision of the records.
func (a *answer) soa() dns.RR {
	z := a.zone.name
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: z, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: soaTTL},
		Ns:  below("ns.dns.", z), Mbox: below("hostmaster.", z), Serial: uint32(a.records.Revision.Load()),
		Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: soaTTL,
	}
}

// below returns a name below a zone, which may be the root.
func below(labels, zone string) string { return labels + strings.TrimPrefix(zone, ".") }
