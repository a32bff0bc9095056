// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/tools/txtar"

	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// A replayRun plays a replay against an agent. The goroutine of the test alone decides what upstreams answer: a query waits until
// the replay has an answer for it, as in unbound's testcode/fake_event.c.
type replayRun struct {
	*scenarioRun
	r           *replay
	wantsDO     bool          // of all queries: see hasDO
	ended       chan struct{} // no upstream answers any more
	clients     []*replayClient
	differences []string

	mu      sync.Mutex // guards the fields below
	pending []*outQuery
	servers map[string]delegation // of a zone
}

// A replayClient is a query of a client whose reply has not been checked.
type replayClient struct {
	query  *dns.Msg
	answer chan reply
}

// A delegation is what a referral has told of a zone.
type delegation struct {
	server string
	until  time.Time
}

// An outQuery is one of the agent, which waits for an answer.
type outQuery struct {
	to      string // address
	network string
	msg     *dns.Msg
	answer  chan *dns.Msg
}

// The longest time that a step waits for an event: a query of a client takes no longer.
const stepLimit = 10 * time.Second

// playReplay returns each difference between what a replay expects and what the agent does, as `STEP: what`.
func playReplay(t *testing.T, r *replay, m *mapped) []string {
	t.Helper()
	text, err := m.yaml()
	if err != nil {
		t.Fatal(err)
	}
	archive := &txtar.Archive{Files: []txtar.File{{Name: "config", Data: []byte(text)}}}
	p := &replayRun{
		scenarioRun: newScenarioRun(t, archive, t.TempDir(), synctest.Wait),
		r:           r, wantsDO: r.hasDO(), ended: make(chan struct{}), servers: map[string]delegation{},
	}
	cfg, err := p.config("config")
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, route := range m.routes {
		for _, to := range route.to {
			p.network[netip.AddrPortFrom(netip.MustParseAddr(to), 53)] = upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
				return upstreamtest.Action{Raw: []upstreamtest.Raw{func([]byte) []byte { return p.answer(to, route.follows, q) }}}
			})
		}
	}
	p.start(cfg)
	for i := range r.steps {
		p.step(&r.steps[i])
	}
	last := r.steps[len(r.steps)-1].number
	p.settleAt(&step{number: last})
	for _, c := range p.clients {
		select {
		case got := <-c.answer:
			p.differ(last, "a reply more: %s", describe(got.msg))
		default:
			p.differ(last, "no reply for %s", c.query.Question[0].Name)
		}
	}
	p.end()
	close(p.ended)
	return p.differences
}

// hasDO reports whether a query has DO. Then all have: unbound itself asks with DO always, so that what it got for one client is
// the answer for all. An agent asks as its client does, and keeps both kinds of answers.
func (r *replay) hasDO() bool {
	return slices.ContainsFunc(r.steps, func(s step) bool {
		return s.event == "QUERY" && s.entry.msg.IsEdns0() != nil && s.entry.msg.IsEdns0().Do()
	})
}

func (p *replayRun) differ(number int, format string, args ...any) {
	p.differences = append(p.differences, fmt.Sprintf("%d: ", number)+fmt.Sprintf(format, args...))
}

// answer runs for each query of the agent, and waits.
func (p *replayRun) answer(to string, follows bool, q upstreamtest.Query) []byte {
	m := new(dns.Msg)
	if err := m.Unpack(q.Raw); err != nil {
		return nil
	}
	var r *dns.Msg
	switch {
	case q.Probe:
		r = new(dns.Msg).SetReply(m)
	case follows:
		r = p.iterate(to, q.Network, m)
	default:
		r = p.ask(to, q.Network, m)
	}
	if r == nil {
		return nil
	}
	r.Id = m.Id
	if m.IsEdns0() != nil && r.IsEdns0() == nil {
		r.SetEdns0(1232, m.IsEdns0().Do())
	}
	r.Compress = true
	out, err := r.Pack()
	if err != nil {
		p.t.Errorf("packing an answer: %v", err)
	}
	return out
}

