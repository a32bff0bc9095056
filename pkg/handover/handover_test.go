// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
)

// TestTakeOver hands over sockets that hold datagrams and a session, and counts what comes out.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	o := newOld(t, path, "old", 3)
	send(t, o.addr(), 0, 100)
	session, err := net.Dial("tcp4", o.tcp.Addr().String())
	assert.NoError(t, err)
	defer func() { _ = session.Close() }()

	n := mustConnect(t, path, "new")
	if n.Predecessor != "old" || n.PredecessorVersion != "v1" {
		t.Errorf("met %q %q", n.Predecessor, n.PredecessorVersion)
	}
	assert.NoError(t, n.Snapshot(t.Context()))
	sockets := mustSockets(t, n)
	if len(sockets) != 4 {
		t.Fatalf("%d sockets, want 4", len(sockets))
	}
	send(t, o.addr(), 100, 200)
	want := Claim{Agent: "new", Version: "v2", Serves: []Listen{sockets[0].Listen, sockets[3].Listen}, Link: true, Rules: "nftables"}
	conns := packetConns(t, sockets)
	assert.NoError(t, n.TakeOver(t.Context(), want))
	<-o.HandedOver()
	<-o.ended
	claims, lost, snapshots := o.seen()
	assert.Same(t, "claims", []Claim{want}, claims, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }))
	if lost != 0 || snapshots != 1 {
		t.Errorf("lost %d times, %d snapshots", lost, snapshots)
	}
	for _, u := range o.udp { // the old one ends
		_ = u.Close()
	}
	_ = o.tcp.Close()
	send(t, conns[0].LocalAddr().(*net.UDPAddr).AddrPort(), 200, 300)
	if got := drain(t, conns); len(got) != 300 {
		t.Errorf("%d of 300 datagrams came out", len(got))
	}
	l, err := net.FileListener(sockets[3].File)
	assert.NoError(t, err)
	defer func() { _ = l.Close() }()
	accepted, err := l.Accept()
	assert.NoError(t, err)
	_ = accepted.Close()
	if st := o.recorder.Stats(); !st.Given || st.To != "new" || st.Asked != 1 || st.Listening || st.Abandoned != 0 {
		t.Errorf("stats %+v", st)
	}
}

// TestStillNonblocking shows that sending and receiving a socket leaves it as it is for the agent that reads it: a
// reader that waits in the kernel could not be stopped.
func TestStillNonblocking(t *testing.T) {
	t.Parallel()
	o, n := pair(t)
	packetConns(t, mustSockets(t, n))
	for _, c := range []syscall.Conn{o.udp[0], o.tcp} {
		assert.NoError(t, raw(t, c).Control(func(fd uintptr) {
			flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
			if err != nil || flags&unix.O_NONBLOCK == 0 {
				t.Errorf("flags %#x, %v: the socket blocks", flags, err)
			}
		}))
	}
}

// TestManySockets hands over more than one message can carry.
func TestManySockets(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	const sockets = maxFiles + 17
	o := newOld(t, path, "old", sockets)
	send(t, o.addr(), 0, 500)
	got := mustSockets(t, mustConnect(t, path, "new"))
	if len(got) != sockets+1 {
		t.Fatalf("%d sockets, want %d", len(got), sockets+1)
	}
	if got := drain(t, packetConns(t, got)); len(got) != 500 {
		t.Errorf("%d of 500 datagrams", len(got))
	}
}
