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

// replyBatches are the empty ones. There are as many as are being filled or sent, not as sockets.
var replyBatches = sync.Pool{New: func() any { return newReplyBatch() }} //nolint:gochecknoglobals // a pool is shared by design and holds no state

func newReplyBatch() *replyBatch {
	b := &replyBatch{Outbox: mmsg.NewOutbox(batchSize, replyBatchSize)}
	b.flush = func(fd uintptr) { b.socket.server.stats.send(fd, b.Outbox) }
	return b
}

// add copies msg, which must not be empty. It keeps references to the addresses in r.
func (b *replyBatch) add(r *pendingReply, msg []byte) {
	address(b.Add(append(b.Buffer(), msg...)), &r.to, r.source)
}

// A replyQueue gathers the resolved replies of one socket. While it is not empty, a flush of the
// socket is pending.
type replyQueue struct {
	mu    sync.Mutex  // guards batch
	batch *replyBatch // nil: empty
}

// add adds a reply. It reports whether it is the first, and returns a full batch that had to make
// room for it.
func (o *replyQueue) add(r *pendingReply, msg []byte) (first bool, full *replyBatch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	first = o.batch == nil
	if !first && !o.batch.Fits(len(msg)) {
		full, o.batch = o.batch, nil
	}
	if o.batch == nil {
		o.batch = replyBatches.Get().(*replyBatch)
	}
	o.batch.add(r, msg) // even a message that does not fit an empty batch: it is allocated
	return first, full
}

// take removes and returns the gathered batch, or nil.
func (o *replyQueue) take() *replyBatch {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.batch
	o.batch = nil
	return s
}

// Flush implements [wire.Flusher]: it sends the gathered replies.
func (s *udpSocket) Flush() {
	if full := s.replies.take(); full != nil {
		s.send(full)
	}
}

// send sends the replies of a batch, and returns the batch to the pool.
func (s *udpSocket) send(full *replyBatch) {
	n := full.Len()
	full.socket = s
	if s.raw.Control(full.flush) != nil { // the socket is closed
		s.server.stats.unsent.Add(uint64(n))
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
	first, full := s.replies.add(r, msg)
	if first {
		batch.Add(s)
	}
	if full != nil {
		s.send(full)
	}
}
