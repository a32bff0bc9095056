// SPDX-License-Identifier: Apache-2.0

package server

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/mmsg"
	"github.com/nodecache/node-cache/pkg/wire"
)

// replyBatchSize is the buffer size in bytes of a replyBatch: 512 for each reply. Most replies are
// shorter. A batch with longer ones is full earlier.
const replyBatchSize = batchSize * 512

// A replyBatch holds resolved replies that one system call sends through a socket.
type replyBatch struct {
	*mmsg.Outbox
	socket *udpSocket
	flush  func(fd uintptr) // made once: a closure for each call would allocate
}

// replyBatches pools idle batches, so that memory follows the batches in use and not the number of sockets.
var replyBatches = sync.Pool{New: func() any { return newReplyBatch() }} //nolint:gochecknoglobals // a pool is shared by design and holds no state

func newReplyBatch() *replyBatch {
	b := &replyBatch{Outbox: mmsg.NewOutbox(batchSize, replyBatchSize)}
	b.flush = func(fd uintptr) { b.socket.server.stats.send(fd, b.Outbox) }
	return b
}

// add adds a reply, which must not be empty, to the gathered ones. It copies msg and keeps references
// to the addresses in r. It reports whether the reply is the first, and returns a full batch that had
// to make room for it.
func (s *udpSocket) add(r *pendingReply, msg []byte) (first bool, full *replyBatch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = s.replies == nil
	if !first && !s.replies.Fits(len(msg)) {
		full, s.replies = s.replies, nil
	}
	if s.replies == nil {
		s.replies = replyBatches.Get().(*replyBatch)
	}
	// Even a message that does not fit an empty batch is added: it is allocated.
	address(s.replies.Add(append(s.replies.Buffer(), msg...)), &r.to, r.source)
	return first, full
}

// Flush implements [wire.Flusher]: it sends the gathered replies.
func (s *udpSocket) Flush() {
	s.mu.Lock()
	batch := s.replies
	s.replies = nil
	s.mu.Unlock()
	if batch != nil {
		s.send(batch)
	}
}

// send sends the replies of a batch, and returns the batch to the pool.
func (s *udpSocket) send(full *replyBatch) {
	n := full.Len()
	full.socket = s
	if s.raw.Control(full.flush) != nil { // the socket is closed
		atomic.AddUint64(&s.server.stats.Unsent, uint64(n))
	}
	full.socket = nil
	full.Reset()
	replyBatches.Put(full)
	s.server.repliesDue.Add(int64(-n))
}

// A pendingReply replies to one query of a batch that missed the cache. Its size is 64 bytes.
type pendingReply struct {
	socket   *udpSocket
	source   []byte // control message that names the source address, for a wildcard socket
	to       unix.RawSockaddrInet6
	finished atomic.Bool
}

// Reply implements [wire.Replier].
func (r *pendingReply) Reply(msg []byte, batch *wire.SendBatch) {
	s := r.socket
	if r.finished.Swap(true) {
		return
	}
	if len(msg) == 0 {
		s.server.repliesDue.Add(-1)
		return
	}
	first, full := s.add(r, msg)
	if first {
		batch.Add(s)
	}
	if full != nil {
		s.send(full)
	}
}