// ask waits for the replay's answer to a query to one server. It returns nil after the end: a query without an answer.
func (p *replayRun) ask(to, network string, m *dns.Msg) *dns.Msg {
	q := &outQuery{to: to, network: network, msg: m, answer: make(chan *dns.Msg, 1)}
	p.mu.Lock()
	p.pending = append(p.pending, q)
	p.mu.Unlock()
	select {
	case r := <-q.answer:
		return r
	case <-p.ended:
		return nil
	}
}

// iterate asks the servers to which referrals lead, and follows aliases, as a recursive resolver upstream of an agent does.
func (p *replayRun) iterate(root, network string, m *dns.Msg) *dns.Msg {
	out := new(dns.Msg).SetReply(m)
	out.RecursionAvailable = true
	q := m.Copy()
	for range 20 {
		r := p.ask(p.closest(q.Question[0].Name, root), network, q.Copy())
		if r == nil {
			return nil
		}
		if p.referral(root, network, r) {
			continue
		}
		out.Answer, out.Ns, out.Extra, out.Rcode = append(out.Answer, r.Answer...), r.Ns, r.Extra, r.Rcode
		target := lastAlias(r.Answer, q.Question[0])
		if target == "" || r.Rcode != dns.RcodeSuccess {
			return out
		}
		q.Question[0].Name = target
	}
	return out.SetRcode(m, dns.RcodeServerFailure)
}

// closest returns the address of a server of the closest known zone.
func (p *replayRun) closest(name, root string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	best, at := 0, root
	for zone, d := range p.servers {
		if dns.IsSubDomain(zone, name) && len(zone) > best && time.Now().Before(d.until) {
			best, at = len(zone), d.server
		}
	}
	return at
}

// referral remembers the server that a message refers to, and reports whether there is one.
func (p *replayRun) referral(root, network string, r *dns.Msg) bool {
	if len(r.Answer) > 0 || r.Rcode != dns.RcodeSuccess || len(r.Ns) == 0 {
		return false
	}
	ns, ok := r.Ns[0].(*dns.NS)
	if !ok {
		return false
	}
	extra := r.Extra
	if len(withoutOPT(extra)) == 0 {
		if at := p.iterate(root, network, new(dns.Msg).SetQuestion(ns.Ns, dns.TypeA)); at != nil {
			extra = at.Answer
		}
	}
	for _, rr := range extra {
		if a, ok := rr.(*dns.A); ok && strings.EqualFold(a.Hdr.Name, ns.Ns) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.servers[strings.ToLower(ns.Hdr.Name)] = delegation{a.A.String(), time.Now().Add(time.Duration(ns.Hdr.Ttl) * time.Second)}
			return true
		}
	}
	return false
}

// lastAlias returns the name that answers lead to, if they have no record of it.
func lastAlias(answers []dns.RR, q dns.Question) string {
	name := q.Name
	for range answers {
		for _, rr := range answers {
			c, isAlias := rr.(*dns.CNAME)
			switch {
			case !strings.EqualFold(rr.Header().Name, name):
			case rr.Header().Rrtype == q.Qtype:
				return ""
			case isAlias:
				name = c.Target
			}
		}
	}
	if strings.EqualFold(name, q.Name) {
		return ""
	}
	return name
}

func (p *replayRun) step(s *step) {
	switch s.event {
	case "CHECK_ANSWER":
		p.checkAnswer(s)
		return
	case "CHECK_OUT_QUERY":
		if !p.until(s, func() bool { return p.take(s) }) {
			p.differ(s.number, "no such query to an upstream; waiting: %s", p.waitingQueries())
		}
		return
	}
	p.settleAt(s)
	switch s.event {
	case "QUERY":
		p.sendQuery(s)
	case "TIME_PASSES":
		time.Sleep(s.elapse)
	case "REPLY":
		if !p.until(s, func() bool { return p.give(s) }) {
			p.differ(s.number, "no query to answer")
		}
	case "TIMEOUT", "ERROR": // an agent learns of both by its own timer
		if !p.until(s, func() bool { return p.drop() }) {
			p.differ(s.number, "no query to leave without an answer")
		}
		time.Sleep(time.Second)
	}
}

