// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/server/servertest"
)

// streams is a rule for a name answered by count messages of size bytes. The fourth
// byte of each tells its turn.
func streams(count, size int) map[string]servertest.Rule {
	return map[string]servertest.Rule{
		"all.example":  {Action: servertest.Stream, Count: count, Size: size},
		"slow.example": {Action: servertest.Hold},
	}
}

// wantStreams reads count messages of each stream by ID, in order.
func (c *tcpClient) wantStreams(count int, ids ...uint16) {
	c.t.Helper()
	turn := make(map[uint16]int, len(ids))
	for range count * len(ids) {
		msg := c.receive()
		id := servertest.ID(msg)
		if int(msg[3]) != turn[id]&0xff {
			c.t.Fatalf("stream %d: message %d came in the place of %d", id, msg[3], turn[id])
		}
		turn[id]++
	}
	for _, id := range ids {
		if turn[id] != count {
			c.t.Fatalf("stream %d: %d messages, want %d", id, turn[id], count)
		}
	}
}

func TestTCPStream(t *testing.T) {
	t.Parallel()
	for _, size := range []int{40, 3000, 16 << 10, 65535} {
		t.Run(fmt.Sprintf("messages of %d bytes", size), func(t *testing.T) {
			t.Parallel()
			w := serveTCP(t, server.TCPConfig{}, streams(100, size))
			c := w.dial()
			c.ask(1, "all.example")
			c.wantStreams(100, 1)
			c.ask(2, "quick.example")
			c.wantReplies(reply{2, "quick.example"})
			c.ask(3, "all.example", "all.example")
			c.wantStreams(100, 3, 4)
			c.closeWrite()
			c.wantEnd()
			w.stop()
			w.wantStats(server.TCPStats{Accepted: 1, Queries: 4})
		})
	}
}

// A message longer than a frame ends the stream and nothing else.
func TestTCPStreamOversized(t *testing.T) {
	t.Parallel()
	w := serveTCP(t, server.TCPConfig{}, streams(3, 65536))
	c := w.dial()
	c.ask(1, "all.example", "quick.example")
	c.wantReplies(reply{2, "quick.example"})
	c.closeWrite()
	c.wantEnd()
	w.stop()
	w.wantStats(server.TCPStats{Accepted: 1, Queries: 2, Oversized: 1})
}

// A stream never keeps the session from reading, nor its other answers for longer
// than it takes to send what is put by and what takes its place meanwhile.
func TestTCPStreamLetsOthersThrough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const fit = 6 // messages of 10,002 bytes in 64 KiB
		w := servePipes(t, server.TCPConfig{}, streams(200, 10_000))
		c := w.dial()
		c.ask(1, "all.example", "slow.example")
		synctest.Wait()
		assert.Equal(t, "messages were taken for a client that does not read", fit, w.handler.Sent("all.example"))
		w.handler.Release("slow.example")
		asked := map[uint16]int{2: 0} // when, in messages of the stream read
		for turn, others := 0, 0; turn < 200 || others < len(asked); {
			next := uint16(100 + turn)
			if _, done := asked[next]; !done && turn%25 == 0 && turn < 200 {
				asked[next] = turn
				c.ask(next, "quick.example")
				synctest.Wait()
			}
			msg := c.receive()
			id := servertest.ID(msg)
			if id != 1 {
				if late := turn - asked[id]; late > 2*fit {
					t.Errorf("the reply to query %d came %d messages of the stream after it", id, late)
				}
				others++
				continue
			}
			if int(msg[3]) != turn {
				t.Fatalf("message %d in the place of %d", msg[3], turn)
			}
			turn++
		}
		if len(asked) != 9 {
			t.Errorf("%d queries were answered beside the stream", len(asked))
		}
	})
}

// A client that takes nothing is given up after WriteTimeout, one that takes a byte
// now and then after ten of them for one message. What sends to it ends.
func TestTCPStreamToSlowClient(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		read func(io.Reader) // while the session lives
		want time.Duration
	}{
		{"that reads nothing", func(io.Reader) {}, 3 * time.Second},
		{"that reads a byte every two seconds", func(r io.Reader) {
			var one [1]byte
			for {
				time.Sleep(2 * time.Second)
				if _, err := r.Read(one[:]); err != nil {
					return
				}
			}
		}, 30 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := servePipes(t, server.TCPConfig{}, streams(100, 20_000))
				c := w.dial()
				c.ask(1, "all.example")
				start := time.Now()
				var reading sync.WaitGroup
				defer reading.Wait()
				reading.Go(func() { tt.read(c) })
				for w.Stats().Open > 0 {
					time.Sleep(time.Millisecond)
				}
				assert.Equal(t, "closed after", tt.want, time.Since(start).Round(10*time.Millisecond))
				assert.Equal(t, "write time-outs", 1, w.Stats().WriteTimeouts)
				if got := w.handler.Sent("all.example"); got != 3 {
					t.Errorf("%d messages were taken, want the 3 that fit", got)
				}
				w.stop() // waits for the stream
			})
		})
	}
}

// A client that reads slowly gets everything, however long it takes.
func TestTCPStreamToSteadyClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := servePipes(t, server.TCPConfig{}, streams(50, 20_000))
		c := w.dial()
		c.ask(1, "all.example")
		for turn := range 50 {
			time.Sleep(2900 * time.Millisecond)
			if msg := c.receive(); int(msg[3]) != turn {
				t.Fatalf("message %d in the place of %d", msg[3], turn)
			}
		}
	})
}

func TestTCPStreamClientGone(t *testing.T) {
	t.Parallel()
	w := serveTCP(t, server.TCPConfig{}, streams(1000, 60_000))
	other := w.dial()
	other.ask(1, "slow.example")
	for i := range 10 {
		c := w.dial()
		c.ask(1, "all.example")
		for range i {
			c.receive()
		}
		if i%2 == 0 {
			if err := c.socket.(*net.TCPConn).SetLinger(0); err != nil { // Close sends RST
				t.Fatal(err)
			}
		}
		_ = c.Close()
	}
	w.eventually("the sessions of clients that went are gone", func(s server.TCPStats) bool { return s.Open == 1 })
	w.handler.Violations() // waits for the streams
	w.handler.AwaitHeld("slow.example", 1)
	w.handler.Release("slow.example")
	other.wantReplies(reply{1, "slow.example"})
}

// What was begun is finished when the server stops, for as long as DrainTimeout.
func TestTCPStreamDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := servePipes(t, server.TCPConfig{}, streams(20, 60_000))
		brisk, slow := w.dial(), w.dial()
		brisk.ask(1, "all.example")
		slow.ask(1, "all.example")
		synctest.Wait()
		start := time.Now()
		var stopping sync.WaitGroup
		stopping.Go(w.stop)
		stopping.Go(func() {
			for {
				time.Sleep(time.Second)
				if _, err := io.CopyN(io.Discard, slow, 30_000); err != nil {
					return
				}
			}
		})
		synctest.Wait()
		brisk.wantStreams(20, 1)
		brisk.wantEnd()
		assert.Equal(t, "virtual time in which a client that reads was served", 0, time.Since(start))
		stopping.Wait()
		if got := time.Since(start).Truncate(time.Second); got != 5*time.Second {
			t.Errorf("Run and the slow client ended after %v, want 5s", got)
		}
		assert.Same(t, "stats", server.TCPStats{Accepted: 2, Queries: 2, DrainCut: 1}, w.Stats())
	})
}
