// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/server/servertest"
	"github.com/nodecache/node-cache/pkg/wire"
)

func TestTCPAnswersOutOfOrder(t *testing.T) {
	t.Parallel()
	w := serveTCP(t, server.TCPConfig{}, map[string]servertest.Rule{"slow.example": {Action: servertest.Hold}})
	c := w.dial()
	c.ask(1, "slow.example", "quick.example", "slow.example", "quick.example")
	c.wantReplies(reply{2, "quick.example"}, reply{4, "quick.example"})
	c.ask(5, "quick.example")
	c.wantReplies(reply{5, "quick.example"})
	w.handler.AwaitHeld("slow.example", 2)
	c.closeWrite() // what is outstanding is answered nevertheless
	w.handler.Release("slow.example")
	c.wantReplies(reply{1, "slow.example"}, reply{3, "slow.example"})
	c.wantEnd()
	w.stop()
	w.wantStats(server.TCPStats{Accepted: 1, Queries: 5})
}

// A countingListener notes the writes of its connections.
type countingListener struct {
	net.Listener
	mu     sync.Mutex // guards writes
	writes []int      // their sizes
}

type countingConn struct {
	net.Conn
	listener *countingListener
}

// listenCounting returns a countingListener on a loopback socket.
func listenCounting(t *testing.T) *countingListener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	return &countingListener{Listener: ln}
}

func (l *countingListener) sizes() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.writes)
}

func (l *countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return countingConn{Conn: conn, listener: l}, nil
}

func (c countingConn) Write(b []byte) (int, error) {
	c.listener.mu.Lock()
	c.listener.writes = append(c.listener.writes, len(b))
	c.listener.mu.Unlock()
	return c.Conn.Write(b)
}

func TestTCPAnswersOneReadWithOneWrite(t *testing.T) {
	t.Parallel()
	ln := listenCounting(t)
	w := startTCP(t, server.TCPConfig{Listener: ln}, nil, nil)
	c := w.dial()
	names, want := make([]string, 64), make([]reply, 64)
	for i := range names {
		names[i] = fmt.Sprintf("n%d.example", i)
		want[i] = reply{uint16(i), names[i]}
	}
	c.ask(0, names...)
	c.wantReplies(want...)
	assert.Equal(t, "writes for one batch", 1, len(ln.sizes()))
}

func TestTCPLargeFrames(t *testing.T) {
	t.Parallel()
	w := serveTCP(t, server.TCPConfig{}, map[string]servertest.Rule{
		"large.example":  {Size: 65535},
		"missed.example": {Size: 65535, Action: servertest.Inline},
		"over.example":   {Size: 65536},
	})
	c := w.dial()
	query := append(servertest.Query(2, "huge.example"), make([]byte, 65000)...)
	var sending sync.WaitGroup
	sending.Go(func() {
		_, _ = c.Write(append(queries(1, "a.example"), servertest.Frame(query)...))
		_, _ = c.Write(queries(3, "large.example", "missed.example", "over.example", "z.example"))
	})
	defer sending.Wait()
	got := make(map[uint16]int)
	for range 5 {
		msg := c.receive()
		got[servertest.ID(msg)] = len(msg)
	}
	want := map[uint16]int{1: 27, 2: len(query), 3: 65535, 4: 65535, 6: 27}
	assert.Same(t, "sizes of replies by ID", want, got)
	assert.Equal(t, "replies were too long for a frame", 1, w.Stats().Oversized)
}

// One read asks for two megabytes: they are not gathered for one write.
func TestTCPManyLargeAnswers(t *testing.T) {
	t.Parallel()
	ln := listenCounting(t)
	w := startTCP(t, server.TCPConfig{Listener: ln}, map[string]servertest.Rule{"large.example": {Size: 20000}}, nil)
	c := w.dial()
	names := make([]string, 100)
	want := make([]reply, len(names))
	for i := range names {
		names[i] = "large.example"
		want[i] = reply{uint16(i), names[i]}
	}
	c.ask(0, names...)
	c.wantReplies(want...)
	for _, size := range ln.sizes() {
		if size > 4*20002 { // the fourth answer passes 64 KiB
			t.Errorf("a write of %d bytes", size)
		}
	}
}

