// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"io"
	"log/slog"
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
