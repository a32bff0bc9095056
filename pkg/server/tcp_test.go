// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/server/servertest"
)

func TestNewTCPErrors(t *testing.T) {
	t.Parallel()
	handler := servertest.New(nil)
	addr := netip.MustParseAddrPort("127.0.0.1:0")
	for _, tt := range []struct {
		name string
		cfg  server.TCPConfig
		want string
	}{
		{"no handler", server.TCPConfig{Addr: addr}, "a TCP server needs a handler"},
		{"no address", server.TCPConfig{Handler: handler}, "a TCP server needs an address or a listener"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, err := server.NewTCP(tt.cfg); err == nil || err.Error() != tt.want {
				t.Errorf("got error %v, want %s", err, tt.want)
			}
		})
	}
}

func TestTCPListenErrors(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0") // without SO_REUSEPORT: not shared
	assert.NoError(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	addr := taken.Addr().(*net.TCPAddr).AddrPort()
	s := newTCP(t, server.TCPConfig{Addr: addr, Handler: servertest.New(nil)})
	err = s.Listen(t.Context())
	if want := "listening on tcp " + addr.String() + ": bind: address already in use"; err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "Listen was not called") {
		t.Errorf("Run without a listener: got error %v", err)
	}
}

// A lookedListener counts the last looks of sessions at what has come: what comes after it is not read.
type lookedListener struct {
	net.Listener
	looks atomic.Int32
}

// Accept implements net.Listener.
func (l *lookedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &lookedConn{conn.(*net.TCPConn), l}, nil
}

type lookedConn struct {
	*net.TCPConn
	listener *lookedListener
}

// SyscallConn implements syscall.Conn. A session asks for it when it is to end, and only then.
func (c *lookedConn) SyscallConn() (syscall.RawConn, error) {
	raw, err := c.TCPConn.SyscallConn()
	return &lookedRaw{raw, c.listener}, err
}

type lookedRaw struct {
	syscall.RawConn
	listener *lookedListener
}

// Control implements syscall.RawConn.
func (r *lookedRaw) Control(look func(uintptr)) error {
	defer r.listener.looks.Add(1)
	return r.RawConn.Control(look)
}

// What came before the end is answered, what comes later is not read, and the
// client sees an orderly end, not a reset, though it goes on sending.
func TestTCPDrain(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	assert.NoError(t, err)
	listener := &lookedListener{Listener: ln}
	w := serveTCP(t, server.TCPConfig{Listener: listener}, map[string]servertest.Rule{"slow.example": {Action: servertest.Hold}})
	c, idle := w.dial(), w.dial()
	idle.ask(1, "a.example")
	idle.wantReplies(reply{1, "a.example"})
	c.ask(1, "slow.example", "quick.example", "slow.example")
	c.wantReplies(reply{2, "quick.example"})
	w.handler.AwaitHeld("slow.example", 2)

	stopped := make(chan struct{})
	go func() {
		w.stop()
		close(stopped)
	}()
	idle.wantEnd() // so the drain has begun
	_ = idle.Close()
	w.eventually("only the busy session is left, and is ended too", func(s server.TCPStats) bool {
		return s.Open == 1 && listener.looks.Load() == 2 // they are ended one by one, in any order
	})
	c.ask(4, "late.example")
	w.handler.Release("slow.example")
	c.wantReplies(reply{1, "slow.example"}, reply{3, "slow.example"})
	c.wantEnd()
	_ = c.Close()
	<-stopped
	if got := w.handler.Seen("late.example"); got != 0 {
		t.Errorf("%d queries were read after the end", got)
	}
	w.wantStats(server.TCPStats{Accepted: 2, Queries: 4})
	if conn, err := net.Dial("tcp", w.Addr().String()); err == nil {
		_ = conn.Close()
		t.Error("the server still accepts")
	}
}

// TestTCPDrainUnread stops a server while a session has no time to read: what its client
// has sent by then is answered, of a client that ends with it too.
func TestTCPDrainUnread(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		sends int // queries that wait
		half  bool
	}{
		{name: "one", sends: 1},
		{name: "more than one read takes", sends: 600},
		{name: "the last of the client's", sends: 1, half: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := serveTCP(t, server.TCPConfig{MaxPipeline: 1}, map[string]servertest.Rule{"slow.example": {Action: servertest.Hold}})
			c, idle := w.dial(), w.dial()
			c.ask(1, "slow.example")
			w.handler.AwaitHeld("slow.example", 1) // as many as may be outstanding: it reads no more
			want := []reply{{1, "slow.example"}}
			for i := range tt.sends {
				c.ask(uint16(2+i), "waits.example")
				want = append(want, reply{uint16(2 + i), "waits.example"})
			}
			if tt.half {
				c.closeWrite()
			}
			w.eventually("both sessions are accepted", func(s server.TCPStats) bool { return s.Accepted == 2 }) // the end of a listener resets others
			go w.stop()
			idle.wantEnd() // so the drain has begun
			w.handler.Release("slow.example")
			c.wantReplies(want...)
			c.wantEnd()
		})
	}
}

// The session is stopped where it waits for a place in its pipeline, with whole
// frames read: they count as accepted.
func TestTCPDrainWithFullPipeline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := servePipes(t, server.TCPConfig{MaxPipeline: 1}, map[string]servertest.Rule{
			"later.example": {Action: servertest.Delay, After: time.Second},
		})
		c := w.dial()
		c.ask(1, "later.example", "later.example", "quick.example", "later.example")
		go w.stop()
		c.wantReplies(reply{1, "later.example"}, reply{2, "later.example"}, reply{3, "quick.example"}, reply{4, "later.example"})
		c.wantEnd()
	})
}

// TestTCPSetLimits changes the limits of a running server.
func TestTCPSetLimits(t *testing.T) {
	t.Parallel()
	w := serveTCP(t, server.TCPConfig{MaxPerClient: 1}, nil)
	ask := func() {
		c := w.dial()
		c.ask(1, "a.test")
		c.wantReplies(reply{1, "a.test"})
	}
	ask()
	w.dial().wantClosed()
	w.SetLimits(8, 2, 0, time.Minute)
	ask()
}
