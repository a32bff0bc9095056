// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/server"
)

// noQueries is the handler of servers that do not run.
type noQueries struct{}

func (noQueries) NewWorker() server.Worker { return nil }

// TestForeignSockets has another process bind the agent's address and take all its queries: it is named, and gets none.
func TestForeignSockets(t *testing.T) {
	t.Parallel()
	at := netip.MustParseAddrPort("127.0.0.1:0")
	u, err := server.NewUDP(server.UDPConfig{Addr: at, Handler: noQueries{}, Readers: 1})
	assert.NoError(t, err)
	assert.NoError(t, u.Listen(t.Context()))
	defer u.Close()
	s, err := server.NewTCP(server.TCPConfig{Addr: u.Addr(), Handler: noQueries{}})
	assert.NoError(t, err)
	assert.NoError(t, s.Listen(t.Context()))
	defer s.Close()
	var log strings.Builder
	f := &ForeignSockets{UDP: []*server.UDP{u}, TCP: []*server.TCP{s}, Log: slog.New(slog.NewTextHandler(&log, nil))}
	expect := func(when string, want ...string) {
		t.Helper()
		f.read(t.Context())
		var got []string
		for _, s := range f.Status() {
			got = append(got, s.Process+" "+s.Socket)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || len(status.Problems(&status.Status{Foreign: f.Status(), Config: status.Config{LastOK: true}}, nil, nil, nil, nil)) != len(want) {
			t.Errorf("%s: foreign sockets %q, want %q", when, got, want)
		}
	}
	expect("alone")
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
				t.Error(err)
			}
		})
	}}
	bind := func(at netip.AddrPort) *net.UDPConn {
		t.Helper()
		conn, err := lc.ListenPacket(context.Background(), "udp", at.String())
		assert.NoError(t, err)
		return conn.(*net.UDPConn)
	}
	elsewhere := bind(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), u.Addr().Port()))
	defer func() { _ = elsewhere.Close() }()
	expect("another address")
	other := bind(u.Addr())
	raw, err := other.SyscallConn()
	assert.NoError(t, err)
	second := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 1}}
	err = raw.Control(func(fd uintptr) {
		err := unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: 1, Filter: &second[0]})
		if err != nil {
			t.Error(err)
		}
	})
	assert.NoError(t, err)
	expect("beside another", fmt.Sprintf("node.test (process %d) udp://%s", os.Getpid(), u.Addr()))
	c, err := net.Dial("udp", u.Addr().String())
	assert.NoError(t, err)
	defer func() { _ = c.Close() }()
	if _, err := c.Write([]byte("query")); err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		if n, _, err := unix.Recvfrom(int(fd), make([]byte, 16), unix.MSG_DONTWAIT); err == nil {
			t.Errorf("the other process got %d bytes", n)
		}
	})
	assert.NoError(t, err)
	if f.Conflict(u) == nil {
		t.Error("more sockets may be opened beside another process's")
	}
	assert.NoError(t, other.Close())
	expect("alone again")
	if err := f.Conflict(u); err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "foreign socket on the agent"); n != 1 {
		t.Errorf("%d lines name the process:\n%s", n, log.String())
	}
}
