// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/binary"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/server/servertest"
)

// A stateful has sessions for all clients but 192.0.2.9. A message is a word after the header: "ping" is a Keepalive, "add" and "drop" begin
// and end a lasting operation, "slow" takes 50 ms, others are operations. It answers with the same message.
type stateful struct {
	conns  chan server.StatefulConn
	ended  atomic.Int32
	closed atomic.Int32
}

func newStateful() *stateful { return &stateful{conns: make(chan server.StatefulConn, 16)} }

func (s *stateful) NewStateful(client netip.Addr, to server.StatefulConn) server.StatefulSession {
	if client == netip.MustParseAddr("192.0.2.9") {
		return nil
	}
	s.conns <- to
	return &statefulSession{of: s, to: to}
}

func (s *stateful) EndAll() { s.ended.Add(1) }

type statefulSession struct {
	of    *stateful
	to    server.StatefulConn
	lasts bool
}

func (s *statefulSession) Handle(msg []byte) bool {
	word := string(msg[12:])
	s.lasts = (s.lasts || word == "add") && word != "drop"
	if word == "slow" {
		time.Sleep(50 * time.Millisecond)
	}
	s.to.SendMessage(msg)
	return word != "ping"
}

func (s *statefulSession) Delinquent() time.Duration {
	if s.lasts {
		return 0
	}
	return 30 * time.Second
}

func (s *statefulSession) Close() { s.of.closed.Add(1) }

// say sends a stateful message and reads the answer.
func (c *tcpClient) say(word string) {
	c.t.Helper()
	c.send(servertest.Frame(append([]byte{0, 1, 6 << 3, 0, 0, 0, 0, 0, 0, 0, 0, 0}, word...)))
	c.hear(word)
}

// hear reads one message.
func (c *tcpClient) hear(word string) {
	c.t.Helper()
	var size [2]byte
	_, err := io.ReadFull(c, size[:])
	assert.NoError(c.t, err)
	msg := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err = io.ReadFull(c, msg)
	assert.NoError(c.t, err)
	assert.Equal(c.t, "message", word, string(msg[min(12, len(msg)):]))
}

// When a session of stateful operations ends: 30 s after its last operation, which a Keepalive is not. The idle timeout, 10 s, is not its.
func TestStatefulIdle(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		use  func(*tcpClient)
		want time.Duration
	}{
		"an operation":    {func(c *tcpClient) { c.say("work") }, 30 * time.Second},
		"Keepalives only": {func(c *tcpClient) { c.say("ping"); time.Sleep(20 * time.Second); c.say("ping") }, 10 * time.Second},
		"queries": {func(c *tcpClient) {
			c.say("ping")
			time.Sleep(20 * time.Second)
			c.ask(1, "a.example")
			c.wantReplies(reply{1, "a.example"})
		}, 30 * time.Second},
		"one that lasts":    {func(c *tcpClient) { c.say("add"); time.Sleep(time.Hour); c.say("drop") }, 30 * time.Second},
		"half of a message": {func(c *tcpClient) { c.say("add"); c.send([]byte{0, 30, 1}) }, 3 * time.Second},
	}
	for label, tt := range tests {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				st := newStateful()
				h := servePipes(t, server.TCPConfig{Stateful: st}, nil)
				c := h.dial()
				tt.use(c)
				c.wantEndAfter(tt.want)
				synctest.Wait()
				assert.Equal(t, "sessions closed", int32(1), st.closed.Load())
			})
		})
	}
}

// Messages that take long do not come one after the other without a pause: the answers of before are sent, and UDP has its turn.
func TestStatefulTakesLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := servePipes(t, server.TCPConfig{Stateful: newStateful()}, nil)
		c := h.dial()
		c.say("add")
		slow := servertest.Frame(append([]byte{0, 1, 6 << 3, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "slow"...))
		began := time.Now()
		c.send(slices.Concat(queries(1, "a.example"), slow, slow, slow))
		c.hear("slow")
		c.wantReplies(reply{1, "a.example"})
		assert.Equal(t, "time until the answer", 50*time.Millisecond, time.Since(began))
		c.hear("slow")
		c.hear("slow")
	})
}

