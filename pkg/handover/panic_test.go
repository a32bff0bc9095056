// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/task"
)

// TestServerPanics has each function of a server's configuration panic once: the agent goes on, and hands over to the next
// client. A panic in Release does not keep it from handing over.
func TestServerPanics(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		on   func(c *ServerConfig, panics func())
		do   func(t *testing.T, n *Client) // up to the panic
		took bool                          // n takes over nevertheless
	}{
		{name: "snapshot", on: func(c *ServerConfig, panics func()) {
			c.Snapshot = func(context.Context) error { panics(); return nil }
		}, do: func(t *testing.T, n *Client) {
			t.Helper()
			if err := n.Snapshot(t.Context()); err == nil || err.Error() != task.ErrPanic.Error() {
				t.Errorf("a snapshot: %v", err)
			}
			mustSockets(t, n) // the conversation goes on
			n.Close()
		}},
		{name: "offers", on: func(c *ServerConfig, panics func()) {
			offers := c.Offers
			c.Offers = func() ([]Offer, error) { panics(); return offers() }
		}, do: func(t *testing.T, n *Client) {
			t.Helper()
			if _, err := n.Sockets(t.Context()); err == nil {
				t.Error("got sockets")
			}
			n.Close()
		}},
		{name: "lost", on: func(c *ServerConfig, panics func()) {
			c.SuccessorLost = func(context.Context) { panics() }
		}, do: func(t *testing.T, n *Client) {
			t.Helper()
			mustSockets(t, n)
			n.Close()
		}},
		{name: "release", took: true, on: func(c *ServerConfig, panics func()) {
			c.Release = func(context.Context, Claim) { panics() }
		}, do: func(t *testing.T, n *Client) {
			t.Helper()
			mustSockets(t, n)
			if err := n.TakeOver(t.Context(), Claim{Agent: "new"}); err != nil {
				t.Errorf("taking over: %v", err)
			}
		}},
		{name: "clock", on: func(c *ServerConfig, panics func()) {
			c.Now = func() time.Time { panics(); return time.Now() }
		}, do: func(t *testing.T, n *Client) {
			t.Helper()
			n.Close()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var armed atomic.Bool
			var log proctest.Output
			path := socketPath(t)
			o := newOldWith(t, path, "old", 1, func(c *ServerConfig) {
				c.Log = slog.New(slog.NewTextHandler(&log, nil))
				tt.on(c, func() {
					if armed.CompareAndSwap(true, false) {
						panic("a defect of " + tt.name)
					}
				})
			})
			n, err := connect(t, path, "new")
			if err != nil {
				t.Fatal(err)
			}
			armed.Store(true)
			if tt.name == "clock" { // it is asked for the next time that there is a limit
				_, _ = connect(t, path, "other")
			}
			tt.do(t, n)
			eventually(t, "the defect is counted", func() bool { return o.recorder.Stats().Panics == 1 })
			if got := log.String(); !strings.Contains(got, "a defect of "+tt.name) || !strings.Contains(got, "panic_test.go") {
				t.Errorf("the log has neither the panic nor its stack:\n%s", got)
			}
			if tt.took {
				<-o.ended
				return
			}
			var next *Client
			eventually(t, "the next one is admitted", func() bool {
				next, err = connect(t, path, "next")
				return err == nil
			})
			mustSockets(t, next)
			if err := next.TakeOver(t.Context(), Claim{Agent: "next"}); err != nil {
				t.Errorf("the next one: %v", err)
			}
		})
	}
}

// A panickyHandler panics at one message.
type panickyHandler struct {
	slog.Handler
	at    string
	times *atomic.Int32
}

// Handle implements slog.Handler.
func (h panickyHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == h.at && h.times.Add(1) == 1 {
		panic("a defect of logging")
	}
	return h.Handler.Handle(ctx, r)
}

// panickyAt has the server panic as it logs a message for the first time.
func panickyAt(message string) func(*ServerConfig) {
	return func(c *ServerConfig) {
		c.Log = slog.New(panickyHandler{slog.NewTextHandler(io.Discard, nil), message, new(atomic.Int32)}) //nolint:sloglint // the handler that discards is not asked
	}
}

// TestListeningPanic has a panic when the server has begun to listen: it accepts clients nevertheless.
func TestListeningPanic(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	o := newOldWith(t, path, "old", 1, panickyAt("handover socket listening"))
	n := mustConnect(t, path, "new")
	mustSockets(t, n)
	if err := n.TakeOver(t.Context(), Claim{Agent: "new"}); err != nil {
		t.Error(err)
	}
	if got := o.recorder.Stats().Panics; got != 1 {
		t.Errorf("%d defects are counted, want 1", got)
	}
}

// TestClientPanic has a panic as the client receives a message: it receives the next one.
func TestClientPanic(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	o := newOld(t, path, "old", 1)
	var log proctest.Output
	var recorder Recorder
	n, err := Connect(t.Context(), ClientConfig{
		Path: path, Agent: "new", Now: time.Now, Recorder: &recorder, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	var calls atomic.Int32
	n.receive = func(limit time.Duration) (*message, []*os.File, error) {
		if calls.Add(1) == 1 {
			panic("a defect of receiving")
		}
		return n.conn.receive(limit)
	}
	mustSockets(t, n)
	eventually(t, "the defect is counted", func() bool { return recorder.Stats().Panics == 1 })
	if closed(n.PredecessorLeaving()) {
		t.Error("it is asked to hurry")
	}
	leaving := make(chan bool, 1)
	go func() { leaving <- o.Shutdown(context.WithoutCancel(t.Context()), 10*time.Second) }()
	select {
	case <-n.PredecessorLeaving():
	case <-time.After(10 * time.Second):
		t.Fatal("it does not receive any more")
	}
	if err := n.TakeOver(t.Context(), Claim{Agent: "new"}); err != nil || errors.Is(err, errPredecessorEnded) {
		t.Errorf("taking over: %v", err)
	}
	if !<-leaving {
		t.Error("the old one does not report that it has handed over")
	}
	if !strings.Contains(log.String(), "a defect of receiving") {
		t.Errorf("the log has no panic:\n%s", log.String())
	}
}

// TestPanicAfterHandover has a panic once the sockets are handed over: this agent still ends its part.
func TestPanicAfterHandover(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	o := newOldWith(t, path, "old", 1, panickyAt("handed over"))
	n := mustConnect(t, path, "new")
	mustSockets(t, n)
	if err := n.TakeOver(t.Context(), Claim{Agent: "new"}); err != nil && !PredecessorEnded(err) {
		t.Errorf("taking over: %v", err)
	}
	select {
	case <-o.ended:
	case <-time.After(10 * time.Second):
		t.Fatal("it does not report that it has handed over")
	}
}

// TestClientPanicsAlways has a panic at each message of the other agent: the client gives up, and Close does not wait.
func TestClientPanicsAlways(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	newOld(t, path, "old", 1)
	var recorder Recorder
	n, err := Connect(t.Context(), ClientConfig{Path: path, Agent: "new", Now: time.Now, Recorder: &recorder})
	if err != nil {
		t.Fatal(err)
	}
	n.receive = func(time.Duration) (*message, []*os.File, error) { panic("a defect of receiving") }
	mustSockets(t, n)
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Close()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("Close still waits")
	}
	if got := recorder.Stats().Panics; got != maxPanics {
		t.Errorf("%d defects are counted, want %d", got, maxPanics)
	}
}
