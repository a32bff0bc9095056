// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/server/servertest"
)

// Most tests of this file run in virtual time, over pipes. What they measure is exact.

// wantEndAfter wants the server to close the session after d, and not before.
func (c *tcpClient) wantEndAfter(d time.Duration) {
	c.t.Helper()
	start := time.Now()
	c.wantEnd()
	assert.Equal(c.t, "closed after", d, time.Since(start))
}

func TestTCPIdle(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		use  func(*tcpHarness, *tcpClient)
	}{
		{"never used", func(*tcpHarness, *tcpClient) {}},
		{"used", func(_ *tcpHarness, c *tcpClient) {
			for range 5 {
				time.Sleep(9 * time.Second)
				c.ask(1, "a.example")
				c.wantReplies(reply{1, "a.example"})
			}
		}},
		{"waiting for an answer", func(w *tcpHarness, c *tcpClient) {
			c.ask(1, "slow.example")
			time.Sleep(35 * time.Second)
			w.handler.Release("slow.example")
			c.wantReplies(reply{1, "slow.example"})
		}},
		{"waiting for an answer that never comes", func(_ *tcpHarness, c *tcpClient) {
			c.ask(1, "silence.example")
		}},
		{"after a frame in two halves", func(_ *tcpHarness, c *tcpClient) {
			query := queries(1, "a.example")
			c.send(query[:20])
			time.Sleep(2 * time.Second)
			c.send(query[20:])
			c.wantReplies(reply{1, "a.example"})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := servePipes(t, server.TCPConfig{}, map[string]servertest.Rule{
					"slow.example":    {Action: servertest.Hold},
					"silence.example": {Action: servertest.NoReply},
				})
				c := w.dial()
				tt.use(w, c)
				synctest.Wait()
				c.wantEndAfter(10 * time.Second)
				assert.Equal(t, "sessions were closed as idle", 1, w.Stats().IdleClosed)
			})
		})
	}
}

// One byte a second: what counts is when the frame began.
func TestTCPSlowLoris(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		before []string // queries in front of the slow frame
	}{
		{name: "at once"},
		{name: "after hits", before: []string{"a.example", "b.example"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := servePipes(t, server.TCPConfig{}, nil)
				c := w.dial()
				frame := queries(9, "c.example")
				want := make([]reply, len(tt.before))
				for i, name := range tt.before {
					want[i] = reply{uint16(i), name}
				}
				time.Sleep(5 * time.Second)
				c.send(append(queries(0, tt.before...), frame[0]))
				c.wantReplies(want...)
				var dripping sync.WaitGroup
				defer dripping.Wait()
				dripping.Go(func() {
					for i := 1; ; i++ {
						time.Sleep(time.Second)
						if _, err := c.Write(frame[i : i+1]); err != nil {
							return
						}
					}
				})
				c.wantEndAfter(3 * time.Second)
				assert.Equal(t, "sessions were closed as slow", 1, w.Stats().SlowClosed)
			})
		})
	}
}

// Every read ends within a frame, for longer than FrameTimeout: each frame has its
// own clock.
func TestTCPFramesInHalves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := servePipes(t, server.TCPConfig{}, nil)
		c := w.dial()
		const half = 10
		c.send(queries(0, "a.example")[:half])
		for id := range uint16(10) {
			time.Sleep(2 * time.Second)
			c.send(append(queries(id, "a.example")[half:], queries(id+1, "a.example")[:half]...))
			c.wantReplies(reply{id, "a.example"})
		}
	})
}

// While a session is not read because of its misses, the clock of the frame behind
// them stands still.
func TestTCPFrameTimeoutWaitsForPipeline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := servePipes(t, server.TCPConfig{MaxPipeline: 2}, map[string]servertest.Rule{"slow.example": {Action: servertest.Hold}})
		c := w.dial()
		last := queries(3, "quick.example")
		c.send(append(queries(1, "slow.example", "slow.example"), last[:10]...))
		time.Sleep(30 * time.Second)
		w.handler.Release("slow.example")
		c.wantReplies(reply{1, "slow.example"}, reply{2, "slow.example"})
		time.Sleep(2 * time.Second)
		c.send(last[10:])
		c.wantReplies(reply{3, "quick.example"})
	})
}

func TestTCPPipelineLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := servePipes(t, server.TCPConfig{MaxPipeline: 3}, map[string]servertest.Rule{
			"one.example":  {Action: servertest.Hold},
			"slow.example": {Action: servertest.Hold},
		})
		c := w.dial()
		c.ask(1, "quick.example", "one.example", "slow.example", "slow.example", "next.example", "slow.example")
		// The hit in front of the misses leaves before the session stops.
		c.wantReplies(reply{1, "quick.example"})
		synctest.Wait()
		if got := w.handler.Seen("next.example"); got != 0 {
			t.Errorf("with 3 misses outstanding %d queries more were taken", got)
		}
		w.handler.Release("one.example")
		c.wantReplies(reply{2, "one.example"}, reply{5, "next.example"})
		synctest.Wait()
		assert.Equal(t, "misses are outstanding", 3, w.handler.Held("slow.example"))
		w.handler.Release("slow.example")
		c.wantReplies(reply{3, "slow.example"}, reply{4, "slow.example"}, reply{6, "slow.example"})
		assert.Equal(t, "stalls", 2, w.Stats().Stalls)
	})
}

func TestTCPWriteTimeout(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		query string
	}{
		{"of hits", "quick.example"},
		{"of misses", "inline.example"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := servePipes(t, server.TCPConfig{}, map[string]servertest.Rule{"inline.example": {Action: servertest.Inline}})
				c := w.dial()
				c.ask(1, tt.query)
				start := time.Now()
				for w.Stats().Open > 0 {
					time.Sleep(time.Millisecond)
				}
				if got := time.Since(start).Round(10 * time.Millisecond); got != 3*time.Second {
					t.Errorf("closed after %v, want 3s", got)
				}
				assert.Equal(t, "write time-outs", 1, w.Stats().WriteTimeouts)
			})
		})
	}
}

// A client that takes a byte within each WriteTimeout gets everything.
func TestTCPSlowReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := servePipes(t, server.TCPConfig{}, map[string]servertest.Rule{"inline.example": {Action: servertest.Inline}})
		c := w.dial()
		c.ask(1, "quick.example", "inline.example")
		got := make([]byte, 0, 100)
		for len(got) < 2+31+2+32 {
			time.Sleep(2 * time.Second)
			var one [1]byte
			if _, err := io.ReadFull(c, one[:]); err != nil {
				t.Fatalf("after %d bytes: %v", len(got), err)
			}
			got = append(got, one[0])
		}
		if got := w.Stats(); got.WriteTimeouts != 0 || got.Open != 1 {
			t.Errorf("stats %+v, want the session open", got)
		}
	})
}

// Replies never wait for a client that does not read, and what is put by for it is
// bounded.
func TestTCPOverflow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		large := servertest.Rule{Action: servertest.Hold, Size: 60_000} // of 256 KiB five are too many
		w := servePipes(t, server.TCPConfig{}, map[string]servertest.Rule{"first.example": large, "slow.example": large})
		c := w.dial()
		c.ask(1, "first.example", "slow.example", "slow.example", "slow.example", "slow.example")
		w.handler.AwaitHeld("slow.example", 4)
		start := time.Now()
		w.handler.Release("first.example")
		synctest.Wait() // the writer has it, which counts too
		w.handler.Release("slow.example")
		assert.Equal(t, "virtual time that replies took", 0, time.Since(start))
		c.wantClosed()
		synctest.Wait()
		if got := w.Stats(); got.Overflows != 1 || got.Open != 0 {
			t.Errorf("stats %+v, want one overflow and no session", got)
		}
	})
}

// Replies that come while the writer is at work do not touch what it writes.
func TestTCPRepliesWhileWriting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hold := servertest.Rule{Action: servertest.Hold}
		w := servePipes(t, server.TCPConfig{}, map[string]servertest.Rule{
			"a.example": hold, "b.example": hold, "c.example": hold, "d.example": hold,
			"large.example": {Action: servertest.Hold, Size: 5000},
		})
		c := w.dial()
		c.ask(1, "a.example", "b.example", "large.example", "c.example", "d.example")
		synctest.Wait()
		w.handler.Release("a.example")
		c.wantReplies(reply{1, "a.example"})
		w.handler.Release("b.example")
		c.wantReplies(reply{2, "b.example"})
		w.handler.Release("large.example")
		synctest.Wait()
		w.handler.Release("c.example")
		c.wantReplies(reply{3, "large.example"})
		synctest.Wait()
		w.handler.Release("d.example")
		c.wantReplies(reply{4, "c.example"}, reply{5, "d.example"})
	})
}

func TestTCPDrainTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := servePipes(t, server.TCPConfig{}, map[string]servertest.Rule{"slow.example": {Action: servertest.Hold}})
		c, idle := w.dial(), w.dial()
		c.ask(1, "slow.example")
		w.handler.AwaitHeld("slow.example", 1)
		start := time.Now()
		w.stop()
		if got := time.Since(start); got != 5*time.Second {
			t.Errorf("Run returned after %v, want 5s", got)
		}
		c.wantEnd()
		idle.wantEnd()
		w.wantStats(server.TCPStats{Accepted: 2, Queries: 1, DrainCut: 1})
		w.handler.Release("slow.example") // into the void, without harm
	})
}
