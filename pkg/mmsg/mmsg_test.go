// SPDX-License-Identifier: Apache-2.0

package mmsg

import (
	"bytes"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
)

const (
	count = 4
	size  = 100
)

// pair returns the descriptors of two UDP sockets. The first one is connected to the second one.
func pair(t *testing.T) (from, to uintptr) {
	t.Helper()
	receiver, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	assert.NoError(t, err)
	sender, err := net.DialUDP("udp4", nil, receiver.LocalAddr().(*net.UDPAddr))
	assert.NoError(t, err)
	var fds []uintptr
	for _, conn := range []*net.UDPConn{sender, receiver} {
		t.Cleanup(func() { _ = conn.Close() })
		raw, err := conn.SyscallConn()
		assert.NoError(t, err)
		assert.NoError(t, raw.Control(func(fd uintptr) { fds = append(fds, fd) }))
	}
	return fds[0], fds[1]
}

// A rejected datagram does not stop the others, and a datagram that does not fit is cut and marked.
func TestSendAndReceive(t *testing.T) {
	t.Parallel()
	from, to := pair(t)
	in, out := NewInbox(count, size), NewOutbox(count, 2*size)
	if n, errno := in.Receive(to); n != 0 || errno != unix.EAGAIN {
		t.Fatalf("%d datagrams from an empty socket: %v", n, errno)
	}
	for round := range byte(3) {
		sent := [][]byte{{round}, make([]byte, 70_000), bytes.Repeat([]byte{round}, size), bytes.Repeat([]byte{round}, size+1)}
		for _, datagram := range sent {
			out.Add(append(out.Buffer(), datagram...))
		}
		if out.Len() != count || out.Fits(0) {
			t.Fatalf("%d datagrams, and room for more: %v", out.Len(), out.Fits(0))
		}
		for i, datagram := range sent {
			if !bytes.Equal(out.Datagram(i), datagram) {
				t.Errorf("datagram %d has changed", i)
			}
		}
		rejected, errno := out.Send(from, 0)
		if rejected != 1 || errno != syscall.EMSGSIZE {
			t.Fatalf("datagram %d was rejected: %v, want the second one", rejected, errno)
		}
		if _, errno := out.Send(from, rejected+1); errno != 0 {
			t.Fatal(errno)
		}
		out.Reset()
		if n, errno := in.Receive(to); n != 3 || errno != 0 {
			t.Fatalf("received %d: %v, want 3", n, errno)
		}
		for i, want := range [][]byte{sent[0], sent[2], sent[2]} {
			if !bytes.Equal(in.Datagram(i), want) || in.Truncated(i) != (i == 2) {
				t.Errorf("datagram %d: %v, truncated %v", i, in.Datagram(i), in.Truncated(i))
			}
		}
	}
}

// An empty outbox holds no references and has room for what does not fit its buffer.
func TestOutboxKeepsNothing(t *testing.T) {
	t.Parallel()
	b := NewOutbox(count, 2*size)
	name := byte(1)
	for range 2 {
		for range count {
			m := b.Add(append(b.Buffer(), make([]byte, size)...))
			m.Header.Name, m.Header.Namelen, m.Header.Control = &name, 1, &name
			m.Header.SetControllen(1)
		}
		b.Reset()
		for i := range b.messages {
			h := &b.messages[i].Header
			if h.Name != nil || h.Namelen != 0 || h.Control != nil || h.Controllen != 0 || h.Iov.Base != nil {
				t.Fatalf("message %d: %+v", i, h)
			}
		}
		if b.Len() != 0 || b.used != 0 || !b.Fits(2*size) || b.Fits(2*size+1) {
			t.Errorf("%d datagrams, %d bytes", b.Len(), b.used)
		}
	}
}

// A batch allocates nothing.
func TestAllocs(t *testing.T) {
	from, to := pair(t)
	in, out := NewInbox(count, size), NewOutbox(count, count*size)
	allocs := testing.AllocsPerRun(100, func() {
		for range count {
			out.Add(append(out.Buffer(), "datagram"...))
		}
		if _, errno := out.Send(from, 0); errno != 0 {
			t.Fatal(errno)
		}
		out.Reset()
		for got := 0; got < count; {
			n, errno := in.Receive(to)
			if errno != 0 {
				t.Fatal(errno)
			}
			got += n
		}
	})
	assert.Equal(t, "allocations", 0, allocs)
}

// A datagram may come from a connection that the kernel does not have.
func TestReadOne(t *testing.T) {
	t.Parallel()
	b := NewInbox(1, 5)
	for _, sent := range []string{"one", "longer"} {
		if err := b.ReadOne(strings.NewReader(sent)); err != nil || string(b.Datagram(0)) != sent[:min(len(sent), 5)] {
			t.Errorf("%q of %q, error %v", b.Datagram(0), sent, err)
		}
	}
}
