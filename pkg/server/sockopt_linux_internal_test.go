// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
)

// TestBoundSession reads what the kernel keeps for a session at most.
func TestBoundSession(t *testing.T) {
	t.Parallel()
	s, err := NewTCP(TCPConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0"), Handler: noWorkers{}})
	assert.NoError(t, err)
	assert.NoError(t, s.Listen(t.Context()))
	defer s.Close()
	client, err := net.Dial("tcp", s.Addr().String())
	assert.NoError(t, err)
	defer func() { _ = client.Close() }()
	session, err := s.listener.Accept()
	assert.NoError(t, err)
	defer func() { _ = session.Close() }()
	raw, err := session.(*net.TCPConn).SyscallConn()
	assert.NoError(t, err)
	for _, tt := range []struct {
		name                string
		level, option, want int
	}{
		{"bytes not read by the session", unix.SOL_SOCKET, unix.SO_RCVBUF, 2 * sessionBuffer},
		{"bytes not read by the client", unix.SOL_SOCKET, unix.SO_SNDBUF, 2 * sessionBuffer},
		{"milliseconds for the client to read", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 6000},
	} {
		var got int
		var failed error
		err := raw.Control(func(fd uintptr) { got, failed = unix.GetsockoptInt(int(fd), tt.level, tt.option) })
		if err != nil || failed != nil || got != tt.want {
			t.Errorf("%d %s (%v, %v), want %d", got, tt.name, err, failed, tt.want)
		}
	}
}
