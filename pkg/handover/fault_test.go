// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestAbandoned has the agent that was to take over end at each point before it did.
func TestAbandoned(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name              string
		snapshot, sockets bool // what it asks for
		sends             *message
	}{
		{name: "after the greeting"},
		{name: "after the snapshot", snapshot: true},
		{name: "with the sockets", sockets: true},
		{name: "after nonsense", sockets: true, sends: &message{Type: "nonsense"}},
		{name: "after a take without a claim", sockets: true, sends: &message{Type: typeTake}},
		{name: "after a take without the sockets", sends: &message{Type: typeTake, Claim: &Claim{Agent: "new"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := socketPath(t)
			o := newOld(t, path, "old", 2)
			send(t, o.addr(), 0, 50)
			n := mustConnect(t, path, "new")
			wantLost := 0
			if tt.snapshot {
				assert.NoError(t, n.Snapshot(t.Context()))
			}
			if tt.sockets {
				mustSockets(t, n)
				wantLost = 1
			}
			if tt.sends != nil {
				assert.NoError(t, n.conn.send(tt.sends))
				if tt.sockets {
					proctest.Eventually(t, time.Minute, "the server asks it to hurry", func() bool { return closed(n.PredecessorLeaving()) })
				} else if _, _, err := n.conn.receive(sendTimeout); err == nil {
					t.Error("the server sent a reply")
				}
			}
			n.Close()
			proctest.Eventually(t, time.Minute, "the server admits a client again", func() bool {
				next, err := connect(t, path, "next")
				if err == nil {
					next.Close()
				}
				return err == nil
			})
			claims, lost, _ := o.seen()
			if len(claims) != 0 || lost != wantLost || closed(o.HandedOver()) {
				t.Errorf("%d claims, lost %d times, want %d", len(claims), lost, wantLost)
			}
			if st := o.recorder.Stats(); st.Abandoned != uint64(wantLost) || !st.Listening || st.Given {
				t.Errorf("stats %+v", st)
			}
			if got := drain(t, []net.PacketConn{o.udp[0], o.udp[1]}); len(got) != 50 {
				t.Errorf("the old one reads %d of 50", len(got))
			}
		})
	}
}

// TestAbandonedUnread has the agent that was to take over end before it has read what it asked for: that is no problem of
// this one's.
func TestAbandonedUnread(t *testing.T) {
	t.Parallel()
	o, n := pair(t)
	assert.NoError(t, n.conn.send(&message{Type: typeSockets}))
	proctest.Eventually(t, time.Minute, "the sockets are sent", func() bool {
		o.Server.mu.Lock()
		defer o.Server.mu.Unlock()
		return o.hasSockets
	})
	n.Close()
	proctest.Eventually(t, time.Minute, "it is noticed", func() bool { return o.recorder.Stats().Abandoned == 1 })
	if st := o.recorder.Stats(); st.LastError != "" {
		t.Errorf("noted as a problem: %s", st.LastError)
	}
}

// TestUnexpectedFiles closes the files that an agent sends without a request, in any message.
func TestUnexpectedFiles(t *testing.T) {
	t.Parallel()
	hello := &message{Type: typeHello, Protocol: Protocol, Agent: "new"}
	for _, tt := range []struct {
		name     string
		messages []*message
		text     []byte // sent as it is in place of messages
		files    int
	}{
		{name: "with the greeting", messages: []*message{hello}, files: 1},
		{name: "with each message", messages: []*message{hello, {Type: typeSnapshot}, {Type: typeSockets}, {Type: "nonsense"}}, files: maxFiles},
		{name: "more than are taken", messages: []*message{hello}, files: 200},
		{name: "half a message", text: []byte(`{"type":"he`), files: 3},
		{name: "too long a message", text: make([]byte, 2*maxMessage), files: 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := socketPath(t)
			newOld(t, path, "old", 1)
			reader, writer, err := os.Pipe()
			assert.NoError(t, err)
			defer func() { _ = reader.Close() }()
			c := rawConn(t, path)
			for _, m := range tt.messages {
				assert.NoError(t, c.send(m, slices.Repeat([]*os.File{writer}, tt.files)...))
			}
			if tt.text != nil {
				control := unix.UnixRights(slices.Repeat([]int{int(writer.Fd())}, tt.files)...)
				if _, _, err := c.WriteMsgUnix(tt.text, control, nil); err != nil {
					t.Fatal(err)
				}
			}
			_ = writer.Close()
			_ = reader.SetReadDeadline(time.Now().Add(10 * time.Second))
			// All writers being closed is the end of the pipe.
			if n, err := reader.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("the other agent keeps a file: %v", err)
			}
		})
	}
}

