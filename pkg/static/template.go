// SPDX-License-Identifier: Apache-2.0

package static

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"regexp"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A Template generates the answers to questions that match it.
type Template struct {
	Zone  string   // matches names at and below it; with the trailing dot
	Types []uint16 // query types; empty: all
	Match []string // regular expressions on the lower-case name with its trailing dot; one must match; empty: all names match
	Rcode int      // 0 to 15

	Answer, Authority, Additional []Record
}

// A Record generates a record for a question. It returns nil to omit the record.
type Record func(*Question) (dns.RR, error)

// A Question is the input of a template's actions.
type Question struct {
	Name  string            // query name in lower case, with the trailing dot
	Zone  string            // of the template
	Type  string            // such as AAAA
	Class string            // always IN
	Match []string          // what the expression matched, then its groups; without one the name
	Group map[string]string // the groups by number and, where they have one, by name
}

var errTooLarge = errors.New("answer exceeds the maximum message size")

// A compiledTemplate is a Template ready for use.
type compiledTemplate struct {
	Template
	zone  []byte // in wire form
	match []*regexp.Regexp
}

func compileTemplate(t Template) (*compiledTemplate, error) {
	a := &compiledTemplate{Template: t, zone: []byte{0}}
	if t.Zone != "." {
		var ok bool
		if a.zone, ok = appendName(nil, t.Zone); !ok {
			return nil, fmt.Errorf("zone %q is not a domain name", t.Zone)
		}
	}
	if t.Rcode < 0 || t.Rcode > 15 {
		return nil, fmt.Errorf("rcode %d is out of range 0 to 15", t.Rcode)
	}
	for _, text := range t.Match {
		re, err := regexp.Compile(text)
		if err != nil {
			return nil, fmt.Errorf("compiling a regular expression: %w", err)
		}
		a.match = append(a.match, re)
	}
	return a, nil
}

// covers reports whether q's name and type are those of the template.
func (a *compiledTemplate) covers(q *wire.Query) bool {
	if len(a.Types) > 0 && !slices.Contains(a.Types, q.Type) {
		return false
	}
	name := q.Name()
	at := len(name) - len(a.zone)
	if at < 0 || string(name[at:]) != string(a.zone) {
		return false
	}
	off := 0
	for off < at {
		off += 1 + int(name[off])
	}
	return off == at
}

// answerFromTemplates answers q by the first template that matches it.
func (s *Static) answerFromTemplates(q *wire.Query, dst []byte) ([]byte, Result) {
	if !slices.ContainsFunc(s.templates, func(a *compiledTemplate) bool { return a.covers(q) }) {
		return dst, Result{}
	}
	place := s.answerCache.slot(q)
	m := place.Load()
	if m == nil || !m.matches(q) {
		m = s.evaluate(q)
		if len(m.msg) <= maxCachedAnswer {
			place.Store(m)
		}
	}
	if m.verdict == Failed {
		s.failures.Add(1)
	}
	start := len(dst)
	dst = append(dst, m.msg...)
	return dst, Result{Verdict: m.verdict, Target: dst[start+len(m.msg)-m.target:]}
}

// evaluate generates the answer to q.
func (s *Static) evaluate(q *wire.Query) *cachedAnswer {
	m := &cachedAnswer{name: string(q.Name()), rrtype: q.Type}
	name, _, err := dns.UnpackDomainName(q.Name(), 0)
	if err != nil {
		return m
	}
	for _, a := range s.templates {
		if !a.covers(q) {
			continue
		}
		question, ok := a.question(name, q.Type)
		if !ok {
			continue
		}
		m.verdict = Answered
		if m.msg, m.target, err = a.answer(question, q); err != nil {
			m.msg, m.target, m.verdict = nil, 0, Failed
			s.log.Debug("template failed", "name", name, "type", question.Type, "err", err)
		}
		if m.target > 0 {
			m.verdict = Alias
		}
		return m
	}
	return m
}

