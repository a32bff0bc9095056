// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

func TestSocketPoolSpreadsPorts(t *testing.T) {
	t.Parallel()
	s := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Records: []string{"www.example. 60 IN A 192.0.2.10"}}))
	h := newSocketHarness(t, s.Listen(t), nil)
	for range 60 {
		h.ask(t, 1, questionFor(t, "www.example."), false)
		h.came.Wait()
	}
	alone := s.Queries()
	if got := ports(alone); got < 45 {
		t.Errorf("%d ports for 60 queries one after the other, want at least 45", got)
	}
	h.ask(t, outboxSize, questionFor(t, "www.example."), false)
	h.came.Wait()
	together := s.Queries()[len(alone):]
	if got := ports(together); got != 1 {
		t.Errorf("%d ports for a batch, want 1", got)
	}
	ids := map[uint16]bool{}
	for _, q := range together {
		ids[q.ID] = true
	}
	if len(ids) != outboxSize {
		t.Errorf("%d IDs on one port for %d queries", len(ids), outboxSize)
	}
	h.ask(t, 4*outboxSize, questionFor(t, "www.example."), false)
	h.came.Wait()
	if got := ports(s.Queries()[len(alone)+len(together):]); got < 2 || got > 4 {
		t.Errorf("%d ports for four batches, want 2 at least and 4 at most", got)
	}
	h.want(t, map[string]int{"192.0.2.10": 60 + 5*outboxSize})
}

func ports(queries []upstreamtest.Query) int {
	seen := map[uint16]bool{}
	for _, q := range queries {
		seen[q.From.Port()] = true
	}
	return len(seen)
}

// Datagrams that are not the answer neither end an attempt nor delay it, in batches and one by one.
func TestSocketPoolBadDatagramsFirst(t *testing.T) {
	t.Parallel()
	for _, real := range []bool{true, false} {
		for _, shape := range upstreamtest.BadShapes() {
			t.Run(fmt.Sprintf("%s/real=%v", shape.Name, real), func(t *testing.T) {
				t.Parallel()
				s := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Raw: []upstreamtest.Raw{shape.Make, upstreamtest.Forged}}))
				h := newSocketHarness(t, inMemory, upstreamtest.Network{inMemory: s}.Dial)
				if real {
					h = newSocketHarness(t, s.Listen(t), nil)
				}
				tries := h.ask(t, 1, questionFor(t, "www.example."), false)
				h.came.Wait()
				h.want(t, map[string]int{"forged": 1})
				cause := CauseMismatch
				if shape.Reads {
					cause = CauseMalformed
				}
				if got := h.count.failures[cause].Load(); got != 1 {
					t.Errorf("%d counted as %s, want 1", got, cause)
				}
				if err := h.cancel(tries[0]); errors.Is(err, errMalformed) != shape.Reads {
					t.Errorf("remembered %v", err)
				}
			})
		}
	}
}

// Answers with every wrong ID, and answers to other questions with the right ID, are rejected.
func TestSocketPoolForged(t *testing.T) {
	t.Parallel()
	const others = 40_000
	h := newSocketHarness(t, inMemory, func(context.Context, string, netip.AddrPort) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer func() { _ = theirs.Close() }()
			buf := make([]byte, 512)
			n, _ := theirs.Read(buf)
			r := upstreamtest.Forged(buf[:n])
			r[len(r)-1] = 99
			good := upstreamtest.Forged(buf[:n])
			for id := range 1 << 16 {
				if uint16(id) != wire.ID(good) {
					wire.SetID(r, uint16(id))
					_, _ = theirs.Write(r)
				}
			}
			wire.SetID(r, wire.ID(good))
			for i := range others {
				r[13], r[14], r[15] = 'a'+byte(i%26), 'a'+byte(i/26%26), '0'+byte(i/26/26%10)
				_, _ = theirs.Write(r)
			}
			_, _ = theirs.Write(good)
		}()
		return ours, nil
	})
	h.ask(t, 1, questionFor(t, "www.example."), false)
	h.came.Wait()
	h.want(t, map[string]int{"forged": 1}) // from the responder
	if got, want := h.count.failures[CauseMismatch].Load(), uint64(1<<16-1+others); got != want {
		t.Errorf("%d mismatches, want %d", got, want)
	}
}

// The answer must repeat the random case, if there was one.
func TestSocketPoolRandomCase(t *testing.T) {
	t.Parallel()
	name := "a-long-name-with-letters.example."
	lower := func(q []byte) []byte {
		r := upstreamtest.Forged(q)
		copy(r[12:], bytes.ToLower(r[12:12+len(name)]))
		return r
	}
	upper := func(q []byte) []byte {
		r := upstreamtest.Forged(q)
		copy(r[13:], "A-LONG")
		return r
	}
	tests := []struct {
		name   string
		mixed  bool
		answer upstreamtest.Raw
		want   string
	}{
		{name: "mixed and kept", mixed: true, answer: upstreamtest.Forged, want: "forged"},
		{name: "mixed and folded", mixed: true, answer: lower, want: "recased"},
		{name: "plain and kept", answer: upstreamtest.Forged, want: "forged"},
		{name: "plain and changed", answer: upper, want: "forged"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Raw: []upstreamtest.Raw{tt.answer}}))
			h := newSocketHarness(t, s.Listen(t), nil)
			q := questionFor(t, name)
			before := string(q)
			h.ask(t, 20, q, tt.mixed)
			h.came.Wait()
			h.want(t, map[string]int{tt.want: 20})
			spelled := map[string]bool{}
			for _, sent := range s.Queries() {
				spelled[string(sent.Raw[12:])] = true
			}
			if want := map[bool]int{false: 1, true: 20}[tt.mixed]; len(spelled) != want {
				t.Errorf("sent in %d spellings, want %d", len(spelled), want)
			}
			if string(q) != before {
				t.Error("the query was written to")
			}
		})
	}
}

func TestSocketPoolTruncated(t *testing.T) {
	t.Parallel()
	s := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Raw: []upstreamtest.Raw{func(q []byte) []byte {
		r := upstreamtest.Forged(q)
		r[2] |= 2
		return r[:len(r)-3]
	}}}))
	h := newSocketHarness(t, s.Listen(t), nil)
	h.ask(t, 3, questionFor(t, "www.example."), true)
	h.came.Wait()
	h.want(t, map[string]int{"truncated": 3})
}

// A late or repeated answer is ignored.
func TestSocketPoolLateAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(upstreamtest.Sequence(
			upstreamtest.Action{Delay: 100 * time.Millisecond},
			upstreamtest.Action{Raw: []upstreamtest.Raw{upstreamtest.Forged, upstreamtest.Forged}},
		))
		h := newSocketHarness(t, inMemory, upstreamtest.Network{inMemory: s}.Dial)
		late := h.ask(t, 1, questionFor(t, "www.example."), false)[0]
		time.Sleep(50 * time.Millisecond)
		_ = h.cancel(late)
		_ = h.cancel(late) // no effect
		h.came.Done()
		h.ask(t, 1, questionFor(t, "www.example."), false)
		h.came.Wait()
		time.Sleep(100 * time.Millisecond)
		h.want(t, map[string]int{"forged": 1})
		// The late answer finds its socket closed; the repeated one comes to an open socket.
		if got := h.count.failures[CauseMismatch].Load(); got != 1 {
			t.Errorf("%d mismatches, want 1", got)
		}
	})
}
