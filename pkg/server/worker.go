// SPDX-License-Identifier: Apache-2.0

package server

import (
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A Worker answers the queries of one reader. It holds the state of one query, so one goroutine at
// a time may use it and a hit allocates nothing.
type Worker interface {
	// AnswerFromMemory tries to answer the query in pkt from memory. With wire.Answered it has
	// appended the reply to dst. With wire.Missed the caller must call Resolve before the next
	// AnswerFromMemory, and must not change pkt until Resolve has returned.
	AnswerFromMemory(pkt []byte, from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict)
	// Resolve resolves the query that the last AnswerFromMemory missed. It does not wait for the
	// answer: to gets it later, or at once if the query is refused. For a query over TCP, to is a
	// wire.Stream.
	Resolve(from *wire.Peer, now time.Time, to wire.Replier)
	// Flush sends what Resolve queued for the end of the batch, such as upstream queries, and
	// publishes what was counted since the last Flush. Readers call it after each batch, with the
	// time at which the batch ended, and after a panic before they discard the worker.
	Flush(now time.Time)
}

// A Handler creates workers for readers: one for each UDP socket, and one for a batch of TCP queries
// if no idle one can be reused.
type Handler interface {
	NewWorker() Worker
}

const (
	// maxGathered is the number of bytes of answers after which a batch is written. A
	// hundred queries for large answers then cannot gather megabytes.
	maxGathered = 32 << 10
	// gatherBuffer fits any batch, which ends at the answer that exceeds maxGathered. A
	// smaller buffer would grow and leave garbage for each large answer.
	gatherBuffer = maxGathered + wire.FrameHeader + wire.MaxMessage
	// maxIdleWorkers bounds the idle workers that are kept; a burst of slow clients leaves more.
	maxIdleWorkers = 32
)

// A batchWorker holds what one batch of queries needs: a worker, and a buffer for the answers.
//
// A session takes one for each batch and not for life. So there are as many workers and buffers as
// concurrent batches, not as open sessions. One goroutine at a time uses a worker; TCP.workersMu
// orders the uses.
type batchWorker struct {
	worker Worker
	out    []byte // framed answers
}

// flushAfterPanic sends what a worker queued before it panicked, because queries of other clients
// may be among it. It ignores a second panic.
func flushAfterPanic(worker Worker) {
	defer func() { _ = recover() }()
	worker.Flush(time.Now())
}