func TestTCPShortFrames(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		frame []byte
	}{
		{"empty", []byte{0, 0}},
		{"one byte", []byte{0, 1, 0}},
		{"one byte less than a header", append([]byte{0, 11}, make([]byte, 11)...)},
		{"with much behind it", append([]byte{0, 3}, make([]byte, 100_000)...)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := serveTCP(t, server.TCPConfig{}, map[string]servertest.Rule{"slow.example": {Action: servertest.Hold}})
			c := w.dial()
			c.send(append(queries(1, "slow.example", "quick.example"), tt.frame...))
			w.handler.AwaitHeld("slow.example", 1)
			c.wantReplies(reply{2, "quick.example"})
			w.handler.Release("slow.example")
			c.wantReplies(reply{1, "slow.example"})
			c.wantEnd()
			_ = c.Close()
			w.stop()
			w.wantStats(server.TCPStats{Accepted: 1, Queries: 2, ShortFrames: 1})
		})
	}
}

func TestTCPCutByFIN(t *testing.T) {
	t.Parallel()
	whole := queries(2, "b.example")
	for _, tt := range []struct {
		name string
		cut  int
	}{{"nothing begun", 0}, {"half a length", 1}, {"a length alone", 2}, {"half a message", 20}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := serveTCP(t, server.TCPConfig{}, nil)
			c := w.dial()
			c.send(append(queries(1, "a.example"), whole[:tt.cut]...))
			c.closeWrite()
			c.wantReplies(reply{1, "a.example"})
			c.wantEnd()
			w.stop()
			w.wantStats(server.TCPStats{Accepted: 1, Queries: 1})
		})
	}
}

func TestTCPResetHarmsNoOther(t *testing.T) {
	t.Parallel()
	w := serveTCP(t, server.TCPConfig{}, map[string]servertest.Rule{"slow.example": {Action: servertest.Hold}})
	other := w.dial()
	other.ask(1, "slow.example")
	w.handler.AwaitHeld("slow.example", 1)
	for i := range 20 {
		c := w.dial()
		c.send(append(queries(1, "slow.example", "quick.example"), 0, 50, 1))
		w.handler.AwaitHeld("slow.example", 2+i)
		if err := c.socket.(*net.TCPConn).SetLinger(0); err != nil { // Close sends RST
			t.Fatal(err)
		}
		_ = c.socket.Close()
	}
	w.eventually("the reset sessions are gone", func(s server.TCPStats) bool { return s.Open == 1 })
	w.handler.Release("slow.example")
	other.wantReplies(reply{1, "slow.example"})
	other.ask(2, "quick.example")
	other.wantReplies(reply{2, "quick.example"})
}

func TestTCPQueriesWithoutAnswer(t *testing.T) {
	t.Parallel()
	w := serveTCP(t, server.TCPConfig{MaxPipeline: 2}, map[string]servertest.Rule{
		"drop.example":    {Action: servertest.Drop},
		"silence.example": {Action: servertest.NoReply},
	})
	c := w.dial()
	c.ask(1, "drop.example", "silence.example", "silence.example", "silence.example", "drop.example", "a.example")
	c.wantReplies(reply{6, "a.example"})
	c.closeWrite()
	c.wantEnd()
	w.stop()
	w.wantStats(server.TCPStats{Accepted: 1, Queries: 6})
}

