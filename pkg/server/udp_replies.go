// SPDX-License-Identifier: Apache-2.0

package server

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/wire"
)

// replyBatchSize is the buffer size in bytes of a replyBatch: 512 for each reply. Most replies are
// shorter. A batch with longer ones is full earlier.
const replyBatchSize = batchSize * 512

// A replyBatch holds resolved replies that one system call sends through a socket.
type replyBatch struct {
	out    [batchSize]message
	vec    [batchSize]unix.Iovec
	room   [replyBatchSize]byte
	count  int
	used   int              // bytes of room taken
	unsent int              // replies that the kernel refused
	send   func(fd uintptr) // made once: a closure for each call would allocate
}

// replyBatches are the empty ones. There are as many as are being filled or sent, not as sockets.
var replyBatches = sync.Pool{New: func() any { return newReplyBatch() }} //nolint:gochecknoglobals // a pool is shared by design and holds no state

func newReplyBatch() *replyBatch {
	s := new(replyBatch)
	for i := range s.out {
		s.out[i].header.Iov = &s.vec[i]
		s.out[i].header.SetIovlen(1)
	}
	s.send = func(fd uintptr) { s.unsent = sendAll(fd, s.out[:s.count]) }
	return s
}

// fits reports whether msg fits. It always fits an empty batch.
func (s *replyBatch) fits(msg []byte) bool {
	return s.count == 0 || s.count < batchSize && s.used+len(msg) <= replyBatchSize
}

// add copies msg, which must fit and not be empty. It keeps references to the addresses in r.
func (s *replyBatch) add(r *pendingReply, msg []byte) {
	kept := append(s.room[s.used:s.used:replyBatchSize], msg...)
	s.used = min(s.used+len(msg), replyBatchSize)
	s.vec[s.count].Base = &kept[0]
	s.vec[s.count].SetLen(len(kept))
	h := &s.out[s.count].header
	h.Name, h.Namelen = (*byte)(unsafe.Pointer(&r.to)), unix.SizeofSockaddrInet6
	if r.to.Family == unix.AF_INET {
		h.Namelen = unix.SizeofSockaddrInet4
	}
	if len(r.source) > 0 {
		h.Control = &r.source[0]
		h.SetControllen(len(r.source))
	}
	s.count++
}

// reset empties the batch and drops all references.
func (s *replyBatch) reset() {
	for i := range s.count {
		h := &s.out[i].header
		h.Name, h.Namelen, h.Control = nil, 0, nil
		h.SetControllen(0)
		s.vec[i].Base = nil
	}
	s.count, s.used, s.unsent = 0, 0, 0
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
	if !first && !o.batch.fits(msg) {
		full, o.batch = o.batch, nil
	}
	if o.batch == nil {
		o.batch = replyBatches.Get().(*replyBatch)
	}
	o.batch.add(r, msg)
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
	n := full.count
	if s.raw.Control(full.send) != nil { // the socket is closed
		full.unsent = n
	}
	stats := &s.server.stats
	stats.sent.Add(uint64(n - full.unsent))
	if full.unsent > 0 {
		stats.unsent.Add(uint64(full.unsent))
	}
	full.reset()
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
