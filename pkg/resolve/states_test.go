// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A scriptedUpstream answers with records, with a failure, late or not at all.
type scriptedUpstream struct {
	tb testing.TB

	mu    sync.Mutex // guards all below
	mood  string
	asked int
}

func (u *scriptedUpstream) be(mood string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mood, u.asked = mood, 0
}

func (u *scriptedUpstream) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.asked
}

// Ask implements resolve.Asker.
func (u *scriptedUpstream) Ask(q []byte, until time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	u.mu.Lock()
	mood := u.mood
	u.asked++
	u.mu.Unlock()
	put := func(wait time.Duration, answer []byte, err error) {
		time.AfterFunc(wait, func() {
			var batch wire.SendBatch
			respond(to, answer, err, &batch)
			batch.Flush()
		})
	}
	switch mood {
	case "slow":
		put(300*time.Millisecond, u.answer(q, "good"), nil)
	case "silent":
		put(time.Until(until), nil, context.DeadlineExceeded)
	case "failing":
		to.Answered(nil, errors.New("refused"), batch)
	case "garbage":
		respond(to, []byte("garbage, and no message at all"), nil, batch)
	default:
		respond(to, u.answer(q, mood), nil, batch)
	}
}

func (u *scriptedUpstream) answer(q []byte, mood string) []byte {
	m := unpack(u.tb, q)
	r := new(dns.Msg).SetReply(m)
	r.Compress = true
	soa := "test. 20 IN SOA ns.test. host.test. 1 3600 600 86400 20"
	var answer, authority string
	switch mood {
	case "old":
		answer = m.Question[0].Name + " 100 IN A 192.0.2.1"
	case "good":
		answer = m.Question[0].Name + " 100 IN A 192.0.2.2"
	case "zero":
		answer = m.Question[0].Name + " 0 IN A 192.0.2.2"
	case "SERVFAIL":
		r.Rcode = dns.RcodeServerFailure
	case "NXDOMAIN":
		r.Rcode, authority = dns.RcodeNameError, soa
	case "NODATA":
		authority = soa
	case "NXDOMAIN without SOA":
		r.Rcode = dns.RcodeNameError
	default:
		u.tb.Errorf("no such mood: %q", mood)
	}
	for text, section := range map[string]*[]dns.RR{answer: &r.Answer, authority: &r.Ns} {
		if text == "" {
			continue
		}
		rr, err := dns.NewRR(text)
		if err != nil {
			u.tb.Error(err)
		}
		*section = append(*section, rr)
	}
	return pack(u.tb, r)
}

// A stateTest is a resolver with a scriptedUpstream and stale answers, in virtual time.
type stateTest struct {
	u *scriptedUpstream
	p *resolve.Plan
	r *resolve.Resolver
}

func newPlay(t *testing.T) *stateTest {
	t.Helper()
	u := &scriptedUpstream{tb: t, mood: "old"}
	p := plan(t, u)
	p.Cache.SetServeStale(cache.ServeStale{Window: time.Hour, TTL: 30 * time.Second})
	p.Cache.SetPrefetch(cache.Prefetch{Hits: 2, Remaining: 0.1})
	return &stateTest{u: u, p: p, r: newResolver(t, p)}
}

// query is a question with EDNS, so that Extended DNS Errors are seen.
func query(name string, rrtype uint16) *dns.Msg {
	m := question(name, rrtype)
	m.SetEdns0(1232, false)
	return m
}

// ask gives the reply in one line, with where it came from and how long it took.
func (s *stateTest) ask(t *testing.T, m *dns.Msg) string {
	t.Helper()
	before, start := s.r.Stats().Responses, time.Now()
	got := unpack(t, newClient(s.r, false).exchange(t, pack(t, m)))
	took := time.Since(start)
	source := "nowhere"
	after := s.r.Stats().Responses
	for i, name := range resolve.Sources() {
		if sum(after[i][:]) > sum(before[i][:]) {
			source = name
		}
	}
	return fmt.Sprintf("%s, %s after %s", say(got), source, took)
}

// held is what the cache gives for a question.
func (s *stateTest) held(t *testing.T, m *dns.Msg) string {
	t.Helper()
	var q wire.Query
	if q.Parse(pack(t, m)) != wire.RcodeSuccess {
		t.Fatal("the query cannot be read")
	}
	msg, state := s.p.Cache.Lookup(q.Key(), time.Now(), nil)
	name := [...]string{"absent", "fresh", "fresh", "failed", "late", "resting"}[state]
	if msg == nil {
		return name
	}
	return name + " " + say(unpack(t, msg))
}

// settle waits until nothing is under way.
func (s *stateTest) settle() {
	synctest.Wait()
	for s.r.Stats().Inflight > 0 {
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
	}
}

// prepare brings www.test. into a state of the cache.
func (s *stateTest) prepare(t *testing.T, state string) {
	t.Helper()
	m := query("www.test.", dns.TypeA)
	if state == "absent" {
		return
	}
	s.u.be("old")
	s.ask(t, m)
	switch state {
	case "fresh":
		time.Sleep(10 * time.Second)
	case "due":
		s.ask(t, m)
		time.Sleep(95 * time.Second)
	case "late":
		time.Sleep(110 * time.Second)
	case "resting":
		time.Sleep(110 * time.Second)
		s.u.be("SERVFAIL")
		s.ask(t, m)
		time.Sleep(500 * time.Millisecond)
	case "expired":
		time.Sleep(100*time.Second + time.Hour)
	default:
		t.Fatalf("no such state: %q", state)
	}
}

