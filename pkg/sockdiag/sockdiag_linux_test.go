// SPDX-License-Identifier: Apache-2.0

package sockdiag_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/sockdiag"
)

// TestAtPort opens sockets of all kinds at one port, and one at another.
func TestAtPort(t *testing.T) {
	t.Parallel()
	conn := func(network, at string) syscall.Conn {
		t.Helper()
		c, err := net.ListenPacket(network, at)
		assert.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c.(syscall.Conn)
	}
	at := proctest.FreeAddr(t) // of UDP and TCP
	first := conn("udp4", at.String())
	conn("udp4", "127.0.0.1:0") // of another port
	six := conn("udp6", fmt.Sprintf("[::1]:%d", at.Port()))
	two := conn("udp4", fmt.Sprintf("127.0.0.2:%d", at.Port()))
	ln, err := net.Listen("tcp4", at.String())
	assert.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	for _, network := range []string{"udp", "tcp"} { // neither the client's end nor the session is listed
		c, err := net.Dial(network, at.String())
		assert.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
	}
	found, err := sockdiag.ListBound(at.Port())
	assert.NoError(t, err)
	sockdiag.AddProcesses(found, "/proc")
	var got, want []string
	for _, s := range found {
		if s.UID != os.Getuid() || s.PID != os.Getpid() || s.Program != "sockdiag.test" {
			t.Errorf("%+v is not known as this process's", s)
		}
		got = append(got, fmt.Sprint(s.TCP, s.Local, s.Inode))
	}
	for _, c := range []struct {
		tcp  bool
		conn syscall.Conn
		at   string
	}{{false, first, "127.0.0.1"}, {false, two, "127.0.0.2"}, {false, six, "::1"}, {true, ln.(syscall.Conn), "127.0.0.1"}} {
		raw, err := c.conn.SyscallConn()
		assert.NoError(t, err)
		inode, err := sockdiag.Inode(raw)
		assert.NoError(t, err)
		want = append(want, fmt.Sprint(c.tcp, netip.AddrPortFrom(netip.MustParseAddr(c.at), at.Port()), inode))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("sockets %v, want %v", got, want)
	}
}

// TestName looks at processes that may not be seen, too. Process 16 has another network namespace, so it comes last.
func TestName(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	for name, text := range map[string]string{"16/comm": "inherits it\n", "17/comm": "node-cache\n", "18/comm": "other\n", "notes/comm": "ended\n"} {
		path := filepath.Join(proc, name)
		assert.NoError(t, errors.Join(os.MkdirAll(filepath.Join(filepath.Dir(path), "fd"), 0o755), os.WriteFile(path, []byte(text), 0o600)))
	}
	assert.NoError(t, os.Mkdir(filepath.Join(proc, "16/ns"), 0o755))
	for name, to := range map[string]string{"16/ns/net": "net:[2]", "16/fd/3": "socket:[104]", "17/fd/3": "socket:[100]", "17/fd/4": "/dev/null", "18/fd/3": "socket:[104]", "notes/fd/3": "socket:[10]"} {
		assert.NoError(t, os.Symlink(to, filepath.Join(proc, name)))
	}
	list := []sockdiag.Socket{{Inode: 100}, {Inode: 10, UID: 1000}, {Inode: 104}, {Inode: 104}}
	sockdiag.AddProcesses(list, proc)
	for i, want := range []string{"node-cache (process 17)", "a process of user 1000", "other (process 18)", "other (process 18)"} {
		assert.Equal(t, fmt.Sprintf("socket %d is of", list[i].Inode), want, list[i].Owner())
	}
}

func TestTakes(t *testing.T) {
	t.Parallel()
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, tt := range []struct {
		local  string
		v4, v6 bool
	}{
		{local: "192.0.2.1:53", v4: true},
		{local: "0.0.0.0:53", v4: true},
		{local: "[2001:db8::1]:53", v6: true},
		{local: "[::]:53", v4: true, v6: true},
		{local: "192.0.2.2:53"},
	} {
		s := sockdiag.Socket{Local: netip.MustParseAddrPort(tt.local)}
		if s.Accepts(v4) != tt.v4 || s.Accepts(v6) != tt.v6 {
			t.Errorf("%s takes %t, %t, want %t, %t", tt.local, s.Accepts(v4), s.Accepts(v6), tt.v4, tt.v6)
		}
	}
}

// BenchmarkOn lists one port beside 15,000 other UDP sockets.
func BenchmarkOn(b *testing.B) {
	for range 15000 {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			b.Skip(err)
		}
		b.Cleanup(func() { _ = c.Close() })
	}
	for b.Loop() {
		if _, err := sockdiag.ListBound(53); err != nil {
			b.Fatal(err)
		}
	}
}