// A client that may have no such session gets the handler's answer.
func TestStatefulRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := servePipes(t, server.TCPConfig{Stateful: newStateful()}, nil)
		c := h.dialFrom("192.0.2.9")
		query := queries(1, "a.example")
		query[4] |= 6 << 3
		c.send(query)
		c.wantReplies(reply{1, "a.example"})
	})
}

// Push does not block: it takes no more than a client has read. Last is the last that it gets, also of what it asks later.
func TestStatefulPushAndLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := newStateful()
		h := servePipes(t, server.TCPConfig{Stateful: st}, nil)
		c := h.dial()
		c.say("add")
		conn := <-st.conns
		msg := append(make([]byte, 12), strings.Repeat("x", 10<<10)...)
		pushed := 0
		for conn.Push(msg) {
			if pushed++; pushed > 10 {
				t.Fatal("Push takes messages without a bound")
			}
		}
		if pushed < 3 {
			t.Errorf("%d messages of 10 KiB were taken, want 3", pushed)
		}
		for range pushed {
			c.hear(string(msg[12:]))
		}
		synctest.Wait()
		if !conn.Push([]byte("0123456789abmore")) {
			t.Error("Push takes nothing after the client has read")
		}
		c.hear("more")
		conn.Last([]byte("0123456789ablast"))
		conn.Push([]byte("0123456789abafter"))
		c.hear("last")
		c.send(servertest.Frame(append([]byte{0, 1, 6 << 3, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "ask"...)))
		c.ask(7, "a.example")
		c.wantEndAfter(5 * time.Second)
	})
}

// A response waits until the largest PUSH has room behind it.
func TestStatefulResponseLeavesRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := newStateful()
		h := servePipes(t, server.TCPConfig{Stateful: st}, nil)
		c := h.dial()
		c.say("add")
		conn := <-st.conns
		largest := append(make([]byte, 12), strings.Repeat("x", 16382-12)...)
		if !conn.Push(largest) {
			t.Fatal("the first PUSH has no room")
		}
		var sent atomic.Bool
		go func() { sent.Store(conn.SendMessage([]byte("0123456789abresponse"))) }()
		synctest.Wait()
		assert.Equal(t, "a response before the client has read", false, sent.Load())
		c.hear(string(largest[12:]))
		c.hear("response")
		synctest.Wait()
		assert.Equal(t, "the response", true, sent.Load())
		conn.SendMessage([]byte("0123456789absecond"))
		assert.Equal(t, "a PUSH behind a response", true, conn.Push(largest))
		c.hear("second")
		c.hear(string(largest[12:]))
	})
}

// A session with a lasting operation is not idle: others are evicted first.
func TestStatefulIsNotEvicted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := servePipes(t, server.TCPConfig{Stateful: newStateful(), MaxSessions: 2}, nil)
		lasting, idle := h.dialFrom("192.0.2.1"), h.dialFrom("192.0.2.2")
		lasting.say("add")
		time.Sleep(time.Second)
		idle.ask(1, "a.example")
		idle.wantReplies(reply{1, "a.example"})
		time.Sleep(time.Second)
		later := h.dialFrom("192.0.2.3")
		later.ask(1, "b.example")
		later.wantReplies(reply{1, "b.example"})
		idle.wantEnd()
		lasting.say("work")
	})
}

// The end of the server ends the sessions first.
func TestStatefulEnds(t *testing.T) {
	t.Parallel()
	st := newStateful()
	h := serveTCP(t, server.TCPConfig{Stateful: st}, nil)
	h.dial().say("add")
	h.stop()
	assert.Equal(t, "calls of EndAll", int32(1), st.ended.Load())
	assert.Equal(t, "sessions closed", int32(1), st.closed.Load())
}
