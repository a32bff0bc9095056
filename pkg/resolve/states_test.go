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
	case "NXDOMAIN":
		r.Rcode, authority = dns.RcodeNameError, soa
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
func (y *stateTest) ask(t *testing.T, m *dns.Msg) string {
	t.Helper()
	before, start := y.r.Stats().Responses, time.Now()
	got := unpack(t, newClient(y.r, false).exchange(t, pack(t, m)))
	took := time.Since(start)
	source := "nowhere"
	after := y.r.Stats().Responses
	for i, name := range resolve.Sources() {
		if sum(after[i][:]) > sum(before[i][:]) {
			source = name
		}
	}
	return fmt.Sprintf("%s, %s after %s", say(got), source, took)
}

// settle waits until nothing is under way.
func (y *stateTest) settle() {
	synctest.Wait()
	for y.r.Stats().Inflight > 0 {
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
	}
}
