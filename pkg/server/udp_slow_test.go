// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/server/servertest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A leaver is a handler whose workers leave every query to the test, but those for
// break.test: at the end of a batch with one they panic. What they put off meanwhile
// is noted when it is flushed.
type leaver struct {
	mu      sync.Mutex // guards the fields below
	left    []leftQuery
	changed sync.Cond
	flushed int
}

// A leftQuery is one that the test has to reply to.
type leftQuery struct {
	query []byte
	to    wire.Replier
}

func newLeaver() *leaver {
	l := new(leaver)
	l.changed.L = &l.mu
	return l
}

// NewWorker implements server.Handler.
func (l *leaver) NewWorker() server.Worker { return &leaverWorker{leaver: l} }

// take waits for n queries and takes them.
func (l *leaver) take(n int) []leftQuery {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.left) < n {
		l.changed.Wait()
	}
	taken := slices.Clone(l.left[:n])
	l.left = l.left[n:]
	return taken
}

// flushes is how many of what workers put off were flushed.
func (l *leaver) flushes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flushed
}

// Flush implements wire.Flusher.
func (l *leaver) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flushed++
}

type leaverWorker struct {
	*leaver

	query  []byte
	batch  wire.SendBatch
	broken bool
}

func (l *leaverWorker) AnswerFromMemory(pkt []byte, _ *wire.Peer, _ time.Time, dst []byte) ([]byte, wire.Verdict) {
	l.query = slices.Clone(pkt)
	return dst, wire.Missed
}

func (l *leaverWorker) Resolve(_ *wire.Peer, _ time.Time, to wire.Replier) {
	l.batch.Add(l.leaver)
	if servertest.Name(l.query) == "break.test" {
		l.broken = true
		to.Reply(nil, &l.batch)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left = append(l.left, leftQuery{l.query, to})
	l.changed.Broadcast()
}

func (l *leaverWorker) Flush(time.Time) {
	if l.broken {
		l.broken = false
		panic("asked to at the end of a batch")
	}
	l.batch.Flush()
}

// TestUDPGathersSlowReplies replies to many queries with one Later. They leave when
// it is flushed, and before only what there is no room for. A second reply to a query
// is none.
func TestUDPGathersSlowReplies(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		queries int
		size    int // bytes of a reply
		early   int // replies that leave before the flush
	}{
		{"one", 1, 100, 0},
		{"as many as one system call takes", 64, 100, 0},
		{"one more", 65, 100, 64},
		{"many", 150, 512, 128},
		{"large ones", 20, 4096, 16},
		{"larger than there is room for", 3, 40_000, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newLeaver()
			u := listenUDP(t, server.UDPConfig{Handler: h, Readers: 1})
			stop := run(t, u)
			var clients []*net.UDPConn
			want := map[string]bool{}
			for id := range tt.queries {
				if id%8 == 0 { // few enough for a client's socket
					clients = append(clients, dialUDP(t, u.Addr()))
				}
				write(t, clients[len(clients)-1], servertest.Query(uint16(id), "left.test"))
				want[fmt.Sprint(id/8, " ", id)] = true
			}
			var batch wire.SendBatch
			for _, q := range h.take(tt.queries) {
				q.to.Reply(servertest.AppendReply(nil, q.query, tt.size), &batch)
				q.to.Reply(servertest.AppendReply(nil, q.query, tt.size), &batch)
			}
			if got := u.Stats().Sent; got != uint64(tt.early) {
				t.Errorf("%d replies left before the flush, want %d", got, tt.early)
			}
			batch.Flush()
			if got := u.Stats(); got.Sent != uint64(tt.queries) || got.Unsent != 0 {
				t.Errorf("stats %+v, want %d sent", got, tt.queries)
			}
			for id := range tt.queries {
				reply := read(t, clients[id/8])
				key := fmt.Sprint(id/8, " ", servertest.ID(reply))
				if !want[key] || len(reply) != tt.size {
					t.Fatalf("client %d got %d bytes, id %d: not his, or a second time", id/8, len(reply), servertest.ID(reply))
				}
				delete(want, key)
			}
			stop()
		})
	}
}

