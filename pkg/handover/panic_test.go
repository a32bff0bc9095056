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

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/panics"
)

// TestServerPanics has each function of a server's configuration panic once: the agent goes on, and hands over to the next
// client. A panic in Release does not keep it from handing over.
func TestServerPanics(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		on   func(c *Config, panics func())
	}{
		{"snapshot", func(c *Config, panics func()) {
			c.Snapshot = func(context.Context) error { panics(); return nil }
		}},
		{"offers", func(c *Config, panics func()) {
			offers := c.Offers
			c.Offers = func() ([]Socket, error) { panics(); return offers() }
		}},
		{"lost", func(c *Config, panics func()) {
			c.SuccessorLost = func(context.Context) { panics() }
		}},
		{"release", func(c *Config, panics func()) {
			c.Release = func(context.Context, Claim) { panics() }
		}},
		{"clock", func(c *Config, panics func()) {
			c.Now = func() time.Time { panics(); return time.Now() }
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var armed atomic.Bool
			var log proctest.Output
			o, n := pair(t, func(c *Config) {
				c.Log = slog.New(slog.NewTextHandler(&log, nil))
				tt.on(c, func() {
					if armed.CompareAndSwap(true, false) {
						panic("a defect of " + tt.name)
					}
				})
			})
			armed.Store(true)
			switch tt.name {
			case "clock": // it is asked for the next time that there is a limit
				_, _ = connect(t, o.path, "other")
			case "offers":
				if _, err := n.Sockets(t.Context()); err == nil {
					t.Error("got sockets")
				}
			case "snapshot":
				if err := n.Snapshot(t.Context()); err == nil || err.Error() != panics.Err.Error() {
					t.Errorf("a snapshot: %v", err)
				}
				mustSockets(t, n) // the conversation goes on
			default:
				mustSockets(t, n)
			}
			if tt.name == "release" {
				assert.NoError(t, n.TakeOver(t.Context(), Claim{Agent: "new"}))
			} else {
				n.Close()
			}
			proctest.Eventually(t, time.Minute, "the defect is counted", func() bool { return o.recorder.Stats().Panics == 1 })
			if got := log.String(); !strings.Contains(got, "a defect of "+tt.name) || !strings.Contains(got, "panic_test.go") {
				t.Errorf("the log has neither the panic nor its stack:\n%s", got)
			}
			if tt.name == "release" {
				<-o.ended
				return
			}
			var next *Client
			proctest.Eventually(t, time.Minute, "the next one is admitted", func() bool {
				var err error
				next, err = connect(t, o.path, "next")
				return err == nil
			})
			mustSockets(t, next)
			assert.NoError(t, next.TakeOver(t.Context(), Claim{Agent: "next"}))
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
func panickyAt(message string) func(*Config) {
	return func(c *Config) {
		c.Log = slog.New(panickyHandler{slog.NewTextHandler(io.Discard, nil), message, new(atomic.Int32)}) //nolint:sloglint // the handler that discards is not asked
	}
}

// TestLoggingPanics has a panic when the server has begun to listen, and once the sockets are handed over: it hands over
// nevertheless, and ends its part.
func TestLoggingPanics(t *testing.T) {
	t.Parallel()
	for _, message := range []string{"handover socket listening", "handed over"} {
		o, n := pair(t, panickyAt(message))
		mustSockets(t, n)
		if err := n.TakeOver(t.Context(), Claim{Agent: "new"}); err != nil && (message != "handed over" || !predecessorEnded(err)) {
			t.Errorf("%s: taking over: %v", message, err)
		}
		select {
		case <-o.ended:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: it does not report that it has handed over", message)
		}
		assert.Equal(t, message+": defects are counted", 1, o.recorder.Stats().Panics)
	}
}
