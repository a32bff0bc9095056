// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A stepper is a client whose servers, and whose pool, a test plays message by message.
type stepper struct {
	*Client
	t      *testing.T
	now    time.Time
	cache  *cache.Cache
	pool   []*stepQuestion // what the pool was asked for and has not answered
	got    []string        // answers that the agent got
	opened int
}

// A stepQuestion is a question that the pool was asked for.
type stepQuestion struct {
	query []byte
	to    wire.AnswerReceiver
}

type stepPool struct{ *stepper }

func (p stepPool) Ask(query []byte, _ time.Time, to wire.AnswerReceiver, _ *wire.SendBatch) {
	p.pool = append(p.pool, &stepQuestion{query, to})
}

func newStepper(t *testing.T) *stepper {
	t.Helper()
	h := &stepper{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	var err error
	h.cache, err = cache.New(cache.Config{Size: cache.MinSize}, h.now)
	assert.NoError(t, err)
	h.Client = New(Config{
		Cache: func() *cache.Cache { return h.cache }, Owner: modelOwner, Pool: stepPool{h}, MaxAge: time.Minute,
		Now: func() time.Time { return h.now }, Log: slog.New(slog.DiscardHandler),
	})
	h.arm = func(time.Duration) {}
	return h
}

func (h *stepper) pass(d time.Duration) { h.now = h.now.Add(d) }

// fullName returns a whole name; one without a dot at its end is of the domain.
func fullName(name string) string {
	if strings.HasSuffix(name, ".") {
		return name
	}
	return name + ".ns.svc.cluster.local."
}

func (h *stepper) wire(name string) []byte {
	h.t.Helper()
	out, err := wire.AppendName(nil, fullName(name))
	assert.NoError(h.t, err)
	return out
}

// ask asks for addresses, as a client that waits for 4 s.
func (h *stepper) ask(names ...string) {
	h.t.Helper()
	for _, name := range names {
		query, err := new(dns.Msg).SetQuestion(fullName(name), dns.TypeA).Pack()
		assert.NoError(h.t, err)
		wire.SetID(query, 0)
		var batch wire.SendBatch
		h.Ask(query, h.now.Add(4*time.Second), &stepReceiver{h, name}, &batch)
		batch.Flush()
	}
}

type stepReceiver struct {
	h    *stepper
	name string
}

func (r *stepReceiver) Answered(m *wire.Message, err error, _ *wire.SendBatch) {
	switch {
	case err != nil:
		r.h.got = append(r.h.got, r.name+": "+err.Error())
	case m.Kept:
		r.h.got = append(r.h.got, r.name+": kept")
	case m.Server != "":
		r.h.got = append(r.h.got, r.name+": session")
	default:
		r.h.got = append(r.h.got, r.name+": pool")
	}
}

// poolAnswers has the pool answer what it was asked for.
func (h *stepper) poolAnswers() {
	h.t.Helper()
	pool := h.pool
	h.pool = nil
	for _, q := range pool {
		var m wire.Message
		assert.NoError(h.t, m.Parse(h.answer(q.query, nil)))
		var batch wire.SendBatch
		q.to.Answered(&m, nil, &batch)
		batch.Flush()
	}
}

// answer returns an answer of one address, changed by edit.
func (h *stepper) answer(query []byte, edit func(m *dns.Msg)) []byte {
	h.t.Helper()
	var m dns.Msg
	assert.NoError(h.t, m.Unpack(query))
	m.Response, m.RecursionAvailable = true, true
	rr, err := dns.NewRR(m.Question[0].Name + " 5 IN A 10.0.0.7")
	assert.NoError(h.t, err)
	if m.Answer = []dns.RR{rr}; edit != nil {
		edit(&m)
	}
	msg, err := m.Pack()
	assert.NoError(h.t, err)
	return msg
}

// hold has the cache keep an answer, and returns its key.
func (h *stepper) hold(name string) (key []byte) {
	h.t.Helper()
	msg := h.answer(append([]byte{0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, append(h.wire(name), 0, 1, 0, 1)...), nil)
	var m wire.Message
	assert.NoError(h.t, m.Parse(msg))
	key = append(h.wire(name), 0, 1, 0)
	h.cache.Put(key, &cache.Answer{Msg: m.Raw, TTLs: []uint16{m.Records[0].TTL}, Lifetime: 5 * time.Second, Owner: h.wire(name), QueriedAt: h.now, Kept: true}, h.now)
	return key
}

// want compares what happened since the last call.
func (h *stepper) want(what string, want ...string) {
	h.t.Helper()
	if !slices.Equal(h.got, want) {
		h.t.Errorf("%s: %q, want %q", what, h.got, want)
	}
	h.got = nil
}

func (h *stepper) check(what string, got, want any) {
	h.t.Helper()
	if got != want {
		h.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// wantPool compares the number of questions that the pool has.
func (h *stepper) wantPool(what string, want int) {
	h.t.Helper()
	assert.Same(h.t, what+": questions with the pool", want, len(h.pool))
}

// A stepSession is a session with a server that the test plays.
type stepSession struct {
	*session
	h *stepper
}

// open opens a session, without a View.
func (h *stepper) open() *stepSession {
	h.t.Helper()
	h.opened++
	s := &stepSession{h.connected(modelAddr(h.opened)), h}
	s.takeOut()
	assert.NoError(h.t, s.get(dso.AppendKeepalive(dso.AppendHeader(nil, dso.Response, 1, 0), dso.Keepalive{Inactivity: time.Hour, Interval: time.Minute})))
	return s
}

// get has the agent receive a message.
func (s *stepSession) get(msg []byte) error {
	var batch wire.SendBatch
	defer batch.Flush()
	return s.receive(msg, &batch)
}

// view sends a View. It reports whether the session is asked from then on.
func (s *stepSession) view(newest, upTo uint64, age time.Duration) bool {
	s.h.t.Helper()
	msg := dso.AppendKeepalive(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), dso.Keepalive{})
	assert.NoError(s.h.t, s.get(dso.AppendView(msg, dso.View{Age: age, Kinds: []dso.Versions{{Newest: newest, UpTo: upTo}}})))
	return s.c.session == s.session
}

// push reports changes.
func (s *stepSession) push(names ...string) {
	s.h.t.Helper()
	var p dso.Push
	p.Begin(nil)
	for _, name := range names {
		p.RemoveName(s.h.wire(name))
	}
	assert.NoError(s.h.t, s.get(p.End()))
}

// accept responds to the SUBSCRIBE of names.
func (s *stepSession) accept(names ...string) {
	s.h.t.Helper()
	for _, name := range names {
		s.respond(name, dso.AppendHeader(nil, dso.Response, 0, 0))
	}
}

func (s *stepSession) respond(name string, msg []byte) {
	s.h.t.Helper()
	n := s.names[string(s.h.wire(name))]
	if n == nil {
		s.h.t.Fatalf("%s is not subscribed to", name)
	}
	wire.SetID(msg, n.id)
	assert.NoError(s.h.t, s.get(msg))
}

// answerAll answers all questions of the session, each changed by edit.
func (s *stepSession) answerAll(edit func(m *dns.Msg)) {
	s.h.t.Helper()
	for _, w := range slices.Clone(s.queue) {
		if s.questions[w.id] == w.question {
			msg := s.h.answer(w.question.query, edit)
			wire.SetID(msg, w.id)
			assert.NoError(s.h.t, s.get(msg))
		}
	}
}

// wantKept asks for a name and compares how its answer comes.
func (s *stepSession) wantKept(name, want string) {
	s.h.t.Helper()
	s.h.ask(name)
	if !s.names[string(s.h.wire(name))].acked {
		s.accept(name)
	}
	s.answerAll(nil)
	s.h.want("after a View", name+": "+want)
}

func (h *stepper) lose(s *stepSession) { h.lost(s.session, "test") }

// TestSteps has one thing happen after the other.
func TestSteps(t *testing.T) {
	t.Parallel()
	const s = time.Second
	// viewed opens a session that is asked.
	viewed := func(h *stepper) *stepSession {
		h.t.Helper()
		a := h.open()
		if !a.view(5, 5, 0) {
			h.t.Fatal("the session is not asked")
		}
		return a
	}
	// doubt has x change, and the session end before the next View.
	doubt := func(h *stepper, a *stepSession, names ...string) {
		h.t.Helper()
		for _, name := range names {
			a.wantKept(name, "kept")
		}
		a.push(names...)
		h.lose(a)
	}
	tests := []struct {
		name string
		run  func(h *stepper)
	}{
		// Another server.
		{"one that is behind is not asked until it has what the last one had", func(h *stepper) {
			h.lose(viewed(h))
			b := h.open()
			h.check("behind", b.view(4, 4, 0), false)
			h.pass(2 * s)
			h.check("no more", b.view(5, 5, 0), true)
		}},
		{"one that has the same up to a bookmark is asked", func(h *stepper) {
			h.lose(viewed(h))
			h.check("asked", h.open().view(3, 7, 0), true)
		}},
		{"bookmarks of the last one do not count", func(h *stepper) {
			a := h.open()
			h.check("the first one", a.view(5, 9, 0), true)
			h.lose(a)
			h.check("the second one", h.open().view(5, 6, 0), true)
		}},
		{"all are behind for a minute: the API server counts from an earlier version", func(h *stepper) {
			a := viewed(h)
			doubt(h, a, "x")
			b := h.open()
			for i := range 30 {
				if b.view(1, 1, 10*time.Minute) {
					h.t.Fatalf("asked after %d s", 2*i)
				}
				h.pass(2 * s)
			}
			h.check("after a minute", b.view(1, 1, 10*time.Minute), true)
			b.wantKept("x", "kept")
		}},
		{"behind for less than a minute, twice", func(h *stepper) {
			h.lose(viewed(h))
			b := h.open()
			h.check("behind", b.view(4, 4, 0), false)
			h.pass(40 * s)
			h.check("no more", b.view(5, 5, 0), true)
			h.lose(b)
			b = h.open()
			h.check("another one", b.view(4, 4, 0), false)
			h.pass(40 * s)
			h.check("later", b.view(4, 4, 0), false)
		}},
		// Changes that no View counts.
		{"a change before the next View is in doubt until a server had it for sure", func(h *stepper) {
			doubt(h, viewed(h), "x")
			b := h.open()
			h.check("asked", b.view(5, 5, 0), true)
			b.wantKept("x", "session")
			b.wantKept("y", "kept")
			h.pass(900 * time.Millisecond) // a View may have been on its way for so long
			b.view(5, 5, 0)
			b.wantKept("x", "session")
			h.pass(2 * s)
			b.view(5, 5, 1900*time.Millisecond)
			b.wantKept("x", "session")
			h.pass(2 * s)
			b.view(5, 5, 1900*time.Millisecond)
			b.wantKept("x", "kept")
		}},
		{"a View that comes late says less", func(h *stepper) {
			a := viewed(h)
			h.pass(2 * s)
			doubt(h, a, "x")
			b := h.open()
			b.view(5, 5, 10*s)
			h.pass(10 * s) // sent 2 s after the one before: 8 s old
			b.view(5, 5, 2*s)
			b.wantKept("x", "session")
			h.pass(2 * s)
			b.view(5, 5, 0)
			b.wantKept("x", "kept")
		}},
		{"a change before a View is in no doubt", func(h *stepper) {
			a := viewed(h)
			a.wantKept("x", "kept")
			a.push("x")
			a.view(6, 6, 0)
			h.lose(a)
			h.check("doubts", len(h.doubts), 0)
			h.check("behind", h.open().view(5, 5, 0), false)
		}},
		{"more changes than may be in doubt: all names are", func(h *stepper) {
			h.limits.names = 1
			a := viewed(h)
			doubt(h, a, "x")
			b := h.open()
			b.view(5, 5, 20*s)
			doubtB := func(name string) {
				b.wantKept(name, "kept")
				b.push(name)
				h.lose(b)
			}
			doubtB("y")
			b = h.open()
			b.view(5, 5, 20*s)
			b.wantKept("z", "session")
			h.pass(2 * s)
			b.view(5, 5, 0)
			b.wantKept("z", "kept")
		}},
		{"the API server is restored from a backup, and another server has not listed since", func(h *stepper) {
			a := viewed(h)
			h.pass(2 * s)
			a.view(3, 3, 0)
			h.lose(a)
			b := h.open()
			h.check("asked", b.view(5, 5, 10*s), true)
			b.wantKept("x", "session")
			h.pass(2 * s)
			b.view(3, 3, 0)
			b.wantKept("x", "session")
			h.pass(2 * s)
			b.view(4, 4, 0)
			b.wantKept("x", "kept")
		}},
		// Questions.
		{"a change while a question is in flight: it is asked again, once", func(h *stepper) {
			a := viewed(h)
			h.ask("x")
			a.accept("x")
			h.pass(150 * time.Millisecond)
			a.push("x")
			a.answerAll(nil)
			h.want("the answer from before")
			h.pass(100 * time.Millisecond)
			h.expire() // patience begins again
			h.wantPool("0.1 s later", 0)
			a.answerAll(nil)
			h.want("the answer after it", "x: kept")
			h.check("repeated", h.Client.Stats().Repeated, uint64(1))
		}},
		{"a change before the pool is asked is in its answer", func(h *stepper) {
			a := viewed(h)
			h.ask("x")
			h.pass(patience / 2)
			a.push("x")
			h.pass(patience / 2)
			h.expire()
			h.wantPool("after patience", 1)
			h.poolAnswers()
			h.want("its answer", "x: pool")
		}},
		{"changes without an end, and the pool", func(h *stepper) {
			h.ask("x")
			for i := range maxRepeats {
				h.pass(100 * time.Millisecond)
				h.cache.OwnerChanged(h.wire("x"), h.now)
				h.poolAnswers()
				h.want(fmt.Sprintf("answer %d", i))
			}
			h.pass(100 * time.Millisecond)
			h.cache.OwnerChanged(h.wire("x"), h.now)
			h.poolAnswers()
			h.want("the last answer", "x: pool")
		}},
		{"a change while the pool is asked, and no time is left", func(h *stepper) {
			h.ask("x")
			h.pass(4 * s)
			h.cache.OwnerChanged(h.wire("x"), h.now)
			h.poolAnswers()
			h.want("the answer", "x: pool")
		}},
		{"names without an object, and answers that are odd, are the pool's", func(h *stepper) {
			a := viewed(h)
			h.ask("www.example.com.")
			h.wantPool("a name elsewhere", 1)
			for i, edit := range []func(m *dns.Msg){
				func(m *dns.Msg) { m.Truncated = true },
				func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure },
				func(m *dns.Msg) { m.Answer, m.RecursionAvailable = nil, false },
			} {
				h.ask("x")
				a.answerAll(edit)
				h.wantPool("an odd answer", 2+i)
			}
		}},
		{"an alias that leaves the zone is not kept", func(h *stepper) {
			a := viewed(h)
			h.ask("x")
			a.accept("x")
			a.answerAll(func(m *dns.Msg) {
				m.Answer = []dns.RR{
					&dns.CNAME{Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeCNAME, Class: 1, Ttl: 5}, Target: "www.example.com."},
					&dns.A{Hdr: dns.RR_Header{Name: "www.example.com.", Rrtype: dns.TypeA, Class: 1, Ttl: 5}, A: []byte{192, 0, 2, 1}},
				}
			})
			h.want("its answer", "x: session")
		}},
		// A slow server.
		{"the next questions go to the pool until the server sends something", func(h *stepper) {
			for _, sends := range []func(a *stepSession){
				func(a *stepSession) { a.answerAll(nil) },
				func(a *stepSession) { a.view(5, 5, 0) },
			} {
				a := viewed(h)
				h.ask("x")
				a.accept("x")
				h.pass(patience)
				h.ask("y")
				h.expire()
				h.wantPool("x", 1)
				h.ask("z")
				h.wantPool("x, z", 2)
				sends(a)
				h.ask("z")
				h.wantPool("afterwards", 2)
				h.lose(a)
				h.pool, h.got = nil, nil
			}
		}},
		{"a SUBSCRIBE that takes long does not make the server slow", func(h *stepper) {
			viewed(h)
			h.ask("x")
			h.pass(patience)
			h.expire()
			h.wantPool("x", 1)
			h.ask("y")
			h.wantPool("x", 1)
		}},
		{"a SUBSCRIBE without a response ends the session", func(h *stepper) {
			a := viewed(h)
			h.ask("x")
			h.pass(silentTimeout + s)
			msg := dso.AppendKeepalive(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), dso.Keepalive{})
			h.check("it ended", a.get(dso.AppendView(msg, dso.View{Kinds: []dso.Versions{{Newest: 5, UpTo: 5}}})) != nil, true)
		}},
		{"Keepalives while there is nothing to send", func(h *stepper) {
			a := viewed(h)
			a.takeOut()
			for range 16 {
				h.pass(2 * s)
				a.view(5, 5, 0)
			}
			h.check("sent within 32 s", len(a.takeOut()) > 0, true)
		}},
		// Bounds.
		{"a refusal for a time", func(h *stepper) {
			for _, rcode := range []uint8{wire.RcodeNotAuth, wire.RcodeRefused} {
				a := viewed(h)
				h.ask("x")
				a.respond("x", dso.AppendRetryDelay(dso.AppendHeader(nil, dso.Response, 0, rcode), time.Minute))
				h.ask("x")
				h.wantPool("the name itself", 1)
				h.ask("y")
				others := 0 // RFC 8765 section 6.2.2: NOTAUTH is about the name alone
				if rcode == wire.RcodeRefused {
					others = 1
				}
				h.wantPool("another one", 1+others)
				h.lose(a)
				h.pool = nil
			}
		}},
		{"names", func(h *stepper) {
			h.limits.names = 2
			a := viewed(h)
			h.ask("x", "y", "z")
			h.wantPool("z", 1)
			a.accept("x", "y")
			a.answerAll(nil)
			h.hold("x")
			for range 62 { // full: unused names leave after a minute, not after ten
				h.pass(s)
				h.ask("y", "z")
				a.answerAll(nil)
				a.view(5, 5, 0)
			}
			h.pool = nil
			h.ask("z")
			h.wantPool("z in the place of x", 0)
			h.check("names", h.Client.Stats().Names, 2)
			h.check("IDs", len(a.byID), 2)
		}},
		{"hits are uses", func(h *stepper) {
			h.limits.idleFull = time.Hour
			a := viewed(h)
			h.ask("x")
			a.accept("x")
			a.answerAll(nil)
			key := h.hold("x")
			for range 1200 { // 20 minutes
				h.pass(s)
				a.view(5, 5, 0)
				h.cache.Lookup(key, h.now, nil)
			}
			h.check("names while it is used", len(a.order), 1)
			for range 601 {
				h.pass(s)
				a.view(5, 5, 0)
			}
			h.check("names ten minutes later", len(a.order), 0)
		}},
		{"questions", func(h *stepper) {
			a := viewed(h)
			for i := range maxQuestions + 1 {
				h.ask(fmt.Sprint("n", i))
				a.takeOut()
			}
			h.wantPool("the last one", 1)
		}},
		{"bytes to be written", func(h *stepper) {
			a := viewed(h)
			long := strings.Repeat("a.", 100)
			for i := 0; len(h.pool) == 0; i++ {
				h.ask(fmt.Sprint(long, "n", i))
			}
			h.check("at the bound", len(a.takeOut()) <= maxOut+1024, true)
			h.check("questions", len(a.questions) < maxQuestions, true)
		}},
		{"an ID that is in use is not used", func(h *stepper) {
			a := viewed(h)
			h.ask("x")
			x := a.names[string(h.wire("x"))].id
			a.lastID = x - 1
			h.ask("y")
			for id := range a.questions {
				h.check("names with the ID of a question", a.byID[id] == nil, true)
			}
			h.check("IDs", len(a.byID)+len(a.questions), 4)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.run(newStepper(t))
		})
	}
}
