// SPDX-License-Identifier: Apache-2.0

package server

import "sync"

const (
	// kitBatch is how many bytes of answers are gathered before they are
	// written, so that one read of a hundred queries for large answers cannot
	// gather megabytes.
	kitBatch = 64 << 10
	// kitRooms is how many kits on the shelf keep the room they grew.
	kitRooms = 32
)

// A kit is what one batch of queries needs: a lane, and room for the answers.
//
// Sessions take one for a batch and not for life. So there are as many lanes and
// buffers as batches at work at once, not as sessions open or ever opened. A lane
// is used by one goroutine at a time; the shelf's lock orders them.
type kit struct {
	lane Lane
	out  []byte // framed answers
}

// A kitShelf keeps the kits that are not in use. The one used last is taken first:
// it is warm in the CPU's cache.
type kitShelf struct {
	handler Handler

	mu   sync.Mutex // guards free
	free []*kit
}

// take returns a kit that nobody else uses, with an empty out.
func (s *kitShelf) take() *kit {
	s.mu.Lock()
	if n := len(s.free); n > 0 {
		k := s.free[n-1]
		s.free = s.free[:n-1]
		s.mu.Unlock()
		return k
	}
	s.mu.Unlock()
	return &kit{lane: s.handler.NewLane()}
}

// put gives a kit back. A kit whose lane panicked must not come back.
func (s *kitShelf) put(k *kit) {
	k.out = k.out[:0]
	s.mu.Lock()
	defer s.mu.Unlock()
	// A batch ends at the answer that passes kitBatch; a longer one than twice
	// that was an exception, and many at once were a burst of slow clients.
	if len(s.free) >= kitRooms || cap(k.out) > 2*kitBatch+2*frameHeader {
		k.out = nil
	}
	s.free = append(s.free, k)
}
