// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/server/servertest"
)

// files are other descriptors of sockets, as another process would get them.
func files(t *testing.T, raws ...syscall.RawConn) (list []*os.File) {
	t.Helper()
	for _, raw := range raws {
		err := raw.Control(func(fd uintptr) {
			n, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				t.Error(err)
			}
			list = append(list, os.NewFile(uintptr(n), "socket"))
		})
		assert.NoError(t, err)
	}
	return list
}

// TestUDPHandsOver has one server take the sockets of another again and again, under load, and counts the replies.
func TestUDPHandsOver(t *testing.T) {
	t.Parallel()
	h := servertest.New(map[string]servertest.Rule{"later": {Action: servertest.Delay, After: 30 * time.Millisecond}})
	u, stop := serveUDP(t, h, "127.0.0.1:0")
	addr := u.Addr()
	flood := startUDPFlood(t, addr)
	for range 10 {
		time.Sleep(30 * time.Millisecond)
		next := newUDP(t, server.UDPConfig{Addr: addr, Handler: h, Readers: 1})
		assert.NoError(t, next.Adopt(files(t, u.RawConns()...)))
		if got := len(next.RawConns()); got != 2 {
			t.Fatalf("%d sockets, want both", got)
		}
		stopNext := run(t, next)
		u.HandOver(t.Context())
		before := u.Stats().Received
		time.Sleep(10 * time.Millisecond)
		if after := u.Stats().Received; after != before {
			t.Errorf("%d queries were read after the sockets were given", after-before)
		}
		stop()
		u, stop = next, stopNext
	}
	sent, answered := flood()
	if sent != answered {
		t.Errorf("%d of %d queries were answered", answered, sent)
	}
	stop()
}

// startUDPFlood asks from several ports until it is stopped, and counts.
func startUDPFlood(t *testing.T, addr netip.AddrPort) (stop func() (sent, answered int)) {
	t.Helper()
	const clients = 8
	end := make(chan struct{})
	var group sync.WaitGroup
	var sent, answered [clients]int
	for i := range clients {
		c := dialUDP(t, addr)
		name := "now"
		if i%4 == 0 {
			name = "later"
		}
		asked := make(chan struct{}, 64) // of which as many are under way
		group.Go(func() {
			defer close(asked)
			for id := uint16(0); ; id++ {
				select {
				case <-end:
					return
				case asked <- struct{}{}:
				}
				q := servertest.Query(id, name)
				if _, err := c.Write(q); err != nil {
					t.Error(err)
					return
				}
				sent[i]++
			}
		})
		group.Go(func() {
			buf := make([]byte, 512)
			for range asked {
				if _, err := c.Read(buf); err != nil {
					t.Error(err)
					return
				}
				answered[i]++
			}
		})
	}
	return func() (all, good int) {
		close(end)
		group.Wait()
		for i := range clients {
			all, good = all+sent[i], good+answered[i]
		}
		return all, good
	}
}

// TestUDPHandsOverQueuedDatagrams leaves the datagrams in the sockets' queues to the next server.
func TestUDPHandsOverQueuedDatagrams(t *testing.T) {
	t.Parallel()
	h := servertest.New(nil)
	u := listenUDP(t, server.UDPConfig{Handler: h, Readers: 3})
	next := newUDP(t, server.UDPConfig{Addr: u.Addr(), Handler: h})
	assert.NoError(t, next.Adopt(files(t, u.RawConns()...)))
	clients := make([]*net.UDPConn, 50)
	for i := range clients {
		clients[i] = dialUDP(t, u.Addr())
		write(t, clients[i], servertest.Query(uint16(i), "queued"))
	}
	given, cancel := context.WithCancel(t.Context())
	cancel()
	u.HandOver(given) // before it has read anything
	if err := u.Run(t.Context()); err != nil {
		t.Errorf("Run: %v", err)
	}
	stop := run(t, next)
	for i, c := range clients {
		buf := make([]byte, 512)
		if _, err := c.Read(buf); err != nil || binary.BigEndian.Uint16(buf) != uint16(i) {
			t.Fatalf("client %d: %v", i, err)
		}
	}
	stop()
}

// TestUDPOpensMissingSockets opens the sockets that are missing once the server reads, under load.
func TestUDPOpensMissingSockets(t *testing.T) {
	t.Parallel()
	h := servertest.New(nil)
	u, stop := serveUDP(t, h, "127.0.0.1:0")
	next := newUDP(t, server.UDPConfig{Addr: u.Addr(), Handler: h, Readers: 5})
	assert.NoError(t, next.Adopt(files(t, u.RawConns()...)))
	flood := startUDPFlood(t, u.Addr())
	cancel := run(t, next)
	u.HandOver(t.Context())
	stop()
	for range 2 { // the second has nothing to add
		assert.NoError(t, next.AddReaders(t.Context()))
	}
	time.Sleep(50 * time.Millisecond)
	assert.Equal(t, "sockets", 5, len(next.RawConns()))
	if sent, answered := flood(); sent != answered {
		t.Errorf("%d of %d queries were answered", answered, sent)
	}
	cancel()
	if err := next.AddReaders(t.Context()); err == nil {
		if got := len(next.RawConns()); got != 5 {
			t.Errorf("%d sockets after the end", got)
		}
	}
}

