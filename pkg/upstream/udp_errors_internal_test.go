// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// unusedAddr is an address without a listener.
func unusedAddr(t *testing.T) netip.AddrPort {
	t.Helper()
	return proctest.FreeAddr(t)
}

// A query that the kernel rejects fails; the others of the batch are sent.
func TestSocketPoolTooLong(t *testing.T) {
	t.Parallel()
	h := newSocketHarness(t, responder(t), nil)
	q := upstreamtest.Question(t, "www.example.")
	var batch wire.SendBatch
	for _, q := range [][]byte{q, append(slices.Clip(q), make([]byte, 65_500)...), q} {
		assert.NoError(t, h.send(h.newAttempt(q, false), &batch))
	}
	batch.Flush()
	h.came.Wait()
	h.want(t, map[string]int{"forged": 2, "sending: message too long": 1})
	if _, ever := h.openCount(); ever != 1 {
		t.Errorf("%d sockets, want one", ever)
	}
}

// A send error affects one query or the whole socket.
func TestSocketPoolSendErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		errno  syscall.Errno
		socket bool
		limit  bool
	}{
		{errno: syscall.EAGAIN, limit: true},
		{errno: syscall.ENOBUFS, limit: true},
		{errno: syscall.ENOMEM, limit: true},
		{errno: syscall.EMSGSIZE},
		{errno: syscall.EPERM},
		{errno: syscall.EACCES},
		{errno: syscall.ECONNREFUSED, socket: true},
		{errno: syscall.ENETUNREACH, socket: true},
		{errno: syscall.EHOSTUNREACH, socket: true},
	}
	for _, tt := range tests {
		t.Run(tt.errno.Error(), func(t *testing.T) {
			t.Parallel()
			o := newOutbox()
			o.add(upstreamtest.Question(t, "www.example."), 1)
			o.add(upstreamtest.Question(t, "www.example."), 2)
			err := o.classifySendError(1, os.NewSyscallError("write", tt.errno))
			if tt.socket {
				if !errors.Is(err, tt.errno) || len(o.failed) != 0 {
					t.Errorf("error %v and failed %v, want the error only", err, o.failed)
				}
				return
			}
			if err != nil || len(o.failed) != 1 || !errors.Is(o.failed[2], tt.errno) {
				t.Fatalf("error %v and failed %v, want the second query failed", err, o.failed)
			}
			assert.Equal(t, "is a limit", tt.limit, errors.Is(o.failed[2], errLimit))
		})
	}
}

// Without free descriptors the open sockets are used.
func TestSocketPoolWithoutDescriptors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Raw: []upstreamtest.Raw{upstreamtest.Forged}}))
		dials, room := 0, 0
		h := newSocketHarness(t, inMemory, func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
			if dials++; dials > room {
				return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("socket", syscall.EMFILE)}
			}
			return upstreamtest.Network{inMemory: s}.Dial(ctx, network, addr)
		})
		err := h.send(h.newAttempt(upstreamtest.Question(t, "www.example."), false), new(wire.SendBatch))
		h.came.Done()
		if !errors.Is(err, errLimit) || !errors.Is(err, syscall.EMFILE) {
			t.Errorf("error %v, want EMFILE and the limit", err)
		}
		dials, room = 0, 2
		for range 100 {
			h.ask(t, 1, upstreamtest.Question(t, "www.example."), false)
			h.came.Wait()
		}
		h.want(t, map[string]int{"forged": 100})
		if now, _ := h.openCount(); now != 2 {
			t.Errorf("%d sockets, want 2", now)
		}
	})
}

// Errors of opening a socket and of the random source fail the query. A panic is contained and releases everything.
func TestSocketPoolCannotOpen(t *testing.T) {
	t.Parallel()
	var dial socketDial
	h := newSocketHarness(t, inMemory, func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
		return dial(ctx, network, addr)
	})
	tests := []struct {
		name string
		dial socketDial
		rand io.Reader
		want error
	}{
		{name: "no route", dial: func(context.Context, string, netip.AddrPort) (net.Conn, error) {
			return nil, syscall.ENETUNREACH
		}, want: syscall.ENETUNREACH},
		{name: "panic", dial: func(context.Context, string, netip.AddrPort) (net.Conn, error) { panic("a bug") }, want: errPanic},
		{name: "no randomness", rand: strings.NewReader(""), want: io.EOF},
	}
	for _, tt := range tests { // in sequence, on the same transport
		dial = tt.dial
		h.mu.Lock()
		if h.random.Reset(rand.Reader); tt.rand != nil {
			h.random.Reset(tt.rand)
		}
		h.mu.Unlock()
		var batch wire.SendBatch
		if err := h.send(&attempt{query: upstreamtest.Question(t, "www.example.")}, &batch); !errors.Is(err, tt.want) {
			t.Errorf("%s: error %v, want %v", tt.name, err, tt.want)
		}
		batch.Flush()
	}
	assert.Equal(t, "panics counted", 1, h.panics.Load())
}

// A panic in the callback of one attempt does not affect the others.
func TestSocketPoolContainsPanics(t *testing.T) {
	t.Parallel()
	for name, addr := range map[string]netip.AddrPort{"answer": responder(t), "error": unusedAddr(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newSocketHarness(t, addr, nil)
			q := upstreamtest.Question(t, "www.example.")
			var batch wire.SendBatch
			for i := range 30 {
				tr := h.newAttempt(q, false)
				if i%3 == 0 {
					report := tr.receiver
					tr.receiver = replyFunc(func(r reply, batch *wire.SendBatch) {
						report.handleReply(tr, r, batch)
						panic("a bug")
					})
				}
				assert.NoError(t, h.send(tr, &batch))
			}
			batch.Flush()
			h.came.Wait()
			h.closeIdle(false)
			h.wait()
			assert.Equal(t, "panics counted", 10, h.panics.Load())
		})
	}
}