func TestTCPPanicEndsOneSession(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		action servertest.Action
	}{{"in Fast", servertest.Panic}, {"in Slow", servertest.PanicResolve}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			w := serveTCP(t, server.TCPConfig{Log: slog.New(slog.NewTextHandler(&log, nil))}, map[string]servertest.Rule{
				"bad.example":  {Action: tt.action},
				"slow.example": {Action: servertest.Hold},
			})
			other, c := w.dial(), w.dial()
			other.ask(1, "slow.example")
			c.ask(1, "slow.example")
			w.handler.AwaitHeld("slow.example", 2)
			c.ask(2, "bad.example")
			c.wantEnd()
			w.handler.Release("slow.example")
			other.wantReplies(reply{1, "slow.example"})
			again := w.dial()
			again.ask(3, "quick.example")
			again.wantReplies(reply{3, "quick.example"})
			assert.Equal(t, "panics were counted", 1, w.Stats().Panics)
			w.stop()
			for _, want := range []string{"level=ERROR", "where=tcp", "stack=", "servertest"} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("the log lacks %q:\n%s", want, log.String())
				}
			}
		})
	}
}

// Replies come from many goroutines while the session answers hits: none is lost,
// doubled or torn.
func TestTCPRepliesFromManyGoroutines(t *testing.T) {
	t.Parallel()
	w := serveTCP(t, server.TCPConfig{}, map[string]servertest.Rule{
		"later.example":  {Action: servertest.Delay, Size: 300},
		"inline.example": {Action: servertest.Inline},
	})
	names := []string{"later.example", "quick.example", "inline.example"}
	for i := range 8 {
		t.Run(fmt.Sprintf("client %d", i), func(t *testing.T) {
			t.Parallel()
			const count = 1500
			c := w.dial()
			c.t = t
			var asking sync.WaitGroup
			defer asking.Wait()
			asking.Go(func() {
				for id := range count {
					_, _ = c.Write(queries(uint16(id), names[id%len(names)]))
				}
				_ = c.socket.(*net.TCPConn).CloseWrite()
			})
			seen := make(map[uint16]bool, count)
			for range count {
				msg := c.receive()
				id := servertest.ID(msg)
				if seen[id] || servertest.Name(msg) != names[int(id)%len(names)] {
					t.Fatalf("reply %d for %q, seen before: %v", id, servertest.Name(msg), seen[id])
				}
				seen[id] = true
			}
			c.wantEnd()
		})
	}
}

func TestTCPPeer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, listen, from string }{
		{"IPv4", "127.0.0.1:0", "127.0.0.1"},
		{"IPv4 over an IPv6 socket", "[::]:0", "127.0.0.1"},
		{"IPv6", "[::1]:0", "::1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if probe, err := net.Listen("tcp", tt.listen); err != nil {
				t.Skipf("this machine has no such address: %v", err)
			} else {
				_ = probe.Close()
			}
			w := serveTCP(t, server.TCPConfig{Addr: netip.MustParseAddrPort(tt.listen)}, nil)
			from := netip.MustParseAddr(tt.from)
			target := netip.AddrPortFrom(from, w.Addr().Port())
			conn, err := net.Dial("tcp", target.String())
			assert.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			c := &tcpClient{Conn: conn, t: t}
			c.ask(1, "a.example", "b.example")
			c.wantReplies(reply{1, "a.example"}, reply{2, "b.example"})
			local := conn.LocalAddr().(*net.TCPAddr).AddrPort()
			want := map[wire.Peer]int{{Addr: netip.AddrPortFrom(from, local.Port()), Stream: true}: 2}
			assert.Same(t, "peers", want, w.handler.Peers(), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }))
		})
	}
}

// Workers belong to batches in progress and not to sessions.
func TestTCPWorkersAreReused(t *testing.T) {
	t.Parallel()
	w := serveTCP(t, server.TCPConfig{}, nil)
	for range 50 {
		c := w.dial()
		c.ask(1, "a.example")
		c.wantReplies(reply{1, "a.example"})
	}
	w.stop()
	// A batch gives its worker back just after its answer left, so the next session may come slightly too early and
	// get a second one.
	if got := w.handler.Workers(); got > 5 {
		t.Errorf("%d workers for 50 sessions that sent queries one after the other", got)
	}
	if got := w.handler.Flushes(); got != 50 {
		t.Errorf("%d flushes for 50 batches", got)
	}
}
