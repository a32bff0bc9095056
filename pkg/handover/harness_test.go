// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// An old is an agent that hands over.
type old struct {
	*Server

	path     string
	recorder Recorder
	udp      []*net.UDPConn
	tcp      *net.TCPListener
	stop     context.CancelFunc
	ended    chan struct{}

	mu        sync.Mutex // guards what follows
	claims    []Claim
	lost      int
	snapshots int
}

// newOld starts an agent that hands over. A change is to its server's configuration.
func newOld(t *testing.T, path, name string, sockets int, changes ...func(*Config)) *old {
	t.Helper()
	o := &old{path: path, ended: make(chan struct{})}
	o.open(t, sockets)
	cfg := Config{
		Path: path, Agent: name, Version: "v1", Now: time.Now, Recorder: &o.recorder,
		Snapshot: func(context.Context) error {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.snapshots++
			return nil
		},
		Offers: func() (list []Socket, _ error) {
			for _, u := range o.udp {
				list = append(list, Socket{Listen: Listen{KindUDP, o.addr()}, Raw: raw(t, u)})
			}
			return append(list, Socket{Listen: Listen{KindTCP, o.tcp.Addr().(*net.TCPAddr).AddrPort()}, Raw: raw(t, o.tcp)}), nil
		},
		Release: func(_ context.Context, c Claim) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.claims = append(o.claims, c)
		},
		SuccessorLost: func(context.Context) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.lost++
		},
	}
	for _, change := range changes {
		change(&cfg)
	}
	var err error
	if o.Server, err = NewServer(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	o.stop = cancel
	go func() {
		defer close(o.ended)
		_ = o.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-o.ended
	})
	proctest.Eventually(t, time.Minute, "it listens", func() bool { return o.recorder.Stats().Listening })
	return o
}

// open opens UDP sockets that share a port, and a TCP listener.
func (o *old) open(t *testing.T, sockets int) {
	t.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		e := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return errors.Join(e, err)
	}}
	addr := "127.0.0.1:0"
	for range sockets {
		conn, err := lc.ListenPacket(t.Context(), "udp4", addr)
		assert.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		addr = conn.LocalAddr().String()
		o.udp = append(o.udp, conn.(*net.UDPConn))
	}
	listener, err := lc.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	assert.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	o.tcp = listener.(*net.TCPListener)
}

func (o *old) addr() netip.AddrPort { return o.udp[0].LocalAddr().(*net.UDPAddr).AddrPort() }

func (o *old) seen() (claims []Claim, lost, snapshots int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append(claims, o.claims...), o.lost, o.snapshots
}

func raw(t *testing.T, c syscall.Conn) syscall.RawConn {
	t.Helper()
	r, err := c.SyscallConn()
	assert.NoError(t, err)
	return r
}

func connect(t *testing.T, path, name string) (*Client, error) {
	t.Helper()
	client, err := Connect(t.Context(), Config{Path: path, Agent: name, Version: "v2", Now: time.Now})
	if err == nil {
		t.Cleanup(client.Close)
	}
	return client, err
}

func mustConnect(t *testing.T, path, name string) *Client {
	t.Helper()
	client, err := connect(t, path, name)
	assert.NoError(t, err)
	return client
}

// pair is an agent that hands over and one that is connected to it.
func pair(t *testing.T, changes ...func(*Config)) (*old, *Client) {
	t.Helper()
	o := newOld(t, socketPath(t), "old", 1, changes...)
	return o, mustConnect(t, o.path, "new")
}

func mustSockets(t *testing.T, n *Client) []Socket {
	t.Helper()
	sockets, err := n.Sockets(t.Context())
	assert.NoError(t, err)
	t.Cleanup(func() { Discard(sockets) })
	return sockets
}

func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "handover") //nolint:usetesting // t.TempDir is too long for a socket
	assert.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "h.sock")
}

// send sends numbered datagrams.
func send(t *testing.T, to netip.AddrPort, from, until int) {
	t.Helper()
	for i := from; i < until; i++ {
		conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to)) // another socket of the group each
		assert.NoError(t, err)
		if _, err := fmt.Fprint(conn, i); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
}

// drain reads what the sockets hold. It waits for nothing, and no deadline can come before what is there was read.
func drain(t *testing.T, conns []net.PacketConn) map[string]int {
	t.Helper()
	got := map[string]int{}
	buf := make([]byte, 64)
	for _, c := range conns {
		err := raw(t, c.(syscall.Conn)).Control(func(fd uintptr) {
			for {
				n, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
				if err == nil {
					got[string(buf[:n])]++
				} else if !errors.Is(err, unix.EINTR) {
					return
				}
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
	return got
}

func packetConns(t *testing.T, sockets []Socket) (conns []net.PacketConn) {
	t.Helper()
	for _, s := range sockets {
		if s.Kind != KindUDP {
			continue
		}
		c, err := net.FilePacketConn(s.File)
		assert.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		conns = append(conns, c)
	}
	return conns
}
