// SPDX-License-Identifier: Apache-2.0

package subscribe_test

import (
	"bytes"
	"encoding/binary"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A script is a server that a test plays. Each part may be nil: then it behaves.
type script struct {
	keepalive func(s *scripted, id uint16)              // instead of the response to the first message
	subscribe func(s *scripted, id uint16, name []byte) // instead of the response to a SUBSCRIBE
	answer    func(s *scripted, query []byte)           // instead of an answer
	beat      func(s *scripted) []byte                  // instead of a View
}

// A scripted is a connection of a script.
type scripted struct {
	*peer
	answers int
}

// serve plays the script.
func (sc script) serve(conn net.Conn, _ int) {
	s := &scripted{peer: &peer{Conn: conn}}
	done := make(chan struct{})
	defer close(done)
	for msg := readFrame(conn); msg != nil; msg = readFrame(conn) {
		if !dso.IsDSO(msg) {
			if s.answers++; sc.answer != nil {
				sc.answer(s, msg)
			} else {
				s.Push(answerTo(msg, [4]byte{10, 0, 0, byte(s.answers)}))
			}
			continue
		}
		m, _ := dso.Parse(msg)
		switch primary := m.Primary(); primary.Type {
		case dso.TypeKeepalive:
			if sc.keepalive != nil {
				sc.keepalive(s, m.ID)
				continue
			}
			s.Push(dso.AppendKeepalive(dso.AppendHeader(nil, dso.Response, m.ID, 0), dso.Keepalive{Inactivity: time.Hour, Interval: time.Hour}))
			go sc.beats(s, done)
		case dso.TypeSubscribe:
			sub, _ := primary.Subscribe()
			if sc.subscribe != nil {
				sc.subscribe(s, m.ID, sub.Name)
				continue
			}
			s.Push(dso.AppendHeader(nil, dso.Response, m.ID, 0))
		default:
		}
	}
}

func (sc script) beats(s *scripted, done <-chan struct{}) {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		if msg := view(); sc.beat == nil || func() bool { msg = sc.beat(s); return msg != nil }() {
			s.Push(msg)
		}
		select {
		case <-tick.C:
		case <-done:
			return
		}
	}
}

// view is the View of a server that has everything.
func view() []byte {
	msg := dso.AppendKeepalive(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), dso.Keepalive{Inactivity: time.Hour, Interval: time.Hour})
	return dso.AppendView(msg, dso.View{Kinds: []dso.Versions{{Newest: 1, UpTo: 1}}})
}

// removal is a PUSH that removes names.
func removal(names ...[]byte) []byte {
	var p dso.Push
	p.Begin(nil)
	for _, name := range names {
		p.RemoveName(name)
	}
	return p.End()
}