// until waits until something has happened.
func (p *replayRun) until(s *step, happened func() bool) bool {
	for end := time.Now().Add(stepLimit); ; time.Sleep(10 * time.Millisecond) {
		p.wait()
		if happened() {
			return true
		}
		if p.settleAt(s); happened() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// settleAt answers the queries that the ranges of a step have an answer for.
func (p *replayRun) settleAt(s *step) {
	for again := true; again; {
		p.wait()
		again = false
		p.mu.Lock()
		for i, q := range p.pending {
			if e := p.rangeEntry(s.number, q); e != nil {
				p.pending = slices.Delete(p.pending, i, i+1)
				q.answer <- e.reply(q.msg)
				again = true
				break
			}
		}
		p.mu.Unlock()
	}
}

// rangeEntry returns the answer to a query at a step; nil: none.
func (p *replayRun) rangeEntry(number int, q *outQuery) *entry {
	for _, r := range p.r.ranges {
		if number < r.from || number > r.to || r.address != "" && r.address != q.to {
			continue
		}
		for i := range r.entries {
			if r.entries[i].matchesQuery(q) {
				return &r.entries[i]
			}
		}
	}
	return nil
}

// take looks for the query to an upstream that a step expects, and answers it if the step has the answer too.
func (p *replayRun) take(s *step) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, q := range p.pending {
		if s.address != "" && s.address != q.to || !s.entry.matchesQuery(q) {
			continue
		}
		if slices.Contains(s.entry.adjust, "copy_id") {
			p.pending = slices.Delete(p.pending, i, i+1)
			q.answer <- s.entry.reply(q.msg)
		}
		return true
	}
	return false
}

// give answers the newest query to an upstream.
func (p *replayRun) give(s *step) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range slices.Backward(p.pending) {
		q := p.pending[i]
		if !s.entry.matchesQuery(q) && i > 0 {
			continue
		}
		p.pending = slices.Delete(p.pending, i, i+1)
		q.answer <- s.entry.reply(q.msg)
		return true
	}
	return false
}

// drop leaves the newest query to an upstream without an answer.
func (p *replayRun) drop() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.pending) == 0 {
		return false
	}
	p.pending = p.pending[:len(p.pending)-1]
	return true
}

func (p *replayRun) waitingQueries() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for _, q := range p.pending {
		names = append(names, q.to+" "+q.msg.Question[0].Name+" "+dns.TypeToString[q.msg.Question[0].Qtype])
	}
	return strings.Join(names, ", ")
}

// reply makes the answer to a query.
func (e *entry) reply(q *dns.Msg) *dns.Msg {
	r := e.msg.Copy()
	r.Id = q.Id
	if slices.Contains(e.adjust, "copy_query") {
		r.Question = q.Question
	}
	return r
}

func (e *entry) matchesQuery(q *outQuery) bool {
	want, got := dns.Question{}, q.msg.Question[0]
	if len(e.msg.Question) > 0 {
		want = e.msg.Question[0]
	}
	for _, word := range e.match {
		ok := true
		switch word {
		case "opcode":
			ok = e.msg.Opcode == q.msg.Opcode
		case "qtype":
			ok = want.Qtype == got.Qtype
		case "qname":
			ok = strings.EqualFold(want.Name, got.Name)
		case "question":
			ok = want.Qtype == got.Qtype && strings.EqualFold(want.Name, got.Name)
		case "subdomain":
			ok = dns.IsSubDomain(want.Name, got.Name)
		case "UDP", "TCP":
			ok = strings.EqualFold(word, q.network)
		}
		if !ok {
			return false
		}
	}
	return true
}

