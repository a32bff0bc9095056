// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/server/servertest"
)

func TestTCPMaxPerClient(t *testing.T) {
	t.Parallel()
	w := serveTCP(t, server.TCPConfig{MaxPerClient: 2}, nil)
	for id := range uint16(2) {
		c := w.dial()
		c.ask(id, "a.example")
		c.wantReplies(reply{id, "a.example"})
	}
	w.dial().wantClosed()
	other := w.dialFrom("127.0.0.3")
	other.ask(7, "a.example")
	other.wantReplies(reply{7, "a.example"})
	_ = other.Close()
	w.eventually("the other client left", func(s server.TCPStats) bool { return s.Open == 2 })
	w.wantStats(server.TCPStats{Open: 2, Accepted: 3, Queries: 3, RefusedPerClient: 1})
}

// A session that ended makes room again.
func TestTCPEndedSessionsFreeRoom(t *testing.T) {
	t.Parallel()
	w := serveTCP(t, server.TCPConfig{MaxSessions: 1, MaxPerClient: 1}, nil)
	for id := range uint16(20) {
		c := w.dial()
		c.ask(id, "a.example")
		c.wantReplies(reply{id, "a.example"})
		_ = c.Close()
		w.eventually("the place is free", func(s server.TCPStats) bool { return s.Open == 0 })
	}
}

// On a full table the session idle the longest makes room, never one that waits
// for an answer or has begun a frame.
func TestTCPShedsIdleLongest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := servePipes(t, server.TCPConfig{MaxSessions: 5}, map[string]servertest.Rule{
			"slow.example": {Action: servertest.Hold},
			"soon.example": {Action: servertest.Hold},
		})
		tick := func() { time.Sleep(100 * time.Millisecond) }
		waiting, partial, answered, asked, quiet := w.dial(), w.dial(), w.dial(), w.dial(), w.dial()
		answered.ask(1, "soon.example")
		waiting.ask(1, "slow.example")
		partial.send([]byte{0, 30, 1})
		tick()
		asked.ask(1, "a.example")
		asked.wantReplies(reply{1, "a.example"})
		tick()
		w.handler.Release("soon.example") // asked first of all, idle only now
		answered.wantReplies(reply{1, "soon.example"})
		tick()
		w.dial() // in place of quiet
		quiet.wantEnd()
		tick()
		w.dial() // in place of asked
		asked.wantEnd()
		tick()
		w.dial() // in place of answered
		answered.wantEnd()
		waiting.ask(2, "b.example")
		waiting.wantReplies(reply{2, "b.example"})
		w.handler.Release("slow.example")
		waiting.wantReplies(reply{1, "slow.example"})
		partial.send(make([]byte, 29))
		partial.receive()
		synctest.Wait() // a session is let in just after the one it replaces is closed
		w.wantStats(server.TCPStats{Open: 5, Accepted: 8, Queries: 5, ShedIdle: 3})
	})
}

// Clients that hold all places, with a frame begun or a query under way, lose one to a
// client that has fewer, and not to one of their own.
func TestTCPShedsOfLargestClient(t *testing.T) {
	t.Parallel()
	type held struct {
		client string
		sends  []byte // nil: nothing
	}
	begun, asked := []byte{0, 30, 1}, queries(1, "slow.example")
	for _, tt := range []struct {
		name  string
		held  []held
		after time.Duration
		comes string // the client of the new session
		want  int    // the session that is closed; -1: the new one
	}{
		{"a frame of the client with most", []held{{"a", nil}, {"b", begun}, {"b", begun}}, time.Second, "c", 1},
		{"a frame of an equal", []held{{"a", begun}, {"b", begun}}, time.Second, "a", 0},
		{"an idle one before a frame that has just begun", []held{{"a", begun}, {"a", nil}, {"a", begun}}, 0, "c", 1},
		{"frames that have just begun", []held{{"a", begun}, {"a", begun}, {"b", begun}}, 0, "c", 0},
		{"one of its own before those of clients with fewer", []held{{"a", nil}, {"b", nil}, {"b", nil}}, 0, "b", 1},
		{"at work, of the client with most", []held{{"a", asked}, {"b", asked}, {"b", asked}}, time.Second, "c", 1},
		{"at work, of the client with most, before an idle one of its own", []held{{"a", asked}, {"a", asked}, {"a", asked}, {"b", nil}}, time.Second, "b", 0},
		{"at work, of the client with most, before an idle one of another", []held{{"b", nil}, {"a", asked}, {"a", asked}, {"a", asked}}, time.Second, "c", 1},
		{"not an idle one of a client with fewer", []held{{"a", asked}, {"a", asked}, {"b", nil}}, time.Second, "a", -1},
		{"at work, of the same client", []held{{"a", asked}, {"a", asked}}, time.Second, "a", -1},
		{"at work, of clients with as few", []held{{"a", asked}, {"b", asked}}, time.Second, "c", -1},
		{"at work, for the server itself", []held{{"a", asked}, {"b", asked}}, time.Second, "self", 0},
		{"at work, one more of the server itself", []held{{"self", asked}, {"self", asked}, {"self", asked}, {"a", asked}}, time.Second, "self", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				clients := map[string]string{"a": "192.0.2.1", "b": "192.0.2.2", "c": "192.0.2.3", "self": "192.0.2.53"}
				w := servePipes(t, server.TCPConfig{MaxSessions: len(tt.held), MaxPerClient: 3}, map[string]servertest.Rule{"slow.example": {Action: servertest.Hold}})
				var sessions []*tcpClient
				for _, h := range tt.held {
					c := w.dialFrom(clients[h.client])
					c.send(h.sends)
					sessions = append(sessions, c)
					time.Sleep(time.Millisecond)
				}
				time.Sleep(tt.after)
				late := w.dialFrom(clients[tt.comes])
				if tt.want < 0 {
					late.wantEnd()
				} else {
					_ = sessions[tt.want].SetReadDeadline(time.Now().Add(time.Millisecond)) // at once, not as idle
					sessions[tt.want].wantEnd()
					late.ask(2, "a.example")
					late.wantReplies(reply{2, "a.example"})
				}
				w.handler.Release("slow.example")
				for i, c := range sessions {
					if slices.Equal(tt.held[i].sends, asked) && i != tt.want {
						c.wantReplies(reply{1, "slow.example"})
					}
				}
			})
		})
	}
}

