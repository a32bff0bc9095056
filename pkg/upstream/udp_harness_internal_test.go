// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A socketDial replaces the system's way to open a socket.
type socketDial = func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)

// A socketHarness is a socketPool with its counters and the outcomes of its attempts.
type socketHarness struct {
	*socketPool
	count counters

	mu   sync.Mutex // guards what
	what map[string]int
	came sync.WaitGroup // one for each pending attempt
}

// newSocketHarness makes a socketPool for addr, which is closed at the end of the test. A nil dial opens real
// sockets.
func newSocketHarness(tb testing.TB, addr netip.AddrPort, dial socketDial) *socketHarness {
	tb.Helper()
	h := &socketHarness{what: map[string]int{}}
	h.socketPool = newSocketPool(newCommon(Config{Dial: dial}), addr, &h.count)
	var t transport = h.socketPool
	tb.Cleanup(func() {
		t.closeIdle(true)
		t.wait()
		if now, _ := h.openCount(); now != 0 || h.slots != [socketSlots]*socket{} {
			tb.Errorf("%d sockets are open at the end, want none", now)
		}
	})
	return h
}

// newAttempt makes an attempt whose outcome is counted in what.
func (h *socketHarness) newAttempt(q []byte, mixed bool) *attempt {
	h.came.Add(1)
	a := &attempt{query: q, randomCase: mixed}
	a.receiver = replyFunc(func(r reply, _ *wire.SendBatch) {
		defer h.came.Done()
		h.mu.Lock()
		defer h.mu.Unlock()
		h.what[describe(q, r)]++
	})
	return a
}

// describe describes a reply in a word or two.
func describe(q []byte, r reply) string {
	switch {
	case r.err != nil:
		return r.err.Error()
	case r.truncated:
		return "truncated"
	case r.caseChanged:
		return "recased"
	case string(r.m.Raw[len(r.m.Raw)-4:]) == "\xc0\x00\x02\x42":
		return "forged"
	}
	var m, asked dns.Msg
	if m.Unpack(r.m.Raw) != nil || asked.Unpack(q) != nil || len(m.Answer) != 1 {
		return "unreadable"
	}
	if got, want := dns.CanonicalName(m.Question[0].Name), dns.CanonicalName(asked.Question[0].Name); got != want {
		return got + " for " + want
	}
	return m.Answer[0].(*dns.A).A.String()
}

// ask sends n queries in one batch.
func (h *socketHarness) ask(tb testing.TB, n int, q []byte, mixed bool) (attempts []*attempt) {
	tb.Helper()
	var batch wire.SendBatch
	for range n {
		a := h.newAttempt(q, mixed)
		if err := h.send(a, &batch); err != nil {
			a.receiver.handleReply(a, reply{err: err}, &batch)
		}
		attempts = append(attempts, a)
	}
	batch.Flush()
	return attempts
}

// want compares the outcomes so far.
func (h *socketHarness) want(tb testing.TB, want map[string]int) {
	tb.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	assert.Same(tb, "outcomes", want, h.what)
}

// fixedRandom always returns the same bytes.
type fixedRandom struct{}

func (fixedRandom) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// silentDial opens sockets that never receive anything, and counts them.
func silentDial(dials *atomic.Int32) socketDial {
	return func(context.Context, string, netip.AddrPort) (net.Conn, error) {
		dials.Add(1)
		ours, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }() // ends when ours is closed
		return ours, nil
	}
}

var inMemory = netip.MustParseAddrPort("192.0.2.1:53")

// responder answers every query at once with the address 192.0.2.66.
func responder(tb testing.TB) netip.AddrPort {
	tb.Helper()
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	assert.NoError(tb, err)
	_ = pc.SetReadBuffer(1 << 20)
	var ended sync.WaitGroup
	ended.Go(func() {
		buf := make([]byte, 1024)
		for {
			_, from, err := pc.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			end := 12
			for buf[end] != 0 {
				end += int(buf[end]) + 1
			}
			end += 5
			end += copy(buf[end:], []byte{0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 66})
			copy(buf[2:12], []byte{0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0})
			_, _ = pc.WriteToUDPAddrPort(buf[:end], from)
		}
	})
	tb.Cleanup(func() {
		_ = pc.Close()
		ended.Wait()
	})
	return pc.LocalAddr().(*net.UDPAddr).AddrPort()
}