// TestLostBeforeTheNext admits the next agent when what the one before has done is undone.
func TestLostBeforeTheNext(t *testing.T) {
	t.Parallel()
	undoing, undone := make(chan struct{}), make(chan struct{})
	o, n := pair(t, func(c *Config) {
		c.SuccessorLost = func(context.Context) {
			close(undoing)
			<-undone
		}
	})
	mustSockets(t, n)
	n.Close()
	<-undoing
	_, err := connect(t, o.path, "next")
	if err == nil || !strings.HasSuffix(err.Error(), "refuses to hand over: "+ReasonBusy) {
		t.Errorf("connecting meanwhile: %v", err)
	}
	close(undone)
	proctest.Eventually(t, time.Minute, "the server admits a client again", func() bool {
		_, err := connect(t, o.path, "next")
		return err == nil
	})
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestOldEnds has the agent that hands over end at each point.
func TestOldEnds(t *testing.T) {
	t.Parallel()
	t.Run("before the sockets", func(t *testing.T) {
		t.Parallel()
		o, n := pair(t)
		o.stop()
		<-o.ended
		if _, err := n.Sockets(t.Context()); err == nil {
			t.Error("got sockets")
		}
		if _, err := connect(t, o.path, "new"); !errors.Is(err, ErrNoAgent) {
			t.Errorf("connecting: %v, want ErrNoAgent", err)
		}
	})
	t.Run("after the sockets", func(t *testing.T) {
		t.Parallel()
		path := socketPath(t)
		o := newOld(t, path, "old", 2)
		send(t, o.addr(), 0, 50)
		n := mustConnect(t, path, "new")
		sockets := mustSockets(t, n)
		conns := packetConns(t, sockets)
		o.stop()
		<-o.ended
		for _, u := range o.udp {
			_ = u.Close()
		}
		proctest.Eventually(t, time.Minute, "the new one is hurried", func() bool { return closed(n.PredecessorLeaving()) })
		if err := n.TakeOver(t.Context(), Claim{Agent: "new"}); !predecessorEnded(err) {
			t.Errorf("taking: %v, want that it is gone", err)
		}
		if got := drain(t, conns); len(got) != 50 {
			t.Errorf("%d of 50 datagrams", len(got))
		}
	})
}

// TestOneAtATime refuses a second agent while there is one, and all after it has taken over.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	o, n := pair(t)
	_, err := connect(t, o.path, "other")
	if err == nil || !strings.HasSuffix(err.Error(), "refuses to hand over: "+ReasonBusy) {
		t.Errorf("connecting a second time: %v", err)
	}
	if o.ensureListening(t.Context()) != nil {
		t.Error("it listens again at the path that it owns")
	}
	mustSockets(t, n)
	assert.NoError(t, n.TakeOver(t.Context(), Claim{Agent: "new"}))
	if _, err := connect(t, o.path, "other"); !errors.Is(err, ErrNoAgent) {
		t.Errorf("connecting to an agent that has handed over: %v", err)
	}
	next := newOld(t, o.path, "new", 1) // which listens in its place
	<-o.ended
	if !alive(t.Context(), o.path) {
		t.Error("the old one removed the path")
	}
	if st := o.recorder.Stats(); st.Asked != 2 || st.Busy != 1 {
		t.Errorf("stats %+v", st)
	}
	mustConnect(t, next.path, "third")
}

// TestOtherProtocol refuses an agent of another protocol version, and sends its own version.
func TestOtherProtocol(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	o := newOld(t, path, "old", 1)
	c := rawConn(t, path)
	assert.NoError(t, c.send(&message{Type: typeHello, Protocol: Protocol + 1, Agent: "new"}))
	m, _, err := c.receive(requestTimeout)
	if err != nil || m.Type != typeRefused || m.Reason != ReasonProtocol || m.Protocol != Protocol {
		t.Errorf("%+v, %v", m, err)
	}
	if st := o.recorder.Stats(); st.Mismatch != 1 {
		t.Errorf("stats %+v", st)
	}
	mustConnect(t, path, "another")
}

