// SPDX-License-Identifier: Apache-2.0

package skydns

import (
	"encoding/binary"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A Verdict classifies the result for a query.
type Verdict uint8

// The verdicts.
const (
	None     Verdict = iota // the name is in no zone, or it has no record and Config.Onward is set
	Answered                // the answer is complete, or truncated; it may be a denial
	Alias                   // the answer ends with a CNAME record to a name in no zone, which the caller must resolve
	Failed                  // the answer needs too many records, or an alias has no end
	NotReady                // the records were not read yet
)

const (
	// maxRead bounds the records read for a query, and so its time: a wildcard reads all records below the labels right of it.
	maxRead = 1024
	// maxAliases bounds a chain of aliases: a longer one fails.
	maxAliases = 10
	// maxAnswer bounds the bytes of an answer, before the OPT record.
	maxAnswer = wire.MaxMessage - 128

	soaTTL = 30 // TTL in seconds of the SOA record, and of denials
)

// Answer appends to dst the answer to q, a query of class IN: header with QR and AA, the question in canonical case,
// records, no OPT record. It has at most maxSize bytes: of a larger set it has a part, another part for each query, with TC.
// With other verdicts than Answered and Alias it leaves dst unchanged. With Alias, target is the canonical name to resolve,
// at the end of the answer. It does not allocate for recent answers if dst has room.
func (s *Source) Answer(q *wire.Query, maxSize int, dst []byte) (_ []byte, verdict Verdict, target []byte) {
	z := s.zoneOf(q.Name())
	if z == nil {
		return dst, None, nil
	}
	records := s.records.Load()
	if records == nil {
		return dst, NotReady, nil
	}
	key := q.Key()[:len(q.Name())+2] // name and type, without the DO and CD bits
	slot := &records.recent[maphash.Bytes(s.seed, key)%recentSlots]
	changes, start := records.changes.Load(), len(dst)
	m := slot.Load()
	if m != nil && m.key == string(key) && m.changes == changes && len(m.msg) <= maxSize {
		dst = append(dst, m.msg...)
		m.rotate(dst[start:])
		verdict, target = m.verdict, dst[len(dst)-m.target:]
	} else {
		a, ok := s.unused.Get().(*answer)
		if !ok {
			a = newAnswer()
		}
		defer s.unused.Put(a)
		a.source, a.records, a.zone, a.budget = s, records, z, maxRead
		verdict = a.build(q, min(maxSize, maxAnswer), dst)
		if dst = a.dst; !a.isCut {
			slot.Store(newRecent(key, changes, verdict, a, dst[start:]))
		}
		target = dst[len(dst)-a.target:]
		a.release()
	}
	if verdict == Failed {
		s.failed.Add(1)
	}
	return dst, verdict, target
}

// An answer is an answer under construction. It is reused for other queries.
type answer struct {
	message

	source  *Source
	records *Records
	qtype   uint16
	budget  int  // number of records that may still be read; negative: more were needed
	hasData bool // the answer has a record of the type asked for
	isCut   bool // a record is missing, since the message has no room for it
	target  int  // length in bytes of the last alias's target, if that is in no zone
	set     run  // place of the address records that answer the question; see recent.set

	// The name that is looked up: the question's, or the target of an alias.
	zone  *zone
	name  []byte // in wire form
	at    int    // offset of the name in the message
	path  string
	found bool // the name has records, or names below it have

	// Memory that is reused.
	own, below           []*record // records at the name, and below it
	extraOwn, extraBelow []*record // the same for the target of a record
	nameRoom, room       []byte
	weights              map[int]int // sum of the SRV records' weights by priority
}

func newAnswer() *answer {
	a := &answer{weights: map[int]int{}}
	a.seen.seed = maphash.MakeSeed()
	return a
}

// release drops the references to records and to the caller's buffer.
func (a *answer) release() {
	for _, list := range [][]*record{a.own, a.below, a.extraOwn, a.extraBelow} {
		clear(list[:cap(list)])
	}
	a.dst, a.records, a.zone, a.name = nil, nil, nil, nil
}

// build appends the answer to dst, which becomes a.dst.
func (a *answer) build(q *wire.Query, limit int, dst []byte) Verdict {
	a.begin(q, dst, limit)
	a.qtype, a.hasData, a.target, a.set = q.Type, false, 0, run{}
	a.enter(q.Name(), wire.HeaderLen)
	verdict := a.lookup()
	a.isCut = a.isTruncated()
	isDenied := verdict == Answered && !a.isCut && !a.found && a.path != a.zone.path
	switch {
	case isDenied && a.source.onward && a.counts[sectionAnswer] == 0:
		verdict = None
	case verdict == Answered && !a.isCut && !a.hasData:
		a.addSOA(sectionAuthority)
	}
	if verdict != Answered && verdict != Alias {
		a.dst = a.dst[:a.start]
		return verdict
	}
	rcode := byte(wire.RcodeSuccess)
	if isDenied {
		rcode = wire.RcodeNXDomain
	}
	a.finish(rcode)
	return verdict
}

// enter makes a name, at an offset in the message, the one that is looked up.
func (a *answer) enter(name []byte, at int) {
	a.name, a.at, a.path, a.found = name, at, pathOf(name), false
}

// lookup adds the records of the name that answer the question.
func (a *answer) lookup() Verdict {
	isApex := a.path == a.zone.path
	var list []*record
	switch {
	case a.qtype == wire.TypeA || a.qtype == wire.TypeAAAA || a.qtype == wire.TypeTXT || a.qtype == wire.TypeCNAME:
		return a.follow()
	case a.qtype == wire.TypePTR:
		list = a.pointers()
	case a.qtype == wire.TypeSRV || a.qtype == wire.TypeMX:
		list = a.read(a.path, false)
	case a.qtype == wire.TypeNS && isApex:
		list = a.read(a.path+"dns/ns/", false)
	case a.qtype == wire.TypeSOA && isApex:
		a.addSOA(sectionAnswer)
		a.hasData = true
	default:
		a.found = a.exists(a.path)
	}
	if a.budget < 0 {
		return Failed
	}
	a.addSet(list)
	return Answered
}

// exists reports whether a path has records, or paths below it have.
func (a *answer) exists(path string) (found bool) {
	a.budget = a.records.find(path, a.budget, func(*record) bool {
		found = true
		return false
	})
	return found
}

// read returns the records below a path or, if there are none, at it, that have a host or, with texts, a text. It sets found.
func (a *answer) read(path string, texts bool) []*record {
	own, below := a.own[:0], a.below[:0]
	hasWildcard, isBelow := fixed(path) != path, false
	a.budget = a.records.find(path, a.budget, func(r *record) bool {
		isOwn := !hasWildcard && r.path == path
		a.found, isBelow = true, isBelow || !isOwn
		switch {
		case r.Host == "" && (!texts || r.Text == ""):
		case isOwn:
			own = append(own, r)
		default:
			below = append(below, r)
		}
		return true
	})
	a.own, a.below = own, below
	if !isBelow {
		below = own
	}
	return group(below)
}

// group returns the records of one group and those without a group. The group is that of the first record, or of a later one with a
// shorter path, up to the first such record without a group. All stay if there is no such group, or if another has as short a path.
func group(list []*record) []*record {
	if len(list) == 0 {
		return nil
	}
	name, least := list[0].Group, list[0].labels
	for _, r := range list {
		if r.labels < least {
			if r.Group == "" {
				break
			}
			name, least = r.Group, r.labels
		}
	}
	if name == "" || slices.ContainsFunc(list, func(r *record) bool { return r.Group != "" && r.Group != name && r.labels == least }) {
		return list
	}
	return slices.DeleteFunc(list, func(r *record) bool { return r.Group != "" && r.Group != name })
}

// pointers returns the records at the path, without those below it. It sets found.
func (a *answer) pointers() []*record {
	list := a.own[:0]
	a.budget = a.records.find(a.path, a.budget, func(r *record) bool {
		a.found = true
		if r.path == a.path {
			list = append(list, r)
		}
		return r.path == a.path
	})
	a.own = list
	return list
}

// readAddresses returns the records for the addresses of a path or, with texts, for its texts. Addresses of a zone may be at apex.dns.
func (a *answer) readAddresses(z *zone, path string, texts bool) []*record {
	if apex := path + "dns/apex/"; path == z.path && !texts && a.exists(apex) {
		path = apex
	}
	return a.read(path, texts)
}

// follow adds the addresses or texts of the name, and the aliases that lead to them. For the type CNAME it adds only the first alias.
func (a *answer) follow() Verdict {
	for range maxAliases + 1 {
		list := a.readAddresses(a.zone, a.path, a.qtype == wire.TypeTXT)
		if a.budget < 0 {
			return Failed
		}
		alias := a.aliasIn(list)
		if alias == nil {
			a.addSet(list)
			return Answered
		}
		record := a.beginRecord(a.at, wire.TypeCNAME, alias.TTL)
		at := a.offset()
		a.dst = appendHost(a.dst, alias.Host, 0)
		switch {
		case !a.endRecord(record, sectionAnswer):
			return Answered
		case a.qtype == wire.TypeCNAME:
			a.hasData = true
			return Answered
		}
		a.nameRoom = append(a.nameRoom[:0], a.dst[a.start+at:]...)
		z := a.source.zoneOf(a.nameRoom)
		if z == nil {
			a.target = len(a.nameRoom)
			return Alias
		}
		a.zone = z
		a.enter(a.nameRoom, at)
	}
	return Failed
}

// aliasIn returns the record that makes the name an alias, or nil. A name has one CNAME record at most (RFC 2181 section 10.1), and
// none beside data (RFC 1034 section 3.6.2). A record whose host is the name itself or below it is no alias.
func (a *answer) aliasIn(list []*record) (alias *record) {
	a.room = appendText(a.room[:0], a.name)
	for _, r := range list {
		switch {
		case r.addr.IsValid() || a.gives(r):
			return nil
		case alias == nil && r.isAlias():
			if kept, isBelow := strings.CutSuffix(r.Host, string(a.room)); !isBelow || kept != "" && kept[len(kept)-1] != '.' {
				alias = r
			}
		}
	}
	return alias
}

// gives reports whether a record has data of the type asked for.
func (a *answer) gives(r *record) bool {
	switch a.qtype {
	case wire.TypeA, wire.TypeAAAA:
		return r.isAddress(a.qtype)
	case wire.TypeTXT:
		return r.Text != ""
	case wire.TypePTR:
		return r.isAlias()
	case wire.TypeSRV:
		return r.Host != "" && r.Port >= 0
	case wire.TypeMX:
		return r.Host != "" && r.Mail
	case wire.TypeNS:
		return r.Host != ""
	}
	return false
}

// addSet adds the data of records, all with their lowest TTL (RFC 2181 section 5.2), starting with a random one.
func (a *answer) addSet(list []*record) {
	list = slices.DeleteFunc(list, func(r *record) bool { return !a.gives(r) })
	if len(list) == 0 {
		return
	}
	a.hasData = true
	ttl := uint32(maxTTL)
	for _, r := range list {
		ttl = min(ttl, r.TTL)
	}
	if a.qtype == wire.TypeSRV {
		a.sumWeights(list)
	}
	a.set.at = a.offset()
	before, first := a.counts[sectionAnswer], rand.IntN(len(list))
	for i := range list {
		r := list[(first+i)%len(list)]
		record := a.beginRecord(a.at, a.qtype, ttl)
		target := a.appendData(r)
		if !a.endRecord(record, sectionAnswer) {
			return
		}
		if target > 0 && len(a.dst) > record { // endRecord kept it: it is no duplicate
			a.nameOffset(target)
		}
	}
	if a.qtype == wire.TypeA || a.qtype == wire.TypeAAAA {
		a.set.count = int(a.counts[sectionAnswer] - before)
		a.set.size = (a.offset() - a.set.at) / a.set.count
	}
	if a.qtype == wire.TypeSRV || a.qtype == wire.TypeMX || a.qtype == wire.TypeNS {
		a.addTargets(list)
	}
}

// sumWeights sets weights, the sums of the SRV records' weights by priority.
func (a *answer) sumWeights(list []*record) {
	clear(a.weights)
	sum := 0
	for i, r := range list {
		sum += r.weight()
		if i+1 == len(list) || list[i+1].Priority != r.Priority {
			a.weights[r.Priority] += sum
			sum = 0
		}
	}
}

// appendData appends the RDATA of a record. It returns the offset in dst of the target, 0 if there is none.
func (a *answer) appendData(r *record) (target int) {
	switch a.qtype {
	case wire.TypeA, wire.TypeAAAA:
		a.dst = r.appendAddress(a.dst)
		return 0
	case wire.TypeTXT:
		a.dst = r.appendText(a.dst)
		return 0
	case wire.TypePTR:
		a.dst = appendHost(a.dst, r.Host, 0)
		return 0
	case wire.TypeSRV: // a weight is the part in percent of all weights of its priority
		a.dst = binary.BigEndian.AppendUint16(a.dst, uint16(r.Priority))
		a.dst = binary.BigEndian.AppendUint16(a.dst, uint16(max(1, 100*r.weight()/a.weights[r.Priority])))
		a.dst = binary.BigEndian.AppendUint16(a.dst, uint16(r.Port))
	case wire.TypeMX:
		a.dst = binary.BigEndian.AppendUint16(a.dst, uint16(r.Priority))
	}
	target = len(a.dst)
	a.dst = r.appendTarget(a.dst)
	return target
}

// addTargets adds the addresses of the targets of records. Targets in no zone, and aliases, have none here. They are optional: it
// stops if there is no room, or if they need too many records.
func (a *answer) addTargets(list []*record) {
	start, isLower := len(a.dst), false
	for _, r := range list {
		end, count := len(a.dst), a.counts[sectionAdditional]
		lower, ok := a.addTarget(r)
		isLower = isLower || lower
		if !ok {
			a.dst, a.counts[sectionAdditional] = a.dst[:end], count
			break
		}
	}
	for at := start; isLower && at < len(a.dst); {
		a.lowerTTL(at)
		fixed := a.fixedAt(at)
		at = fixed + fixedLen + int(binary.BigEndian.Uint16(a.dst[fixed+fixedLen-2:]))
	}
}

// addTarget adds the addresses of the target of a record. lower: one has a lower TTL than earlier records of its set. ok is false if
// they do not all fit, or need too many records.
func (a *answer) addTarget(r *record) (lower, ok bool) {
	at := len(a.dst)
	a.dst = r.appendTarget(a.dst)
	owner := a.nameOffset(at)
	a.room = append(a.room[:0], a.dst[at:]...)
	a.dst = a.dst[:at]
	if r.addr.IsValid() {
		return a.addAddress(owner, r)
	}
	z := a.source.zoneOf(a.room)
	if z == nil {
		return false, true
	}
	own, below := a.own, a.below
	a.own, a.below = a.extraOwn, a.extraBelow
	list := a.readAddresses(z, pathOf(a.room), false)
	a.extraOwn, a.extraBelow, a.own, a.below = a.own, a.below, own, below
	if a.budget < 0 {
		return false, false
	}
	for _, other := range list {
		if !other.addr.IsValid() {
			continue
		}
		isLower, fits := a.addAddress(owner, other)
		if lower = lower || isLower; !fits {
			return lower, false
		}
	}
	return lower, true
}

// addAddress is addTarget for one address of the owner at an offset in the message.
func (a *answer) addAddress(owner int, r *record) (lower, ok bool) {
	rrtype := wire.TypeAAAA
	if r.addr.Is4() {
		rrtype = wire.TypeA
	}
	record := a.beginRecord(owner, rrtype, r.TTL)
	a.dst = r.appendAddress(a.dst)
	if a.offset() <= a.limit {
		lower = a.lowerTTL(record)
	}
	return lower, a.endRecord(record, sectionAdditional)
}

// addSOA adds the SOA record of the zone. Its serial is the revision of the records.
func (a *answer) addSOA(section int) {
	zone := a.at + len(a.name) - len(a.zone.wire)
	pointer := func() { a.dst = append(a.dst, 0xc0|byte(zone>>8), byte(zone)) }
	record := a.beginRecord(zone, wire.TypeSOA, soaTTL)
	a.dst = append(a.dst, "\x02ns\x03dns"...)
	pointer()
	a.dst = append(a.dst, "\x0ahostmaster"...)
	pointer()
	for _, v := range []uint32{uint32(a.records.Revision.Load()), 7200, 1800, 86400, soaTTL} {
		a.dst = binary.BigEndian.AppendUint32(a.dst, v)
	}
	a.endRecord(record, section)
}

// appendText appends the labels of a name with dots between them.
func appendText(dst, name []byte) []byte {
	for off := 0; name[off] != 0; off += 1 + int(name[off]) {
		if off > 0 {
			dst = append(dst, '.')
		}
		dst = append(dst, name[off+1:off+1+int(name[off])]...)
	}
	return dst
}