const (
	oldFresh   = "NOERROR | www.test. 90 192.0.2.1, cache after 0s"
	oldDue     = "NOERROR | www.test. 5 192.0.2.1, cache after 0s"
	oldLate    = "NOERROR | www.test. 30 192.0.2.1 ede=3, stale after 200ms"
	oldAtOnce  = "NOERROR | www.test. 30 192.0.2.1 ede=3, stale after 0s"
	newAtOnce  = "NOERROR | www.test. 100 192.0.2.2, upstream after 0s"
	newSlowly  = "NOERROR | www.test. 100 192.0.2.2, upstream after 300ms"
	denied     = "NXDOMAIN / test., upstream after 0s"
	noData     = "NOERROR / test., upstream after 0s"
	failedNow  = "SERVFAIL ede=22, failure after 0s"
	failedLate = "SERVFAIL ede=22, failure after 4s"

	heldNew     = "fresh NOERROR | www.test. 100 192.0.2.2"
	heldDenied  = "fresh NXDOMAIN / test."
	heldNoData  = "fresh NOERROR / test."
	heldResting = "resting NOERROR | www.test. 30 192.0.2.1"
)

// TestStateOfCacheByStateOfUpstream is the whole table of what a client gets: by what
// is held of the name and what upstream is like. A recovered upstream failed the query
// before, 1.1 s ago.
func TestStateOfCacheByStateOfUpstream(t *testing.T) {
	t.Parallel()
	type cell struct {
		reply string
		asked int    // queries upstream for it
		held  string // when they are over
	}
	// What is fresh is given, whatever upstream is like. What is due is, too, and upstream
	// is asked, which changes what is held if there is an answer. What rests is given.
	fresh := cell{oldFresh, 0, "fresh NOERROR | www.test. 90 192.0.2.1"}
	due := cell{oldDue, 1, "fresh NOERROR | www.test. 5 192.0.2.1"}
	resting := cell{oldAtOnce, 0, heldResting}
	// Without anything that may be given it is all upstream's.
	nothing := map[string]cell{
		"good":      {newAtOnce, 1, heldNew},
		"slow":      {newSlowly, 1, heldNew},
		"SERVFAIL":  {failedNow, 1, "failed SERVFAIL"},
		"NXDOMAIN":  {denied, 1, heldDenied},
		"NODATA":    {noData, 1, heldNoData},
		"silent":    {failedLate, 1, "failed SERVFAIL"},
		"garbage":   {failedNow, 1, "failed SERVFAIL"},
		"recovered": {newAtOnce, 1, heldNew},
	}
	table := map[string]map[string]cell{
		"fresh": {
			"good": fresh, "slow": fresh, "SERVFAIL": fresh, "NXDOMAIN": fresh, "NODATA": fresh, "silent": fresh, "garbage": fresh,
			"recovered": {"NOERROR | www.test. 89 192.0.2.1, cache after 0s", 0, "fresh NOERROR | www.test. 89 192.0.2.1"},
		},
		"due": {
			"good": {oldDue, 1, heldNew}, "slow": {oldDue, 1, heldNew},
			"SERVFAIL": due, "garbage": due,
			"NXDOMAIN": {oldDue, 1, heldDenied}, "NODATA": {oldDue, 1, heldNoData},
			"silent":    {oldDue, 1, "fresh NOERROR | www.test. 1 192.0.2.1"}, // 4 s on
			"recovered": {"NOERROR | www.test. 4 192.0.2.1, cache after 0s", 0, "fresh NOERROR | www.test. 4 192.0.2.1"},
		},
		"late": {
			"good":      {newAtOnce, 1, heldNew},
			"slow":      {oldLate, 1, heldNew},
			"SERVFAIL":  {oldAtOnce, 1, heldResting},
			"NXDOMAIN":  {denied, 1, heldDenied},
			"NODATA":    {noData, 1, heldNoData},
			"silent":    {oldLate, 1, heldResting},
			"garbage":   {oldAtOnce, 1, heldResting},
			"recovered": {newAtOnce, 1, heldNew},
		},
		"resting": {
			"good": resting, "slow": resting, "SERVFAIL": resting, "NXDOMAIN": resting, "NODATA": resting, "silent": resting, "garbage": resting,
			"recovered": {newAtOnce, 1, heldNew}, // it has rested enough
		},
		"expired": nothing,
		"absent":  nothing,
	}
	for state, row := range table {
		for mood, want := range row {
			t.Run(state+", "+mood, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					y, m := newPlay(t), query("www.test.", dns.TypeA)
					y.prepare(t, state)
					if mood == "recovered" {
						y.u.be("SERVFAIL")
						y.ask(t, m)
						time.Sleep(1100 * time.Millisecond)
						y.u.be("good")
					} else {
						y.u.be(mood)
					}
					got := cell{reply: y.ask(t, m)}
					y.settle()
					got.asked, got.held = y.u.count(), y.held(t, m)
					if diff := cmp.Diff(want, got, cmp.AllowUnexported(cell{})); diff != "" {
						t.Errorf("(-want +got)\n%s", diff)
					}
					if s := y.r.Stats(); s.Waiting != 0 || s.Panics != 0 {
						t.Errorf("%d wait, %d panics", s.Waiting, s.Panics)
					}
				})
			})
		}
	}
}
