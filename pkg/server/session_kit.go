// SPDX-License-Identifier: Apache-2.0

package server

import (
	"sync"

	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	// kitBatch is how many bytes of answers are gathered before they are
	// written, so that one read of a hundred queries for large answers cannot
	// gather megabytes.
	kitBatch = 32 << 10
	// kitRoom is enough for any batch: it ends at the answer that passes kitBatch. A
	// smaller buffer would grow step by step, which is garbage for each large answer.
	kitRoom = kitBatch + frameHeader + wire.MaxMessage
	// kitRooms is how many kits on the shelf keep their room.
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

// take returns a kit that is not in use, with an empty out.
func (s *kitShelf) take() *kit {
	k := s.takeFree()
	if k == nil {
		k = &kit{lane: s.handler.NewLane()}
	}
	if k.out == nil {
		k.out = make([]byte, 0, kitRoom)
	}
	return k
}

func (s *kitShelf) takeFree() *kit {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.free)
	if n == 0 {
		return nil
	}
	k := s.free[n-1]
	s.free = s.free[:n-1]
	return k
}

// put gives a kit back. A kit whose lane panicked must not come back.
func (s *kitShelf) put(k *kit) {
	k.out = k.out[:0]
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) >= kitRooms || cap(k.out) > 2*kitRoom {
		k.out = nil // so many at once were a burst of slow clients
	}
	s.free = append(s.free, k)
}