// TestUDPLateReplies replies when the server has ended: nothing is sent, and
// nothing breaks.
func TestUDPLateReplies(t *testing.T) {
	t.Parallel()
	h := newLeaver()
	u := listenUDP(t, server.UDPConfig{Handler: h, DrainTimeout: 20 * time.Millisecond})
	stop := run(t, u)
	c := dialUDP(t, u.Addr())
	for id := range 3 {
		write(t, c, servertest.Query(uint16(id), "left.test"))
	}
	queries := h.take(3)
	stop()
	var batch wire.SendBatch
	for _, q := range queries {
		q.to.Reply(q.query, &batch)
	}
	batch.Flush()
	if got := u.Stats(); got.Sent != 0 || got.Unsent != 3 {
		t.Errorf("stats %+v, want 3 unsent", got)
	}
}

// TestUDPDrainsWhatIsGathered stops a server that holds a reply back: Run ends when
// it was flushed, so that it still finds its socket open.
func TestUDPDrainsWhatIsGathered(t *testing.T) {
	t.Parallel()
	h := newLeaver()
	u := listenUDP(t, server.UDPConfig{Handler: h})
	stop := run(t, u)
	c := dialUDP(t, u.Addr())
	write(t, c, servertest.Query(1, "left.test"))
	var batch wire.SendBatch
	q := h.take(1)[0]
	q.to.Reply(q.query, &batch)
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	select {
	case <-stopped:
		t.Fatal("Run ended with a reply held back")
	case <-time.After(30 * time.Millisecond):
	}
	batch.Flush()
	read(t, c)
	<-stopped
}

// TestPanicAtTheEndOfABatch breaks workers where they let go what they put off. The
// server goes on, and what was put off leaves nevertheless.
func TestPanicAtTheEndOfABatch(t *testing.T) {
	t.Parallel()
	t.Run("udp", func(t *testing.T) {
		t.Parallel()
		h := newLeaver()
		u := listenUDP(t, server.UDPConfig{Handler: h})
		stop := run(t, u)
		c := dialUDP(t, u.Addr())
		for id := range 20 {
			write(t, c, servertest.Query(uint16(id), "break.test"))
			write(t, c, servertest.Query(uint16(id), "left.test"))
			var batch wire.SendBatch
			q := h.take(1)[0]
			q.to.Reply(q.query, &batch)
			batch.Flush()
			if got := read(t, c); servertest.ID(got) != uint16(id) || servertest.Name(got) != "left.test" {
				t.Fatalf("got id %d of %s, want id %d of left.test", servertest.ID(got), servertest.Name(got), id)
			}
		}
		stop()
		if panics := u.Stats().Panics; panics == 0 || panics > 20 || h.flushes() != 40 {
			t.Errorf("%d panics, %d queries let go, want 1 to 20, as batches were cut, and 40", panics, h.flushes())
		}
	})
	t.Run("tcp", func(t *testing.T) {
		t.Parallel()
		h := newLeaver()
		s := listenTCP(t, server.TCPConfig{Handler: h})
		cancel := run(t, s)
		for range 3 {
			c, err := net.Dial("tcp", s.Addr().String())
			assert.NoError(t, err)
			_ = c.SetDeadline(time.Now().Add(testTimeout))
			write(t, c, servertest.Frame(servertest.Query(1, "break.test")))
			if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("read: %v, want the end of the session", err)
			}
			_ = c.Close()
		}
		cancel()
		if panics := s.Stats().Panics; panics != 3 || h.flushes() != 3 {
			t.Errorf("%d panics, %d queries let go, want 3 and 3", panics, h.flushes())
		}
	})
}
