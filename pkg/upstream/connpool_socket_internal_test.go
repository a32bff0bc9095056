// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Queries move after a reset too, which needs a real socket.
func TestConnPoolReset(t *testing.T) {
	t.Parallel()
	s := upstreamtest.New(answerOrRefuse)
	h := newHarness(t, Target{Network: "tcp", Addr: s.Listen(t)}, 1, nil)
	h.ask(t)
	s.SetScript(func(q upstreamtest.Query) upstreamtest.Action {
		if q.Conn == 1 {
			return upstreamtest.Action{Reset: true, Delay: 20 * time.Millisecond}
		}
		return answerOrRefuse(q)
	})
	var all []*pendingAnswer
	for range 100 {
		all = append(all, h.query(t, "www.example."))
	}
	for _, p := range all {
		assert.Equal(t, "answer", "192.0.2.10", p.wait(10e9))
	}
}

// What the kernel does not accept at once is sent later, in order and complete. The sockets have small buffers.
func TestConnPoolSlowPeer(t *testing.T) {
	t.Parallel()
	ln := listenSmall(t)
	start := make(chan struct{})
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		<-start
		echo(conn)
	}()
	h := newHarness(t, Target{Network: "tcp", Addr: ln.Addr().(*net.TCPAddr).AddrPort()}, 1,
		func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
			conn, err := newCommon(Config{}).Dial(ctx, network, addr)
			if err == nil {
				err = conn.(*net.TCPConn).SetWriteBuffer(16 << 10)
			}
			return conn, err
		})
	began := time.Now()
	h.Now = func() time.Time { return began } // a fixed clock keeps all on one connection
	name := strings.Repeat("a123456789b123456789c123456789d123456789e12345678.", 4) + "example."
	var all []*pendingAnswer
	for len(all) < maxInflight {
		var batch wire.SendBatch
		for range 32 {
			all = append(all, h.queryInBatch(t, name, &batch))
		}
		batch.Flush()
	}
	keeps := func() bool {
		p := h.transport.(*connPool)
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.conns[0].open && p.conns[0].link.(*streamConn).writing
	}
	for deadline := time.Now().Add(10 * time.Second); !keeps(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the kernel took all of it, want some left for the writer")
		}
	}
	close(start)
	for _, p := range all {
		if got := p.wait(20e9); got != "192.0.2.66" {
			t.Fatalf("answer %q, want 192.0.2.66", got)
		}
	}
	h.closeIdle(false)
	<-served
}

// listenSmall listens with small socket buffers.
func listenSmall(t *testing.T) net.Listener {
	t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 16<<10) })
	}}
	ln, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}

// echo answers each frame until the connection ends.
func echo(conn net.Conn) {
	in := bufio.NewReaderSize(conn, 64<<10)
	out := bufio.NewWriterSize(conn, 64<<10)
	for {
		if in.Buffered() == 0 && out.Flush() != nil {
			return
		}
		q, err := readFrameOf(in)
		if err != nil {
			return
		}
		r := upstreamtest.Forged(q)
		_, _ = out.Write(binary.BigEndian.AppendUint16(nil, uint16(len(r))))
		_, _ = out.Write(r)
	}
}

// A connection whose peer never reads fails after the write timeout, even while the kernel still accepts data.
func TestConnPoolStuckPeer(t *testing.T) {
	t.Parallel()
	ln := listenSmall(t)
	placed := make(chan struct{})
	h := newHarness(t, Target{Network: "tcp", Addr: ln.Addr().(*net.TCPAddr).AddrPort()}, 1,
		func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
			<-placed // queries that come after it opened would move to another connection
			conn, err := new(net.Dialer).DialContext(context.WithoutCancel(ctx), network, addr.String())
			if err == nil {
				err = conn.(*net.TCPConn).SetWriteBuffer(16 << 10)
			}
			return conn, err
		})
	start := time.Now()
	h.Now = func() time.Time { return start } // a fixed clock keeps all on one connection
	name := strings.Repeat("a123456789b123456789c123456789d123456789e12345678.", 4) + "example."
	var all []*pendingAnswer
	for range maxInflight {
		all = append(all, h.query(t, name))
	}
	close(placed)
	for _, p := range all {
		if got := p.wait(30e9); got != "network" {
			t.Fatalf("outcome %q, want an upstream fault", got)
		}
	}
	took := time.Since(start)
	t.Logf("given up after %v", took)
	if took < writeTimeout {
		t.Errorf("given up after %v, want no less than %v for a write", took, writeTimeout)
	}
}

func readFrameOf(r io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(r, frame)
	return frame, err
}
