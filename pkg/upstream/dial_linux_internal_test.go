// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
)

// Packets carry the mark from the first one on, in the test's own network namespace.
func TestMark(t *testing.T) {
	t.Parallel()
	for _, ip := range []string{"127.0.0.1", "::1"} {
		for _, mark := range []uint32{0, 0x1000, 0x80001000} {
			t.Run(ip+" "+slog.AnyValue(mark).String(), func(t *testing.T) {
				t.Parallel()
				enterNamespace(t)
				var log bytes.Buffer
				dial := newCommon(Config{Mark: mark, Log: slog.New(slog.NewTextHandler(&log, nil))}).Dial
				for network, arrive := range map[string]func(*testing.T, netip.Addr, dialFunc) uint32{"udp": arriveUDP, "tcp": arriveTCP} {
					assert.Equal(t, network+" arrives with mark", mark, arrive(t, netip.MustParseAddr(ip), dial))
				}
				if log.Len() > 0 {
					t.Errorf("logged %s", &log)
				}
			})
		}
	}
}

// Without the capability, sockets are opened without a mark, and one log line says why.
func TestMarkWithoutCapability(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread() // not unlocked: the thread without capabilities ends with the test
	var none [2]unix.CapUserData
	assert.NoError(t, unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]))
	var log bytes.Buffer
	dial := newCommon(Config{Mark: 0x1000, Log: slog.New(slog.NewTextHandler(&log, nil))}).Dial
	for range 3 {
		if got := arriveUDP(t, netip.MustParseAddr("127.0.0.1"), dial); got != 0 {
			t.Errorf("mark %#x over UDP", got)
		}
		server, err := net.Listen("tcp", "127.0.0.1:0")
		assert.NoError(t, err)
		conn, err := dial(t.Context(), "tcp", server.Addr().(*net.TCPAddr).AddrPort())
		assert.NoError(t, err)
		_, _ = conn.Close(), server.Close()
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "NET_ADMIN") || !strings.Contains(text, "level=ERROR") {
		t.Errorf("logged %q, want one line that names NET_ADMIN", text)
	}
}

type dialFunc = func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)

// enterNamespace moves the test into its own network namespace, where accepted sockets inherit the mark of the first
// packet. The thread ends with the test.
func enterNamespace(t *testing.T) {
	t.Helper()
	nodetest.EnterNamespace(t)
	assert.NoError(t, os.WriteFile("/proc/sys/net/ipv4/tcp_fwmark_accept", []byte("1"), 0o644))
}

// arriveUDP sends a packet and returns its mark on arrival.
func arriveUDP(t *testing.T, ip netip.Addr, dial dialFunc) uint32 {
	t.Helper()
	server, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, 0)))
	assert.NoError(t, err)
	defer func() { _ = server.Close() }()
	withFD(t, server, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVMARK, 1) })
	conn, err := dial(t.Context(), "udp", server.LocalAddr().(*net.UDPAddr).AddrPort())
	assert.NoError(t, err)
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("query")); err != nil {
		t.Fatal(err)
	}
	_ = server.SetReadDeadline(time.Now().Add(10 * time.Second))
	data, oob := make([]byte, 16), make([]byte, 128)
	_, n, _, _, err := server.ReadMsgUDPAddrPort(data, oob)
	assert.NoError(t, err)
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	assert.NoError(t, err)
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_MARK {
			return binary.NativeEndian.Uint32(m.Data)
		}
	}
	t.Fatalf("no mark in %v", messages)
	return 0
}

// arriveTCP connects and returns the mark of the accepted socket.
func arriveTCP(t *testing.T, ip netip.Addr, dial dialFunc) uint32 {
	t.Helper()
	server, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, 0)))
	assert.NoError(t, err)
	defer func() { _ = server.Close() }()
	conn, err := dial(t.Context(), "tcp", server.Addr().(*net.TCPAddr).AddrPort())
	assert.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_ = server.SetDeadline(time.Now().Add(10 * time.Second))
	accepted, err := server.AcceptTCP()
	assert.NoError(t, err)
	defer func() { _ = accepted.Close() }()
	mark := 0
	withFD(t, accepted, func(fd int) (err error) {
		mark, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK)
		return err
	})
	return uint32(mark)
}

// withFD calls f with the descriptor of a socket.
func withFD(t *testing.T, conn syscall.Conn, f func(fd int) error) {
	t.Helper()
	raw, err := conn.SyscallConn()
	assert.NoError(t, err)
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
}