// A hundred clients that began a frame and say no more slow down no other, and are
// gone after FrameTimeout.
func TestTCPHalfOpenFrames(t *testing.T) {
	t.Parallel()
	w := serveTCP(t, server.TCPConfig{FrameTimeout: 200 * time.Millisecond}, nil)
	early := w.dial()
	begun := make([]*tcpClient, 100)
	for i := range begun {
		begun[i] = w.dial()
		begun[i].send([]byte{0xff, 0xff, 0}[:1+i%3])
	}
	for id := range uint16(100) {
		late := w.dial()
		for _, c := range []*tcpClient{early, late} {
			c.ask(id, "a.example")
			c.wantReplies(reply{id, "a.example"})
		}
		_ = late.Close()
	}
	for _, c := range begun {
		c.wantEnd()
		_ = c.Close()
	}
	w.eventually("only the early session is left", func(s server.TCPStats) bool { return s.Open == 1 })
	w.wantStats(server.TCPStats{Open: 1, Accepted: 201, Queries: 200, SlowClosed: 100})
}

// Clients that ask for much and read nothing are closed, whichever way the answers go.
func TestTCPClientsThatDoNotRead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		action servertest.Action
		shut   func(server.TCPStats) bool
	}{
		{"hits", servertest.Answer, func(s server.TCPStats) bool { return s.WriteTimeouts == 1 }},
		{"misses", servertest.Inline, func(s server.TCPStats) bool { return s.WriteTimeouts+s.Overflows == 1 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := serveTCP(t, server.TCPConfig{WriteTimeout: 200 * time.Millisecond}, map[string]servertest.Rule{
				"large.example": {Action: tt.action, Size: 60_000},
			})
			other, c := w.dial(), w.dial()
			names := make([]string, 1000) // 60 MB of answers: more than the kernel buffers
			for i := range names {
				names[i] = "large.example"
			}
			_, _ = c.Write(queries(0, names...)) // may be cut short by the close
			w.eventually("the session is closed", tt.shut)
			c.wantClosed()
			other.ask(1, "a.example")
			other.wantReplies(reply{1, "a.example"})
		})
	}
}

// A client whose kernel has no room for an answer, all of which the server's kernel holds, is closed like one that blocks
// a write.
func TestTCPUnreadInKernel(t *testing.T) {
	t.Parallel()
	w := serveTCP(t, server.TCPConfig{WriteTimeout: 200 * time.Millisecond}, map[string]servertest.Rule{
		"large.example": {Action: servertest.Answer, Size: 8_000},
	})
	small := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 1) })
	}}
	c, err := small.DialContext(t.Context(), "tcp", w.Addr().String())
	assert.NoError(t, err)
	defer func() { _ = c.Close() }()
	if _, err := c.Write(queries(0, "large.example")); err != nil {
		t.Fatal(err)
	}
	w.eventually("the session is closed", func(s server.TCPStats) bool { return s.WriteTimeouts == 1 })
}

// Errors of accept are waited out, at first for 5 ms and never for more than a
// second, and the wait starts small again after a success.
func TestTCPAcceptErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := servePipes(t, server.TCPConfig{}, nil)
		fail := func(n int) time.Duration {
			start := time.Now()
			for range n {
				assert.NoError(t, w.pipes.Fail(&net.OpError{Op: "accept", Err: syscall.ECONNABORTED}))
			}
			c := w.dial()
			took := time.Since(start)
			c.ask(1, "a.example")
			c.wantReplies(reply{1, "a.example"})
			_ = c.Close()
			return took
		}
		for _, tt := range []struct {
			errors int
			want   time.Duration
		}{
			{1, 5 * time.Millisecond},
			{3, 35 * time.Millisecond},
			{8, 1275 * time.Millisecond},
			{10, 3275 * time.Millisecond},
			{1, 5 * time.Millisecond},
		} {
			assert.Equal(t, fmt.Sprintf("after %d errors the next session waited", tt.errors), tt.want, fail(tt.errors))
		}
		assert.Equal(t, "errors were counted", 23, w.Stats().AcceptErrors)
	})
}

// With no descriptor left an idle session gives up its own.
func TestTCPAcceptWithoutDescriptors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := servePipes(t, server.TCPConfig{}, map[string]servertest.Rule{"slow.example": {Action: servertest.Hold}})
		busy, idle := w.dial(), w.dial()
		busy.ask(1, "slow.example")
		synctest.Wait()
		for range 3 {
			assert.NoError(t, w.pipes.Fail(&net.OpError{Op: "accept", Err: syscall.EMFILE}))
		}
		idle.wantEnd()
		w.handler.Release("slow.example")
		busy.wantReplies(reply{1, "slow.example"})
		w.wantStats(server.TCPStats{Open: 1, Accepted: 2, Queries: 1, ShedIdle: 1, AcceptErrors: 3})
	})
}

func TestTCPListenerClosedByAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pipes := servertest.NewListener()
		s := newTCP(t, server.TCPConfig{Listener: pipes, Handler: servertest.New(nil)})
		_ = pipes.Close()
		if err := s.Run(t.Context()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got error %v, want net.ErrClosed", err)
		}
	})
}
