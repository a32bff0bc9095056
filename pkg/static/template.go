// SPDX-License-Identifier: Apache-2.0

package static

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A Template answers questions by records that are made of them.
type Template struct {
	Zone  string   // the names at and below it; with the dot at its end
	Types []uint16 // of the questions; empty: every one
	Match []string // regular expressions on the name, in lower case and with its dot at the end; one must match; empty: every name does
	Rcode int      // 0 to 15

	Answer, Authority, Additional []Record
}

// A Record makes a record for a question. It returns nil to leave the record out.
type Record func(*Question) (dns.RR, error)

// A Question is what the actions of a template see.
type Question struct {
	Name  string            // that is asked for: in lower case, with the dot at its end
	Zone  string            // of the template
	Type  string            // like AAAA
	Class string            // always IN
	Match []string          // what the expression matched, then its groups; without one the name
	Group map[string]string // the groups by number and, where they have one, by name
}

var errLong = errors.New("more than a message holds")

// An answering is a template as it is used.
type answering struct {
	Template
	zone  []byte // in wire form
	match []*regexp.Regexp
}

func newAnswering(t Template) (*answering, error) {
	a := &answering{Template: t, zone: []byte{0}}
	if t.Zone != "." {
		var ok bool
		if a.zone, ok = appendName(nil, t.Zone); !ok {
			return nil, fmt.Errorf("%q is not a zone", t.Zone)
		}
	}
	if t.Rcode < 0 || t.Rcode > 15 {
		return nil, fmt.Errorf("there is no code %d", t.Rcode)
	}
	for _, text := range t.Match {
		re, err := regexp.Compile(text)
		if err != nil {
			return nil, fmt.Errorf("reading a regular expression: %w", err)
		}
		a.match = append(a.match, re)
	}
	return a, nil
}

// covers tells whether the template is for questions of this zone and type.
func (a *answering) covers(q *wire.Query) bool {
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

// fromTemplates answers q by the first template that fits it.
func (s *Static) fromTemplates(q *wire.Query, dst []byte) ([]byte, Result) {
	if !slices.ContainsFunc(s.templates, func(a *answering) bool { return a.covers(q) }) {
		return dst, Result{}
	}
	place := s.memos.place(q)
	m := place.Load()
	if m == nil || !m.of(q) {
		m = s.make(q)
		if len(m.msg) <= maxMemo {
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

// make makes the answer to q.
func (s *Static) make(q *wire.Query) *memo {
	m := &memo{name: string(q.Name()), rrtype: q.Type}
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
			s.log.Debug("a template has made no answer", "name", name, "type", question.Type, "err", err)
		}
		if m.target > 0 {
			m.verdict = Alias
		}
		return m
	}
	return m
}

// question is what the template's actions see of a name, if that fits it.
func (a *answering) question(name string, rrtype uint16) (*Question, bool) {
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

// answer is the message for a question. target is how many octets its end has that are
// the name of an alias whose answer is to follow; 0: it is the whole answer.
func (a *answering) answer(question *Question, q *wire.Query) (msg []byte, target int, err error) {
	m := &dns.Msg{
		MsgHdr:   dns.MsgHdr{Response: true, Authoritative: true, Rcode: a.Rcode},
		Compress: true,
		Question: []dns.Question{{Name: question.Name, Qtype: q.Type, Qclass: dns.ClassINET}},
	}
	for _, section := range []struct {
		to   *[]dns.RR
		from []Record
	}{{&m.Answer, a.Answer}, {&m.Ns, a.Authority}, {&m.Extra, a.Additional}} {
		if *section.to, err = records(section.from, question); err != nil {
			return nil, 0, err
		}
	}
	to := outside(m)
	m.Compress = to == ""
	if msg, err = m.Pack(); err != nil {
		return nil, 0, fmt.Errorf("packing the answer: %w", err)
	}
	if len(msg) > maxReply {
		return nil, 0, errLong
	}
	if to == "" {
		return msg, 0, nil
	}
	name, ok := appendName(nil, to)
	if !ok || string(msg[len(msg)-len(name):]) != string(name) {
		return msg, 0, nil // an odd target: the client may follow it
	}
	return msg, len(name), nil
}

// records makes records for a question.
func records(list []Record, question *Question) (made []dns.RR, err error) {
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

// outside is the target of the alias that an answer ends with, empty if it ends
// otherwise. It is in lower case then.
func outside(m *dns.Msg) string {
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
