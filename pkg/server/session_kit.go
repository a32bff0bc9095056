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
	// kitRooms is how many buffers the shelf keeps.
	kitRooms = 32
)

// A kit is what one batch of queries needs: a worker, and room for the answers.
//
// Sessions take one for a batch and not for life. So there are as many workers and
// buffers as batches at work at once, not as sessions open or ever opened. A worker
// is used by one goroutine at a time; the shelf's lock orders them.
type kit struct {
	worker Worker
	out    []byte // framed answers
}

// A kitShelf keeps what kits are made of. What was used last is taken first: it is warm
// in the CPU's cache.
type kitShelf struct {
	handler Handler

	mu      sync.Mutex // guards the fields below
	workers []Worker
	rooms   [][]byte
}

// take returns a kit that is not in use, with an empty out.
func (s *kitShelf) take() (k kit) {
	s.mu.Lock()
	if n := len(s.workers); n > 0 {
		k.worker, s.workers = s.workers[n-1], s.workers[:n-1]
	}
	if n := len(s.rooms); n > 0 {
		k.out, s.rooms = s.rooms[n-1], s.rooms[:n-1]
	}
	s.mu.Unlock()
	if k.worker == nil {
		k.worker = s.handler.NewWorker()
	}
	if k.out == nil {
		k.out = make([]byte, 0, kitRoom)
	}
	return k
}

// put gives a kit back. A kit whose worker panicked must not come back.
func (s *kitShelf) put(k kit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workers = append(s.workers, k.worker)
	if len(s.rooms) < kitRooms && cap(k.out) <= 2*kitRoom { // more at once were a burst of slow clients
		s.rooms = append(s.rooms, k.out[:0])
	}
}
