// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/server/servertest"
)

// TestTCPDrainGreeted stops a server whose clients have connected and not sent a query yet: it reads from them for a short time.
func TestTCPDrainGreeted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		age   time.Duration // of the session when the server is to stop
		after time.Duration // from then on until the client asks; 0: it does not
		lasts time.Duration // from then on until the session ends
	}{
		{name: "it asks at once", after: time.Millisecond, lasts: time.Millisecond},
		{name: "it asks in time", age: 20 * time.Millisecond, after: 70 * time.Millisecond, lasts: 70 * time.Millisecond},
		{name: "it sends nothing", age: 20 * time.Millisecond, lasts: 80 * time.Millisecond},
		{name: "it has sent nothing for long", age: time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := servePipes(t, server.TCPConfig{}, nil)
				c := w.dial()
				time.Sleep(tt.age)
				stopped := time.Now()
				go w.stop()
				if tt.after > 0 {
					time.Sleep(tt.after)
					c.ask(1, "a.example", "b.example")
					c.wantReplies(reply{1, "a.example"}, reply{2, "b.example"})
				}
				c.wantEnd()
				assert.Equal(t, "the session lasted for", tt.lasts, time.Since(stopped))
			})
		})
	}
}

// TestTCPDrainHalfAFrame stops a server while its client has sent half of its first query.
func TestTCPDrainHalfAFrame(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := servePipes(t, server.TCPConfig{}, nil)
			c := w.dial()
			frame := queries(1, "a.example")
			c.send(frame[:3])
			stopped := time.Now()
			go w.stop()
			time.Sleep(30 * time.Millisecond)
			want := 100 * time.Millisecond
			if whole {
				c.send(frame[3:])
				c.wantReplies(reply{1, "a.example"})
				want = 30 * time.Millisecond
			}
			c.wantEnd()
			assert.Equal(t, fmt.Sprintf("whole: %t, the session lasted for", whole), want, time.Since(stopped))
		})
	}
}

// A lateListener stops the server just before its first session sets a deadline, which then undoes that of the
// stop.
type lateListener struct {
	net.Listener
	stop func()
}

// Accept implements net.Listener.
func (l *lateListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &lateConn{Conn: conn, stop: l.stop, stopped: make(chan struct{})}, nil
}

type lateConn struct {
	net.Conn
	stop    func()
	stopped chan struct{} // the deadline of the stop was set
	calls   int           // the test's goroutines take turns
}

// SetReadDeadline implements net.Conn. The first call is the session's, the second that of the stop.
func (c *lateConn) SetReadDeadline(at time.Time) error {
	c.calls++
	switch c.calls {
	case 1:
		go c.stop()
		<-c.stopped
	case 2:
		defer close(c.stopped)
	}
	return c.Conn.SetReadDeadline(at)
}

// TestTCPDrainGreetedLate stops a server as a session is about to wait for its client.
func TestTCPDrainGreetedLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pipes := servertest.NewListener()
		late := &lateListener{Listener: pipes}
		w := startTCP(t, server.TCPConfig{Listener: late, IdleTimeout: time.Minute}, nil, pipes)
		late.stop = w.stop
		c := w.dial()
		began := time.Now()
		c.wantEnd()
		if lasted := time.Since(began); lasted > 100*time.Millisecond {
			t.Errorf("the session lasted for %s, want 100 ms", lasted)
		}
		w.stop()
		if cut := w.Stats().DrainCut; cut != 0 {
			t.Errorf("%d sessions were cut", cut)
		}
	})
}
