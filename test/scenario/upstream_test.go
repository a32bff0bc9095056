// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// An answerer makes the reply to a query; nil: the query cannot be read.
type answerer func(q *dns.Msg) *dns.Msg

func (s *scenarioRun) upstream(args []string) error {
	addr, err := netip.ParseAddrPort(args[0])
	if err != nil {
		return err
	}
	var script upstreamtest.Script
	var o answerOptions
	options := args[2:]
	switch args[1] {
	case "refused":
		o.closed = "all"
		script = upstreamtest.By(upstreamtest.Always(upstreamtest.Action{Drop: true}), upstreamtest.Always(upstreamtest.Action{Close: true}))
	case "silent":
		script = upstreamtest.Always(upstreamtest.Action{Drop: true})
	case "garbage":
		script = raw(0, func([]byte) []byte { return []byte("no message") })
	case "loop":
		script = raw(0, func(q []byte) []byte { return (<-send(s.agent.NewWorker(), q, flags{from: "10.0.0.53"})).raw })
	case "rcode":
		o.answer = func(q *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(q, dns.StringToRcode[args[2]]) }
		options = args[3:]
	case "answer":
		o.answer, err = message(s.files[args[2]])
		options = args[3:]
	case "zone":
		o.answer, err = zone(s.files[args[2]])
		options = args[3:]
	default:
		err = fmt.Errorf("no such upstream: %s", args[1])
	}
	if err == nil {
		err = o.parse(options)
	}
	if err != nil {
		return err
	}
	if script == nil {
		script = o.script
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed[addr] = o.closed
	server := s.network[addr]
	if server == nil {
		server = upstreamtest.New(script)
		s.network[addr] = server
		s.queriesSeen[addr] = map[string]int{}
	}
	server.SetScript(script)
	if o.cert != "" {
		server.Secure(s.authority.Issue(s.t, time.Now().Add(24*time.Hour), o.cert))
	}
	return nil
}

func raw(delay time.Duration, messages ...upstreamtest.Raw) upstreamtest.Script {
	return upstreamtest.Always(upstreamtest.Action{Delay: delay, Raw: messages})
}

// answerOptions are the options of an upstream's answers.
type answerOptions struct {
	answer            answerer
	delay             time.Duration
	tc, tcEmpty       bool
	closed            string // as scenarioRun.closed
	noOPT             bool
	ad, aa, lowerCase bool
	upper             string // rcode for names that are not in lower case; empty: they are answered
	uncompressed      bool
	noRA              bool
	noEDNS            int // rcode for queries with an OPT record; 0: answered
	maxSize           int // 0: any
	refuse            uint16
	silent            string // a type, or a name and the names below it; empty: none
	cert              string
	ignore            atomic.Int64
	before, instead   upstreamtest.Raw
}

func (o *answerOptions) parse(words []string) error {
	switches := map[string]*bool{
		"tc": &o.tc, "tc-empty": &o.tcEmpty, "no-opt": &o.noOPT, "ad": &o.ad, "aa": &o.aa, "lower-case": &o.lowerCase,
		"uncompressed": &o.uncompressed, "no-ra": &o.noRA,
	}
	for _, word := range words {
		if on, ok := switches[word]; ok {
			*on = true
			continue
		}
		key, value, _ := strings.Cut(word, "=")
		var err error
		switch key {
		case "no-tcp":
			o.closed = "tcp"
		case "no-edns":
			o.noEDNS = dns.StringToRcode[value]
		case "upper":
			o.upper = value
		case "max-size":
			o.maxSize, err = strconv.Atoi(value)
		case "refuse":
			o.refuse = dns.StringToType[value]
		case "silent":
			o.silent = value
		case "ignore":
			var n int64
			n, err = strconv.ParseInt(value, 10, 64)
			o.ignore.Store(n)
		case "before":
			o.before, err = shape(value)
		case "instead":
			o.instead, err = shape(value)
		case "cert":
			o.cert = value
		default:
			o.delay, err = time.ParseDuration(word)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// shape returns a bad message by its name.
func shape(name string) (upstreamtest.Raw, error) {
	for _, s := range upstreamtest.BadShapes() {
		if strings.ReplaceAll(s.Name, " ", "-") == name {
			return s.Make, nil
		}
	}
	return nil, fmt.Errorf("no such shape: %s", name)
}

// script implements [upstreamtest.Script].
func (o *answerOptions) script(q upstreamtest.Query) upstreamtest.Action {
	var m dns.Msg
	if m.Unpack(q.Raw) != nil || !q.Probe && o.ignore.Add(-1) >= 0 {
		return upstreamtest.Action{Drop: true}
	}
	if !q.Probe && o.silent != "" && (dns.TypeToString[q.Type] == o.silent || dns.IsSubDomain(dns.Fqdn(o.silent), strings.ToLower(q.Name))) {
		return upstreamtest.Action{Drop: true}
	}
	opt := m.IsEdns0()
	r := o.answer(&m)
	r.RecursionAvailable = !o.noRA
	r.AuthenticatedData = r.AuthenticatedData || o.ad
	r.Authoritative = r.Authoritative || o.aa
	switch {
	case opt != nil && o.noEDNS != 0:
		r = new(dns.Msg).SetRcode(&m, o.noEDNS)
		opt = nil
	case opt != nil && o.maxSize != 0 && int(opt.UDPSize()) > o.maxSize:
		return upstreamtest.Action{Drop: true}
	case o.upper != "" && m.Question[0].Name != q.Name:
		r = new(dns.Msg).SetRcode(&m, dns.StringToRcode[o.upper])
	case o.refuse != 0 && q.Type == o.refuse:
		r = new(dns.Msg).SetRcode(&m, dns.RcodeRefused)
	case q.Network == "udp" && o.tc, o.tcEmpty:
		r.Truncated, r.Answer, r.Ns, r.Extra = true, nil, nil, nil
	}
	if o.lowerCase {
		r.Question[0].Name = strings.ToLower(r.Question[0].Name)
	}
	if opt != nil && !o.noOPT && r.IsEdns0() == nil {
		r.SetEdns0(dns.DefaultMsgSize, opt.Do())
	}
	if r.Compress = !o.uncompressed; o.uncompressed {
		ownLetters(r, m.Question[0].Name)
	}
	out, err := r.Pack()
	if err != nil {
		panic(err)
	}
	a := upstreamtest.Action{Delay: o.delay, Raw: []upstreamtest.Raw{func([]byte) []byte { return out }}}
	if o.instead != nil {
		a.Raw = []upstreamtest.Raw{o.instead}
	}
	if o.before != nil {
		a.Raw = slices.Insert(a.Raw, 0, o.before)
	}
	return a
}

// ownLetters gives the owners of records that answer the question its letters, as servers do that copy the name they were asked.
func ownLetters(r *dns.Msg, name string) {
	for i, rr := range r.Answer {
		if strings.EqualFold(rr.Header().Name, name) {
			r.Answer[i] = dns.Copy(rr)
			r.Answer[i].Header().Name = name
		}
	}
}

// message answers every query with the same records, whatever they belong to.
func message(text string) (answerer, error) {
	var r dns.Msg
	section := &r.Answer
	question := dns.Question{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if words[0] != ";;" {
			rr, err := dns.NewRR(line)
			if err != nil {
				return nil, err
			}
			*section = append(*section, rr)
			continue
		}
		switch words[1] {
		case "answer":
			section = &r.Answer
		case "authority":
			section = &r.Ns
		case "additional":
			section = &r.Extra
		case "rcode":
			r.Rcode = dns.StringToRcode[words[2]]
		case "flags":
			r.Authoritative = slices.Contains(words, "aa")
			r.Truncated = slices.Contains(words, "tc")
		case "question":
			question = dns.Question{Name: words[2], Qtype: dns.StringToType[words[3]], Qclass: dns.ClassINET}
		default:
			return nil, fmt.Errorf("no such directive: %s", line)
		}
	}
	return func(q *dns.Msg) *dns.Msg {
		m := r.Copy()
		rcode := m.Rcode
		m.SetReply(q)
		m.Rcode, m.Authoritative, m.Truncated = rcode, r.Authoritative, r.Truncated
		if question.Name != "" {
			m.Question[0] = question
		}
		return m
	}, nil
}

// zone answers from records in zone file notation, as an authoritative server
// does: with the zone's SOA, if it has one, in denials.
func zone(text string) (answerer, error) {
	var records []dns.RR
	parser := dns.NewZoneParser(strings.NewReader(text), ".", "")
	for rr, ok := parser.Next(); ok; rr, ok = parser.Next() {
		records = append(records, rr)
	}
	return func(q *dns.Msg) *dns.Msg {
		r := new(dns.Msg).SetReply(q)
		if q.Question[0].Name == "." && q.Question[0].Qtype == dns.TypeNS {
			return r // a probe
		}
		exists, found := follow(records, q.Question[0].Name, q.Question[0].Qtype, r)
		if found {
			return r
		}
		if !exists {
			r.Rcode = dns.RcodeNameError
		}
		for _, rr := range records {
			if rr.Header().Rrtype == dns.TypeSOA {
				r.Ns = append(r.Ns, rr)
			}
		}
		return r
	}, parser.Err()
}

// follow adds the records of a name and type to the answer, with the aliases on the way, and reports whether the last name
// has records at all, and of the type.
func follow(records []dns.RR, name string, qtype uint16, r *dns.Msg) (exists, found bool) {
	alias := ""
	for _, rr := range records {
		if !strings.EqualFold(rr.Header().Name, name) {
			continue
		}
		exists = true
		c, isAlias := rr.(*dns.CNAME)
		if rr.Header().Rrtype == qtype || isAlias {
			r.Answer = append(r.Answer, rr)
		}
		found = found || rr.Header().Rrtype == qtype
		if isAlias {
			alias = c.Target
		}
	}
	if alias != "" && !found && len(r.Answer) < 32 {
		return follow(records, alias, qtype, r)
	}
	return exists, found
}
