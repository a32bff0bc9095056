// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

func TestSocketPoolSpreadsPorts(t *testing.T) {
	t.Parallel()
	s := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Records: []string{"www.example. 60 IN A 192.0.2.10"}}))
	h := newSocketHarness(t, s.Listen(t), nil)
	for range 60 {
		h.ask(t, 1, upstreamtest.Question(t, "www.example."), false)
		h.came.Wait()
	}
	alone := s.Queries()
	if got := ports(alone); got < 45 {
		t.Errorf("%d ports for 60 queries one after the other, want at least 45", got)
	}
	h.ask(t, outboxSize, upstreamtest.Question(t, "www.example."), false)
	h.came.Wait()
	together := s.Queries()[len(alone):]
	assert.Equal(t, "ports for a batch", 1, ports(together))
	ids, steps := map[uint16]bool{}, map[uint16]bool{}
	for i, q := range together {
		ids[q.ID] = true
		steps[q.ID-together[max(i-1, 0)].ID] = true
	}
	if len(ids) != outboxSize || len(steps) < outboxSize-5 {
		t.Errorf("%d IDs in %d steps on one port for %d queries, want random ones", len(ids), len(steps), outboxSize)
	}
	h.ask(t, 4*outboxSize, upstreamtest.Question(t, "www.example."), false)
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
			q := upstreamtest.Question(t, name)
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

// A late or repeated answer is ignored.
func TestSocketPoolLateAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(upstreamtest.Sequence(
			upstreamtest.Action{Delay: 100 * time.Millisecond},
			upstreamtest.Action{Raw: []upstreamtest.Raw{upstreamtest.Forged, upstreamtest.Forged}},
		))
		h := newSocketHarness(t, inMemory, upstreamtest.Network{inMemory: s}.Dial)
		late := h.ask(t, 1, upstreamtest.Question(t, "www.example."), false)[0]
		time.Sleep(50 * time.Millisecond)
		_ = h.cancel(late)
		_ = h.cancel(late) // no effect
		h.came.Done()
		h.ask(t, 1, upstreamtest.Question(t, "www.example."), false)
		h.came.Wait()
		time.Sleep(100 * time.Millisecond)
		h.want(t, map[string]int{"forged": 1})
		// The late answer finds its socket closed; the repeated one comes to an open socket.
		assert.Equal(t, "mismatches", 1, h.count.failures[CauseMismatch].Load())
	})
}
