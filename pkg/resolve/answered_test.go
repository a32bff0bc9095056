// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// An askFunc is what an upstream makes of a query.
type askFunc func(q []byte, until time.Time, to wire.AnswerReceiver, batch *wire.SendBatch)

type funcAsker struct{ ask askFunc }

func asker(ask askFunc) resolve.Asker { return &funcAsker{ask} }

// Ask implements resolve.Asker.
func (a *funcAsker) Ask(q []byte, until time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	a.ask(q, until, to, batch)
}

// addressed answers the query q with one address.
func addressed(tb testing.TB, q []byte, address string) []byte {
	tb.Helper()
	m := unpack(tb, q)
	r := new(dns.Msg).SetReply(m)
	rr := record(tb, m.Question[0].Name+" 300 IN A "+address)
	r.Answer = []dns.RR{rr}
	return pack(tb, r)
}

// TestAnsweredTwice breaks the contract in every way there is: each client has one
// reply, of what came first, and nothing stays under way.
func TestAnsweredTwice(t *testing.T) {
	t.Parallel()
	good := func(q []byte, to wire.AnswerReceiver, batch *wire.SendBatch) {
		respond(to, addressed(t, q, "192.0.2.1"), nil, batch)
	}
	bad := func(q []byte, to wire.AnswerReceiver, batch *wire.SendBatch) {
		respond(to, addressed(t, q, "203.0.113.66"), nil, batch)
	}
	for _, tt := range []struct {
		name   string
		ask    askFunc
		want   string
		panics uint64
	}{
		{"within Ask", func(q []byte, _ time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
			good(q, to, batch)
			bad(q, to, batch)
		}, "192.0.2.1", 0},
		{"within Ask and from a goroutine", func(q []byte, _ time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
			good(q, to, batch)
			go bad(q, to, new(wire.SendBatch))
		}, "192.0.2.1", 0},
		{"a failure, then an answer", func(q []byte, _ time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
			to.Answered(nil, coded(23), batch)
			bad(q, to, batch)
		}, "EDE: 23", 0},
		{"an answer, then a panic", func(q []byte, _ time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
			good(q, to, batch)
			panic("asked to")
		}, "192.0.2.1", 1},
		{"a panic, then an answer", func(q []byte, _ time.Time, to wire.AnswerReceiver, _ *wire.SendBatch) {
			time.AfterFunc(time.Millisecond, func() { bad(q, to, new(wire.SendBatch)) })
			panic("asked to")
		}, "EDE: 0", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newResolver(t, plan(t, asker(tt.ask)))
				m := question("www.test.", dns.TypeA)
				m.SetEdns0(1232, false)
				c := newClient(r, false)
				got := unpack(t, c.exchange(t, pack(t, m))).String()
				if !strings.Contains(got, tt.want) || strings.Contains(got, "203.0.113.66") {
					t.Errorf("got, want %s:\n%s", tt.want, got)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				select {
				case again := <-c.got:
					t.Errorf("a second reply:\n%s", unpack(t, again))
				default:
				}
				if s := r.Stats(); s.Panics != tt.panics || s.Inflight != 0 || s.Waiting != 0 {
					t.Errorf("panics %d, in flight %d, waiting %d, want %d, 0, 0", s.Panics, s.Inflight, s.Waiting, tt.panics)
				}
			})
		})
	}
}

// A recorder notes in its log when it is flushed.
type recorder struct {
	name string
	log  *[]string
}

// Flush implements wire.Flusher.
func (r recorder) Flush() { *r.log = append(*r.log, "flush "+r.name) }

// A ledger is a replier that notes its replies and holds them back.
type ledger struct{ log *[]string }

// Reply implements wire.Replier.
func (l ledger) Reply(_ []byte, batch *wire.SendBatch) {
	*l.log = append(*l.log, "reply")
	batch.Add(recorder{"replies", l.log})
}