// TestShutdown shuts the old agent down while another one has its sockets.
func TestShutdown(t *testing.T) {
	t.Parallel()
	t.Run("no successor", func(t *testing.T) {
		t.Parallel()
		path := socketPath(t)
		o := newOld(t, path, "old", 1)
		if o.Shutdown(t.Context(), time.Minute) {
			t.Error("handed over without a successor")
		}
		_, err := connect(t, path, "new")
		if err == nil || !strings.HasSuffix(err.Error(), "refuses to hand over: "+ReasonLeaving) {
			t.Errorf("connecting: %v", err)
		}
	})
	t.Run("asked for the sockets later", func(t *testing.T) {
		t.Parallel()
		o, n := pair(t)
		left := make(chan bool, 1)
		go func() { left <- o.Shutdown(t.Context(), time.Minute) }()
		proctest.Eventually(t, time.Minute, "it leaves", func() bool {
			o.Server.mu.Lock()
			defer o.Server.mu.Unlock()
			return o.leaving
		})
		assert.NoError(t, n.Snapshot(t.Context()))
		mustSockets(t, n)
		<-n.PredecessorLeaving()
		assert.NoError(t, n.TakeOver(t.Context(), Claim{Agent: "new"}))
		if !<-left {
			t.Error("not handed over")
		}
	})
	t.Run("ended", func(t *testing.T) {
		t.Parallel()
		o, n := pair(t)
		mustSockets(t, n)
		left := make(chan bool, 1)
		go func() { left <- o.Shutdown(t.Context(), time.Minute) }()
		<-n.PredecessorLeaving()
		n.Close()
		if <-left {
			t.Error("handed over to one that has ended")
		}
	})
	t.Run("slow", func(t *testing.T) {
		t.Parallel()
		o, n := pair(t)
		mustSockets(t, n)
		if o.Shutdown(t.Context(), time.Millisecond) {
			t.Error("handed over to one that did not take")
		}
	})
}

// TestSnapshotFails reports why there is no snapshot, and goes on.
func TestSnapshotFails(t *testing.T) {
	t.Parallel()
	_, n := pair(t, func(c *Config) {
		c.Snapshot = func(context.Context) error { return errors.New("the disk is full") }
	})
	if err := n.Snapshot(t.Context()); err == nil || err.Error() != "the disk is full" {
		t.Errorf("snapshot: %v", err)
	}
	mustSockets(t, n)
}

// TestOtherNamespace refuses the sockets of an agent in another network namespace.
func TestOtherNamespace(t *testing.T) {
	t.Parallel()
	var there *net.UDPConn
	opened := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			there, err = net.ListenUDP("udp4", nil)
		}
		opened <- err
	}()
	if err := <-opened; errors.Is(err, unix.EPERM) {
		t.Skip("needs the capability to create network namespaces")
	} else if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = there.Close() }()
	_, n := pair(t, func(c *Config) {
		c.Offers = func() ([]Socket, error) {
			return []Socket{{Listen: Listen{KindUDP, netip.MustParseAddrPort("127.0.0.1:53")}, Raw: raw(t, there)}}, nil
		}
	})
	if _, err := n.Sockets(t.Context()); err == nil {
		t.Error("sockets of another namespace were taken")
	}
}

// TestOffersFail ends the conversation when the agent offers no sockets.
func TestOffersFail(t *testing.T) {
	t.Parallel()
	o, n := pair(t, func(c *Config) {
		c.Offers = func() ([]Socket, error) { return nil, errors.New("not now") }
	})
	if _, err := n.Sockets(t.Context()); err == nil {
		t.Error("got sockets")
	}
	proctest.Eventually(t, time.Minute, "the error is recorded", func() bool { return o.recorder.Stats().LastError == "not now" })
}

// rawConn is a connection that the test speaks itself.
func rawConn(t *testing.T, path string) *conn {
	t.Helper()
	raw, err := dial(t.Context(), path)
	assert.NoError(t, err)
	c, err := newConn(raw, time.Now)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}
