// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBoundSession reads what the kernel keeps for a session at most.
func TestBoundSession(t *testing.T) {
	t.Parallel()
	s, err := NewTCP(TCPConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0"), Handler: noLanes{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	client, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	session, err := s.listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = session.Close() }()
	raw, err := session.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for name, option := range map[string]int{"receive": unix.SO_RCVBUF, "send": unix.SO_SNDBUF} {
		var got int
		var failed error
		err := raw.Control(func(fd uintptr) { got, failed = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, option) })
		if err != nil || failed != nil || got != 2*sessionBuffer {
			t.Errorf("it may %s %d bytes (%v, %v), want %d", name, got, err, failed, 2*sessionBuffer)
		}
	}
}