// question returns the input for the template's actions. It returns false if no expression matches the
// name.
func (a *compiledTemplate) question(name string, rrtype uint16) (*Question, bool) {
	q := &Question{Name: name, Zone: a.Zone, Type: dns.Type(rrtype).String(), Class: "IN", Group: map[string]string{}}
	if len(a.match) == 0 {
		q.Match, q.Group["0"] = []string{name}, name
		return q, true
	}
	for _, re := range a.match {
		groups := re.FindStringSubmatch(name)
		if groups == nil {
			continue
		}
		q.Match = groups
		for i, label := range re.SubexpNames() {
			q.Group[strconv.Itoa(i)] = groups[i]
			if label != "" {
				q.Group[label] = groups[i]
			}
		}
		return q, true
	}
	return nil, false
}

// answer returns the message for a question. If it ends with a CNAME record to resolve, target is the
// length of that name at its end; otherwise target is 0.
func (a *compiledTemplate) answer(question *Question, q *wire.Query) (msg []byte, target int, err error) {
	m := &dns.Msg{
		MsgHdr:   dns.MsgHdr{Response: true, Authoritative: true, Rcode: a.Rcode},
		Compress: true,
		Question: []dns.Question{{Name: question.Name, Qtype: q.Type, Qclass: dns.ClassINET}},
	}
	for _, section := range []struct {
		to   *[]dns.RR
		from []Record
	}{{&m.Answer, a.Answer}, {&m.Ns, a.Authority}, {&m.Extra, a.Additional}} {
		if *section.to, err = makeRecords(section.from, question); err != nil {
			return nil, 0, err
		}
	}
	to := aliasTarget(m)
	m.Compress = to == ""
	if msg, err = m.Pack(); err != nil {
		return nil, 0, fmt.Errorf("packing the answer: %w", err)
	}
	if len(msg) > maxReply {
		return nil, 0, errTooLarge
	}
	if to == "" {
		return msg, 0, nil
	}
	name, ok := appendName(nil, to)
	if !ok || string(msg[len(msg)-len(name):]) != string(name) {
		return msg, 0, nil // unusual target: the client may resolve it
	}
	return msg, len(name), nil
}

// makeRecords generates the records of one section.
func makeRecords(list []Record, question *Question) (made []dns.RR, err error) {
	for _, record := range list {
		rr, err := record(question)
		if err != nil {
			return nil, err
		}
		if rr != nil {
			made = append(made, rr)
		}
	}
	return made, nil
}

// aliasTarget returns the target of the CNAME record that the answer ends with, and converts it to
// lower case. It returns "" if the answer ends otherwise.
func aliasTarget(m *dns.Msg) string {
	if m.Rcode != dns.RcodeSuccess || len(m.Answer) == 0 || len(m.Ns)+len(m.Extra) > 0 || m.Question[0].Qtype == dns.TypeCNAME {
		return ""
	}
	alias, ok := m.Answer[len(m.Answer)-1].(*dns.CNAME)
	if !ok {
		return ""
	}
	alias.Target = dns.CanonicalName(alias.Target)
	return alias.Target
}

const (
	answerCacheSlots = 1024
	maxCachedAnswer  = 1024 // bytes
)

// An answerCache holds recent answers of templates, one per slot. Evaluating a template costs as much
// as fifty cache hits. A cached answer takes little more memory than maxCachedAnswer.
type answerCache struct {
	seed  maphash.Seed
	slots [answerCacheSlots]atomic.Pointer[cachedAnswer]
}

// A cachedAnswer is the immutable result for one question.
type cachedAnswer struct {
	name    string // canonical
	rrtype  uint16
	verdict Verdict
	msg     []byte
	target  int // with Alias: length of the external name that msg ends with
}

func (m *answerCache) init() { m.seed = maphash.MakeSeed() }

// slot returns the slot of q's question.
func (m *answerCache) slot(q *wire.Query) *atomic.Pointer[cachedAnswer] {
	key := q.Key()[:len(q.Name())+2] // name and type only
	return &m.slots[maphash.Bytes(m.seed, key)%answerCacheSlots]
}

// matches reports whether m is the result for q's question.
func (m *cachedAnswer) matches(q *wire.Query) bool {
	key := q.Key()
	n := len(q.Name())
	return string(key[:n]) == m.name && binary.BigEndian.Uint16(key[n:]) == m.rrtype
}
