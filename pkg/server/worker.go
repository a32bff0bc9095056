// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A Worker is a reader's way into the handler. It holds what one query at a time
// needs, so it is used by one goroutine at a time and a hit allocates nothing.
type Worker interface {
	// AnswerFromMemory tries to answer the query in pkt from memory. With wire.Answered it
	// appended the reply to dst; with wire.Missed the caller owes a call of
	// Resolve before the next AnswerFromMemory and leaves pkt untouched until that returned.
	AnswerFromMemory(pkt []byte, from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict)
	// Resolve takes over the query that the last AnswerFromMemory missed. It does not wait for
	// the answer, which to gets later, or at once when the query is refused. Of a
	// query that came over TCP to is a wire.Stream.
	Resolve(from *wire.Peer, now time.Time, to wire.Replier)
	// Flush lets go what Resolve put off to the end of the batch, as queries upstream
	// are, and makes known what was counted since the last Flush. Readers call it
	// after each batch, with the time the batch was done, and after a panic, before
	// they give the worker up.
	Flush(now time.Time)
}

// A Handler gives readers their workers: a UDP socket one of its own, TCP sessions
// one for each batch, which others use again after them.
type Handler interface {
	NewWorker() Worker
}

const (
	// maxGathered is how many bytes of answers are gathered before they are
	// written, so that one read of a hundred queries for large answers cannot
	// gather megabytes.
	maxGathered = 32 << 10
	// gatherBuffer is enough for any batch: it ends at the answer that passes kitBatch. A
	// smaller buffer would grow step by step, which is garbage for each large answer.
	gatherBuffer = maxGathered + frameHeader + wire.MaxMessage
	// maxIdleBuffers is how many buffers the shelf keeps.
	maxIdleBuffers = 32
)

// A batchWorker is what one batch of queries needs: a worker, and room for the answers.
//
// Sessions take one for a batch and not for life. So there are as many workers and
// buffers as batches at work at once, not as sessions open or ever opened. A worker
// is used by one goroutine at a time; the shelf's lock orders them.
type batchWorker struct {
	worker Worker
	out    []byte // framed answers
}

// A workerPool keeps what kits are made of. What was used last is taken first: it is warm
// in the CPU's cache.
type workerPool struct {
	handler Handler

	mu      sync.Mutex // guards the fields below
	idle    []Worker
	buffers [][]byte
}

// get returns a kit that is not in use, with an empty out.
func (s *workerPool) get() (k batchWorker) {
	s.mu.Lock()
	if n := len(s.idle); n > 0 {
		k.worker, s.idle = s.idle[n-1], s.idle[:n-1]
	}
	if n := len(s.buffers); n > 0 {
		k.out, s.buffers = s.buffers[n-1], s.buffers[:n-1]
	}
	s.mu.Unlock()
	if k.worker == nil {
		k.worker = s.handler.NewWorker()
	}
	if k.out == nil {
		k.out = make([]byte, 0, gatherBuffer)
	}
	return k
}

// put gives a kit back. A kit whose worker panicked must not come back.
func (s *workerPool) put(k batchWorker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, k.worker)
	if len(s.buffers) < maxIdleBuffers && cap(k.out) <= 2*gatherBuffer { // more at once were a burst of slow clients
		s.buffers = append(s.buffers, k.out[:0])
	}
}

// flushAfterPanic lets go what a worker put off before it panicked: others' queries may be
// among it. What panics there once more is known already.
func flushAfterPanic(worker Worker) {
	defer func() { _ = recover() }()
	worker.Flush(time.Now())
}

// logPanic records a recovered panic: a defect of ours that one packet showed.
func logPanic(ctx context.Context, log *slog.Logger, where string, defect any) {
	log.ErrorContext(ctx, "recovered from a panic", "where", where, "panic", fmt.Sprint(defect), "stack", string(debug.Stack()))
}