func (p *replayRun) sendQuery(s *step) {
	m := s.entry.msg.Copy()
	m.Id = dns.Id()
	if p.wantsDO && m.IsEdns0() == nil {
		m.SetEdns0(1232, true)
	}
	f := flags{from: "127.0.0.1", tcp: slices.Contains(s.entry.match, "TCP")}
	if s.address != "" {
		f.from = s.address
	}
	pkt, err := m.Pack()
	if err != nil {
		p.t.Fatalf("step %d: %v", s.number, err)
	}
	p.clients = append(p.clients, &replayClient{m, send(p.worker, pkt, f)})
}

// checkAnswer compares the next reply to any client, but one that an agent gives and unbound does not.
func (p *replayRun) checkAnswer(s *step) {
	var got reply
	arrived := p.until(s, func() bool {
		for i, c := range p.clients {
			if !sameQuestion(s.entry.msg, c.query) {
				continue
			}
			select {
			case got = <-c.answer:
				p.clients = slices.Delete(p.clients, i, i+1)
				return true
			default:
			}
		}
		return false
	})
	switch {
	case !arrived:
		p.clients = nil
		p.differ(s.number, "no reply; upstreams have not answered %s", p.waitingQueries())
	case got.msg == nil:
		p.differ(s.number, "the query is dropped")
	default:
		if err := s.entry.compare(got.msg); err != nil {
			p.differ(s.number, "%v", err)
		}
	}
}

// compare says what of a reply is not as the entry says. Rcode and answers are compared in any case. Replies of an agent have no
// records that were not asked for, so other sections are compared only in the SOA record of a denial.
func (e *entry) compare(got *dns.Msg) error {
	all := slices.Contains(e.match, "all")
	withTTL := slices.Contains(e.match, "ttl")
	errs := []error{same("rcode", dns.RcodeToString[e.msg.Rcode], rcodeName(got))}
	errs = append(errs, same("answers", records(e.msg.Answer, withTTL), records(got.Answer, withTTL)))
	if all {
		errs = append(errs,
			same("flags", flagsOf(e.msg), flagsOf(got)),
			same("question", strings.ToLower(fmt.Sprint(e.msg.Question)), strings.ToLower(fmt.Sprint(got.Question))),
			same("SOA", records(soas(e.msg.Ns), withTTL), records(soas(got.Ns), withTTL)))
	}
	if want := e.msg.IsEdns0(); all && want != nil {
		opt := got.IsEdns0()
		errs = append(errs, same("OPT and DO", fmt.Sprint(true, want.Do()), fmt.Sprint(opt != nil, opt != nil && opt.Do())))
	}
	for _, word := range e.match {
		if code, ok := strings.CutPrefix(word, "ede="); ok {
			errs = append(errs, same("EDE", code, ede(got)))
		}
	}
	return errors.Join(errs...)
}

func sameQuestion(a, b *dns.Msg) bool {
	return a.Question[0].Qtype == b.Question[0].Qtype && strings.EqualFold(a.Question[0].Name, b.Question[0].Name)
}

func same(what, want, got string) error {
	if want == got {
		return nil
	}
	return fmt.Errorf("%s %s, not %s", what, got, want)
}

func soas(section []dns.RR) []dns.RR {
	return slices.DeleteFunc(slices.Clone(section), func(rr dns.RR) bool { return rr.Header().Rrtype != dns.TypeSOA })
}

// records returns a section as text, in an order of its own.
func records(section []dns.RR, withTTL bool) string {
	list := []string{}
	for _, rr := range section {
		rr := dns.Copy(rr)
		if !withTTL {
			rr.Header().Ttl = 0
		}
		list = append(list, strings.ToLower(strings.Join(strings.Fields(rr.String()), " ")))
	}
	slices.Sort(list)
	return "[" + strings.Join(list, ", ") + "]"
}

func describe(m *dns.Msg) string {
	if m == nil {
		return "none"
	}
	return rcodeName(m) + " " + records(m.Answer, true)
}