// TestServers plays servers that refuse, fail or lie. It asks for one name twice, ten seconds apart.
func TestServers(t *testing.T) {
	t.Parallel()
	respond := func(rcode uint8, add func([]byte) []byte) func(s *scripted, id uint16) {
		return func(s *scripted, id uint16) { s.Push(add(dso.AppendHeader(nil, dso.Response, id, rcode))) }
	}
	none := func(dst []byte) []byte { return dst }
	retry := func(dst []byte) []byte { return dso.AppendRetryDelay(dst, time.Hour) }
	send := func(msg []byte) func(s *scripted, query []byte) {
		return func(s *scripted, query []byte) {
			s.Push(answerTo(query, [4]byte{10, 0, 0, 1}))
			s.Push(msg)
		}
	}
	padded := func(size int) []byte {
		return dso.AppendPadding(dso.AppendKeepalive(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), dso.Keepalive{}), size)
	}
	const session, anyServer = "10.0.0.1", "192.0.2.255"
	tests := []struct {
		name     string
		script   script
		first    string // answer; empty: session
		second   string // the same later, if sessions is set; "hit": it was kept
		sessions int    // until then; 0: random
		why      string // why a session ended, from the log; empty: none did
	}{
		{name: "one that behaves", second: "hit", sessions: 1},
		{name: "NOTIMP", script: script{keepalive: respond(wire.RcodeNotImp, none)}, first: anyServer, second: anyServer, sessions: 1, why: "no DNS push"},
		{name: "DSOTYPENI", script: script{keepalive: respond(dso.RcodeTypeNI, none)}, first: anyServer, second: anyServer, sessions: 1, why: "no DNS push"},
		{name: "NOTIMP with the question of others", script: script{keepalive: func(s *scripted, id uint16) {
			msg := dso.AppendHeader(nil, dso.Response, id, wire.RcodeNotImp)
			msg[5] = 1
			s.Push(append(msg, 0, 0, 1, 0, 1))
		}}, first: anyServer, second: anyServer, sessions: 1, why: "no DNS push"},
		{
			name: "it ends the connection", script: script{keepalive: func(s *scripted, _ uint16) { s.Abort() }},
			first: anyServer, second: anyServer, sessions: 1, why: "EOF",
		},
		{
			name: "it says nothing", script: script{keepalive: func(*scripted, uint16) {}},
			first: anyServer, second: anyServer, sessions: 1, why: "silent",
		},
		{
			name: "a response without timeouts", script: script{keepalive: respond(0, none)},
			first: anyServer, second: anyServer, sessions: 1, why: "malformed",
		},
		{
			name: "Views before a session", script: script{keepalive: func(s *scripted, _ uint16) { s.Push(view()) }},
			first: anyServer, second: anyServer, sessions: 1, why: "malformed",
		},
		{name: "a name that is refused", script: script{subscribe: func(s *scripted, id uint16, _ []byte) {
			respond(wire.RcodeNotAuth, none)(s, id)
		}}, second: anyServer, sessions: 1},
		{name: "all are refused for an hour", script: script{subscribe: func(s *scripted, id uint16, _ []byte) {
			respond(wire.RcodeRefused, retry)(s, id)
		}}, second: anyServer, sessions: 1},
		{name: "a SUBSCRIBE without a response", script: script{subscribe: func(*scripted, uint16, []byte) {}}, second: "10.0.0.2", sessions: 1},
		{name: "it answers nothing", script: script{answer: func(*scripted, []byte) {}}, first: anyServer, second: anyServer, sessions: 1},
		{name: "it fails", script: script{answer: func(s *scripted, query []byte) {
			msg := answerTo(query, [4]byte{})[:len(query)]
			msg[3], msg[7] = wire.RcodeServFail, 0
			s.Push(msg)
		}}, first: anyServer, second: anyServer, sessions: 1},
		{name: "an answer to another question", script: script{answer: func(s *scripted, query []byte) {
			query[13] ^= 1
			s.Push(answerTo(query, [4]byte{10, 0, 0, 1}))
		}}, first: anyServer, why: "another question"},
		{name: "answers that nothing waits for", script: script{answer: func(s *scripted, query []byte) {
			other := bytes.Clone(query)
			binary.BigEndian.PutUint16(other, 4711)
			s.Push(answerTo(other, [4]byte{10, 0, 0, 9}))
			s.Push(answerTo(query, [4]byte{10, 0, 0, 1}))
		}}, second: "hit", sessions: 1},
		{name: "a PUSH before each answer", script: script{answer: func(s *scripted, query []byte) {
			s.Push(removal(wire.QueryName(query)))
			s.Push(answerTo(query, [4]byte{10, 0, 0, 1}))
		}}, first: anyServer, second: anyServer, sessions: 1},
		{name: "PUSHes for names that were not asked for", script: script{answer: send(removal(wireName(t, "other.shop.svc.cluster.local"), wireName(t, "example.com")))}, second: "hit", sessions: 1},
		{name: "a PUSH in another case", script: script{answer: send(removal(wireName(t, "a"), []byte("\x03WEB\x04shop\x03svc\x07cluster\x05local\x00")))}, second: "10.0.0.1", sessions: 1},
		{name: "half a message", script: script{answer: func(s *scripted, query []byte) {
			s.Push(answerTo(query, [4]byte{10, 0, 0, 1}))
			_, _ = s.Write([]byte{0, 100, 1})
			s.mu.Lock()
			defer s.mu.Unlock()
			s.mute = true
		}}, why: "silent"},
		{name: "a message of 3 bytes", script: script{answer: send([]byte{1, 2, 3})}, why: "malformed"},
		{name: "a TLV that is not complete", script: script{answer: send(append(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), 0, 1, 0, 8, 0))}, why: "malformed"},
		{name: "a request", script: script{answer: send(dso.AppendKeepalive(dso.AppendHeader(nil, dso.Request, 9, 0), dso.Keepalive{}))}, why: "malformed"},
		{name: "a View that is not complete", script: script{answer: send(append(padded(0), 0xf8, 0, 0, 1, 0))}, why: "malformed"},
		{name: "a PUSH without a change", script: script{answer: send(append(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), 0, 0x41, 0, 0))}, why: "malformed"},
		{name: "a huge message", script: script{answer: send(padded(65000))}, second: "hit", sessions: 1},
		{name: "an unknown message", script: script{answer: send(append(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), 0xf9, 0, 0, 0))}, second: "hit", sessions: 1},
		{name: "come back later", script: script{answer: send(retry(dso.AppendHeader(nil, dso.Unidirectional, 0, 0)))}, second: anyServer, sessions: 1, why: "come back after 1h0m0s"},
		{name: "it stops saying that it watches", script: script{beat: func(s *scripted) []byte {
			if s.answers > 0 {
				return nil
			}
			return view()
		}}, why: "silent"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, tt.script.serve)
				time.Sleep(time.Second)
				if tt.first == "" {
					tt.first = session
				}
				assert.Same(t, "first answer", tt.first, h.lookup())
				time.Sleep(10*time.Second + time.Millisecond)
				second := h.lookup()
				switch {
				case tt.sessions != 0:
					assert.Same(t, "second answer", tt.second, second)
					assert.Same(t, "sessions", tt.sessions, len(h.opened))
				case second == "hit": // another session may have begun
					t.Error("the answer was kept")
				}
				h.logMu.Lock()
				defer h.logMu.Unlock()
				if log := h.log.String(); !strings.Contains(log, tt.why) || (log == "") != (tt.why == "") {
					t.Errorf("the log has no %q: %s", tt.why, log)
				}
			})
		})
	}
}

// TestRefusedAgain has a server refuse a name until its configuration changes. The agent subscribes again after ten minutes, while
// clients ask for the name.
func TestRefusedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		refused, begun := 0, time.Now()
		h := newHarness(t, script{subscribe: func(s *scripted, id uint16, _ []byte) {
			rcode := uint8(0)
			if time.Since(begun) < time.Minute {
				rcode = wire.RcodeNotAuth
				refused++
			}
			s.Push(dso.AppendHeader(nil, dso.Response, id, rcode))
		}}.serve)
		last := ""
		for ; last != "hit" && time.Since(begun) < time.Hour; time.Sleep(6 * time.Second) {
			last = h.lookup()
		}
		if took := time.Since(begun); refused != 1 || took < 10*time.Minute || took > 11*time.Minute {
			t.Errorf("kept after %s, refused %d times", took, refused)
		}
	})
}
