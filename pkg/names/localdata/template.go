// SPDX-License-Identifier: Apache-2.0

package localdata

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"regexp"
	"slices"
	"strconv"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A Template generates the answers to questions that match it.
type Template struct {
	Zone  string   // matches names at and below it; with the trailing dot
	Types []uint16 // query types; empty: all
	Match []string // regular expressions on the lower-case name with its trailing dot; one must match; empty: all names match
	Rcode int      // 0 to 15

	// Each function generates a record for a question. It returns nil to omit the record.
	Answer, Authority, Additional []func(*Question) (dns.RR, error)

	zone  []byte // in wire form
	match []*regexp.Regexp
}

// A Question is the input of a template's functions.
type Question struct {
	Name  string            // query name in lower case, with the trailing dot
	Zone  string            // zone of the template
	Type  string            // such as AAAA
	Class string            // always IN
	Match []string          // what the expression matched, then its groups; without an expression, the name
	Group map[string]string // the groups by number and, where they have one, by name
}

var errTooLarge = errors.New("answer exceeds the maximum message size")

// compile prepares the template for use.
func (a *Template) compile() error {
	var err error
	if a.zone, err = wire.AppendName(nil, a.Zone); err != nil {
		return fmt.Errorf("zone %q: %w", a.Zone, err)
	}
	if a.Rcode < 0 || a.Rcode > 15 {
		return fmt.Errorf("rcode %d is out of range 0 to 15", a.Rcode)
	}
	a.match = nil
	for _, text := range a.Match {
		re, err := regexp.Compile(text)
		if err != nil {
			return fmt.Errorf("compiling a regular expression: %w", err)
		}
		a.match = append(a.match, re)
	}
	return nil
}

// covers reports whether q's name and type are those of the template.
func (a *Template) covers(q *wire.Query) bool {
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
func (d *Data) answerFromTemplates(q *wire.Query, dst []byte) (_ []byte, verdict Verdict, target []byte) {
	first := 0
	for first < len(d.templates) && !d.templates[first].covers(q) {
		first++
	}
	if first == len(d.templates) {
		return dst, None, nil
	}
	m := d.evaluated(q, first)
	if m.verdict == Failed {
		d.failures.Add(1)
	}
	start := len(dst)
	dst = append(dst, m.msg...)
	return dst, m.verdict, dst[start+len(m.msg)-m.target:]
}

// evaluated returns the answer to q, evaluated before or now. Templates before first do not cover q.
func (d *Data) evaluated(q *wire.Query, first int) *cachedAnswer {
	key := q.Key()[:len(q.Name())+2] // name and type, without the DO and CD bits
	place := &d.answers[maphash.Bytes(d.seed, key)%answerCacheSlots]
	m := place.Load()
	if m == nil || !m.matches(q) {
		m = d.evaluate(q, first)
		if len(m.msg) <= maxCachedAnswer {
			place.Store(m)
		}
	}
	return m
}

// evaluate generates the answer to q by the first template that matches it, from first on.
func (d *Data) evaluate(q *wire.Query, first int) *cachedAnswer {
	m := &cachedAnswer{name: string(q.Name()), rrtype: q.Type}
	name, _, err := dns.UnpackDomainName(q.Name(), 0)
	if err != nil {
		return m
	}
	for i := first; i < len(d.templates); i++ {
		a := &d.templates[i]
		if !a.covers(q) {
			continue
		}
		question, ok := a.question(name, q.Type)
		if !ok {
			continue
		}
		m.verdict, m.template = Answered, i
		if m.msg, m.target, err = a.answer(question, q); err != nil {
			m.msg, m.target, m.verdict = nil, 0, Failed
			d.log.Debug("template failed", "name", name, "type", question.Type, "err", err)
		}
		if m.target > 0 {
			m.verdict = Alias
		}
		return m
	}
	return m
}

// question returns the input for the template's functions. It returns false if no expression matches the name.
func (a *Template) question(name string, rrtype uint16) (*Question, bool) {
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

// answer returns the message for a question. If it ends with a CNAME record whose target the caller must resolve, target is the
// length of that name in bytes; otherwise target is 0.
func (a *Template) answer(question *Question, q *wire.Query) (msg []byte, target int, err error) {
	m := &dns.Msg{
		MsgHdr:   dns.MsgHdr{Response: true, Authoritative: true, Rcode: a.Rcode},
		Compress: true,
		Question: []dns.Question{{Name: question.Name, Qtype: q.Type, Qclass: dns.ClassINET}},
	}
	for _, section := range []struct {
		to   *[]dns.RR
		from []func(*Question) (dns.RR, error)
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
	// If the message does not end with the target in this form, the client must resolve the target itself.
	if name, err := wire.AppendName(nil, to); err == nil && bytes.HasSuffix(msg, name) {
		return msg, len(name), nil
	}
	return msg, 0, nil
}

// makeRecords generates the records of one section.
func makeRecords(list []func(*Question) (dns.RR, error), question *Question) (made []dns.RR, err error) {
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

// aliasTarget returns the target of the CNAME record that the answer section ends with, and converts it to lower case in m. It returns ""
// if there is no such record, the type asked for is CNAME, the rcode is an error, or another section has records.
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

// A cachedAnswer is the immutable result for one question.
type cachedAnswer struct {
	name     string // canonical
	rrtype   uint16
	verdict  Verdict
	msg      []byte
	template int // index of the template, unless verdict is None
	target   int // with Alias: length in bytes of the alias target that msg ends with
}

// matches reports whether m is the result for q's question.
func (c *cachedAnswer) matches(q *wire.Query) bool {
	key := q.Key()
	n := len(q.Name())
	return string(key[:n]) == c.name && binary.BigEndian.Uint16(key[n:]) == c.rrtype
}