// TestFlushOrder checks that upstream queries and replies leave in order at the end of a batch.
func TestFlushOrder(t *testing.T) {
	t.Parallel()
	var log []string
	r := newResolver(t, plan(t, asker(func(q []byte, _ time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
		name := unpack(t, q).Question[0].Name
		log = append(log, "ask "+name)
		if name == "held.test." {
			respond(to, addressed(t, q, "192.0.2.1"), nil, batch)
			return
		}
		batch.Add(recorder{name, &log})
	})))
	worker, from := r.NewWorker(), newClient(r, false).from
	now := time.Now()
	for _, name := range []string{"a.test.", "held.test.", "b.test.", "a.test."} {
		if _, verdict := worker.AnswerFromMemory(pack(t, question(name, dns.TypeA)), &from, now, nil); verdict != wire.Missed {
			t.Fatalf("%s: verdict %d, want missed", name, verdict)
		}
		worker.Resolve(&from, now, ledger{&log})
	}
	log = append(log, "end of the batch")
	worker.Flush(now)
	worker.Flush(now)
	want := []string{
		"ask a.test.", "ask held.test.", "reply", "ask b.test.",
		"end of the batch", "flush a.test.", "flush replies", "flush b.test.",
	}
	assert.Same(t, "got", want, log)
}

// TestRefreshIsBatched checks that the query of a refresh is sent at the end of the batch.
func TestRefreshIsBatched(t *testing.T) {
	t.Parallel()
	var log []string
	refreshing := false
	p := plan(t, asker(func(q []byte, _ time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
		if !refreshing {
			respond(to, addressed(t, q, "192.0.2.1"), nil, batch)
			return
		}
		batch.Add(recorder{"refresh", &log})
		to.Answered(nil, coded(22), batch)
	}))
	p.Cache.SetPrefetch(cache.Prefetch{Hits: 1, Remaining: 0.5})
	r := newResolver(t, p)
	c := newClient(r, false)
	pkt := pack(t, question("www.test.", dns.TypeA))
	c.exchange(t, pkt)
	refreshing = true
	if _, verdict := c.worker.AnswerFromMemory(pkt, &c.from, time.Now().Add(200*time.Second), nil); verdict != wire.Answered {
		t.Errorf("verdict %d, want answered", verdict)
	}
	if len(log) > 0 {
		t.Errorf("%q before the end of the batch", log)
	}
	c.worker.Flush(time.Now())
	assert.Same(t, "got", []string{"flush refresh"}, log)
}

// TestUntil checks the deadline passed to upstream: the plan's, from the query's arrival.
func TestUntil(t *testing.T) {
	t.Parallel()
	var got time.Time
	p := plan(t, asker(func(_ []byte, until time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
		got = until
		to.Answered(nil, coded(22), batch)
	}))
	c := newClient(newResolver(t, p), false)
	arrival := time.Now().Add(-time.Second)
	c.worker.AnswerFromMemory(pack(t, question("www.test.", dns.TypeA)), &c.from, arrival, nil)
	c.worker.Resolve(&c.from, arrival, c)
	if want := arrival.Add(p.Deadline); !got.Equal(want) {
		t.Errorf("until %s, want %s", got, want)
	}
}

// TestRunWaits stops a resolver with a query in flight. Run returns after it has completed.
func TestRunWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t, "www.test. 300 IN A 192.0.2.1")
		u.gate = make(chan struct{})
		r := newResolver(t, plan(t, u))
		c := newClient(r, false)
		c.send(pack(t, question("www.test.", dns.TypeA)))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		cancel()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("Run ended with a client waiting: %v", err)
		default:
		}
		close(u.gate)
		<-c.got
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestNoRoute queries a name without a route.
func TestNoRoute(t *testing.T) {
	t.Parallel()
	p := plan(t, newUpstream(t))
	p.Routes = []resolve.Route{{Suffix: []byte("\x04test\x00"), Upstream: newUpstream(t), TTL: bounds()}}
	local(p)
	r := newResolver(t, p)
	for range 2 {
		got := unpack(t, newClient(r, false).exchange(t, pack(t, query("www.example.", dns.TypeA))))
		if got.Rcode != dns.RcodeServerFailure || !strings.Contains(got.String(), "EDE: 22") {
			t.Errorf("got, want SERVFAIL and EDE: 22:\n%s", got)
		}
	}
	got := explanations(t, r, wish("www.example."))
	if len(got) != 1 || !strings.HasPrefix(got[0], "source=failure took=") || !strings.HasSuffix(got[0], " route=none") {
		t.Errorf("explained %q", got)
	}
	if s := r.Stats(); s.Failures != 0 || s.Panics != 0 || s.Inflight != 0 {
		t.Errorf("failures %d, panics %d, in flight %d, want none", s.Failures, s.Panics, s.Inflight)
	}
}