// TestAdoptAfterListening takes the sockets of another server after sockets of one's own were given up again.
func TestAdoptAfterListening(t *testing.T) {
	t.Parallel()
	u := listenUDP(t, server.UDPConfig{Handler: servertest.New(nil), Readers: 2})
	u.Close()
	other, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	assert.NoError(t, err)
	defer func() { _ = other.Close() }()
	raw, err := other.SyscallConn()
	assert.NoError(t, err)
	assert.NoError(t, u.Adopt(files(t, raw)))
	defer u.Close()
	if got := len(u.RawConns()); got != 1 || u.Addr() != other.LocalAddr().(*net.UDPAddr).AddrPort() {
		t.Errorf("%d sockets at %s, want the one that was adopted", got, u.Addr())
	}
}

func TestAdoptOther(t *testing.T) {
	t.Parallel()
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	assert.NoError(t, err)
	defer func() { _ = udp.Close() }()
	tcp, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	assert.NoError(t, err)
	defer func() { _ = tcp.Close() }()
	udpRaw, _ := udp.SyscallConn()
	tcpRaw, _ := tcp.SyscallConn()
	elsewhere := netip.MustParseAddrPort("127.0.0.1:1")
	u := newUDP(t, server.UDPConfig{Addr: elsewhere, Handler: servertest.New(nil)})
	for name, raws := range map[string][]syscall.RawConn{"nothing": nil, "another port": {udpRaw}, "another kind": {tcpRaw}} {
		if err := u.Adopt(files(t, raws...)); err == nil {
			t.Errorf("%s was adopted", name)
		}
	}
	s := newTCP(t, server.TCPConfig{Addr: elsewhere, Handler: servertest.New(nil)})
	if err := s.Adopt(files(t, udpRaw)[0]); err == nil {
		t.Error("a UDP socket was adopted for TCP")
	}
}

// TestTCPHandsOver has a second server accept at the address while the sessions of the first go on: from the first one's socket, or
// from a socket of its own.
func TestTCPHandsOver(t *testing.T) {
	t.Parallel()
	for _, adopts := range []bool{true, false} {
		t.Run(fmt.Sprintf("adopts %t", adopts), func(t *testing.T) {
			t.Parallel()
			first := serveTCP(t, server.TCPConfig{}, nil)
			addr, c := first.Addr(), first.dial()
			c.ask(1, "a.example")
			c.wantReplies(reply{1, "a.example"})
			next := newTCP(t, server.TCPConfig{Addr: addr, Handler: servertest.New(nil)})
			if adopts {
				if err := next.Adopt(files(t, first.RawConn())[0]); err != nil || next.Addr() != addr {
					t.Fatalf("adopted %s, want %s: %v", next.Addr(), addr, err)
				}
				run(t, next)
			}
			first.HandOver(t.Context(), testTimeout)
			if !adopts {
				assert.NoError(t, next.Listen(t.Context()))
				run(t, next)
			}
			for id := range uint16(10) {
				late := first.dial() // the same address
				late.ask(id, "b.example")
				late.wantReplies(reply{id, "b.example"})
			}
			if got := next.Stats().Accepted; got != 10 {
				t.Errorf("the next server has accepted %d sessions of 10", got)
			}
			c.ask(7, "a.example")
			c.wantReplies(reply{7, "a.example"})
			assert.Equal(t, "sessions are open at the first server", 1, first.Stats().Open)
			_ = c.Close()
		})
	}
}

// TestTCPHandedOverSessionsEnd checks that a server that has handed over its socket ends its sessions when they time out, or when it stops.
func TestTCPHandedOverSessionsEnd(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		stay time.Duration
		stop bool
	}{{"over", 50 * time.Millisecond, false}, {"ended", time.Hour, true}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := serveTCP(t, server.TCPConfig{}, nil)
			c := w.dial()
			c.ask(1, "a.example")
			c.wantReplies(reply{1, "a.example"})
			w.HandOver(t.Context(), tt.stay)
			if tt.stop {
				go w.stop()
			}
			if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Errorf("%d bytes, %v: want the end of the session", n, err)
			}
			if _, err := net.DialTimeout("tcp", w.Addr().String(), time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("a new session: %v, want that it is refused", err)
			}
		})
	}
}
