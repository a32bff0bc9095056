// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	// maxPending bounds the bytes of resolved answers that wait to be written to a client.
	maxPending = 256 << 10
	// maxSpare is the largest buffer in bytes that a session keeps between resolved answers.
	maxSpare = 2 << 10
	// maxStreamPending bounds the bytes of queued answers to which a stream may add a message, so that
	// streams leave room for other answers.
	maxStreamPending = 64 << 10
	// streamWriteTimeouts is how many WriteTimeouts a stream waits for room for one message. A
	// client that reads a byte now and then must not block the sender for hours.
	streamWriteTimeouts = 10
)

// An outbox sends the answers of one session: those from memory, which the session passes to
// writeAnswers, and resolved ones, which any goroutine passes to SendMessage and Reply.
//
// One goroutine at a time is the writer and writes to the connection without the lock. writeAnswers
// waits to become the writer: a session whose client does not read must not read either. Reply
// never waits: it queues the answer for the writer, or starts one. SendMessage does the same once
// few enough bytes are queued.
type outbox struct {
	server *TCP
	conn   net.Conn // what answers are written to: TLS, or steady
	socket net.Conn // the TCP connection below

	mu           sync.Mutex // guards the fields down to counted; it is changed.L and drained.L
	changed      sync.Cond  // a miss was answered, the writer stopped, or closed; only the session's goroutine waits
	drained      sync.Cond  // the writer wrote its chunk, a stream timed out, or closed; only streams wait
	pending      []byte     // framed answers queued for the writer
	spare        []byte     // replaces pending when the writer takes it
	sending      int        // bytes of resolved answers that the writer is sending
	misses       int        // queries passed to Resolve and not answered yet
	answered     time.Time  // when the last miss was answered
	writing      bool       // a goroutine is the writer
	sessionWaits bool       // the session waits to become the writer
	closed       bool       // conn is closed, or being closed
	ended        bool       // nothing is sent after pending
	counted      int        // bytes of pending and spare that usage counts

	usage         memoryUse
	raw           syscall.RawConn    // of socket; nil: it has none
	writeOnceFunc func(uintptr) bool // writeOnce, made once; nil: all writes go through conn. Only the writer uses it and the two fields below
	writeBuf      []byte             // what writeOnce is to write
	written       int                // number of bytes that writeOnce wrote
}

// init takes the TCP connection, and TLS over it; nil: there is none.
func (o *outbox) init(t *TCP, steady steadyConn, secured *tls.Conn) {
	o.server, o.conn, o.socket = t, steady, steady.Conn
	o.changed.L, o.drained.L = &o.mu, &o.mu
	o.usage.total = &t.memory
	if c, ok := o.socket.(syscall.Conn); ok {
		o.raw, _ = c.SyscallConn() // of a TCP connection it has no error
	}
	switch {
	case secured != nil:
		o.conn = secured
	case o.raw != nil:
		o.writeOnceFunc = o.writeOnce
	}
}

// addMiss counts a query that is about to be resolved. It reports whether MaxPipeline misses are
// outstanding.
func (o *outbox) addMiss() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.misses++
	return o.misses >= o.server.cfg.MaxPipeline
}

// Reply implements [wire.Replier] for every miss of the session.
func (o *outbox) Reply(msg []byte, _ *wire.SendBatch) {
	now := time.Now()
	o.mu.Lock()
	o.misses--
	o.answered = now
	o.changed.Signal()
	overflow := o.appendLocked(msg)
	o.mu.Unlock()
	if overflow && o.abort() {
		o.server.count(&o.server.stats.Overflows, 1)
	}
	o.server.shedMemory()
}

// SendMessage implements [wire.Stream] for every miss of the session.
func (o *outbox) SendMessage(msg []byte) bool { return o.sendWithin(msg, maxStreamPending) }

// sendWithin is SendMessage with a bound of the queued bytes.
func (o *outbox) sendWithin(msg []byte, bound int) bool {
	if len(msg) > wire.MaxMessage {
		o.server.count(&o.server.stats.Oversized, 1)
		return false
	}
	o.mu.Lock()
	room := !o.fullLocked(msg, bound) || o.awaitSpaceLocked(msg, bound)
	sent := room && !o.closed && !o.appendLocked(msg)
	o.mu.Unlock()
	if !room && o.abort() {
		o.server.count(&o.server.stats.WriteTimeouts, 1)
	}
	o.server.shedMemory()
	return sent
}

// awaitSpaceLocked waits until a stream's message has room or the outbox is closed. It returns false
// if neither happens within streamWriteTimeouts.
func (o *outbox) awaitSpaceLocked(msg []byte, bound int) bool {
	late := false
	limit := time.AfterFunc(streamWriteTimeouts*o.server.cfg.WriteTimeout, func() {
		o.mu.Lock()
		late = true
		o.mu.Unlock()
		o.drained.Broadcast()
	})
	defer limit.Stop()
	for o.fullLocked(msg, bound) && !late {
		o.drained.Wait()
	}
	return !o.fullLocked(msg, bound)
}

// fullLocked reports whether a stream's message has to wait.
func (o *outbox) fullLocked(msg []byte, bound int) bool {
	held := len(o.pending) + o.sending
	return !o.closed && held > 0 && held+wire.FrameHeader+len(msg) > bound
}

// appendLocked adds msg to pending. It reports whether there is no room.
func (o *outbox) appendLocked(msg []byte) (overflow bool) {
	if o.closed || o.ended || len(msg) == 0 {
		return false
	}
	if len(o.pending)+o.sending+wire.FrameHeader+len(msg) > maxPending {
		return true
	}
	at := len(o.pending)
	var ok bool
	o.pending, ok = wire.SealFrame(append(wire.OpenFrame(o.pending), msg...), at)
	o.countLocked()
	if !ok {
		o.server.count(&o.server.stats.Oversized, 1)
		return false
	}
	if !o.writing && !o.sessionWaits {
		o.writing = true
		o.server.tasks.Go(o.writeLoop) // the session, also one of the tasks, waits for it in close
	}
	return false
}

// writeAnswers writes framed answers once no other goroutine is the writer. It reports whether the
// write succeeded.
func (o *outbox) writeAnswers(framed []byte) bool {
	o.mu.Lock()
	o.sessionWaits = true
	for o.writing && !o.closed {
		o.changed.Wait()
	}
	o.sessionWaits = false
	if o.closed {
		o.mu.Unlock()
		return false
	}
	o.writing = true
	o.writePendingLocked() // resolved answers that came before
	ended := o.ended
	o.mu.Unlock()
	ok := ended || o.write(framed)
	o.mu.Lock()
	o.writePendingLocked() // resolved answers that came meanwhile
	if len(o.pending) > 0 && !o.closed {
		o.server.tasks.Go(o.writeLoop) // a stream continues, and the session has to read
	} else {
		o.releaseWriterLocked()
	}
	o.mu.Unlock()
	return ok
}

// writeLoop writes pending until it is empty or the session wants to become the writer. writeLoop
// is the writer until it returns.
func (o *outbox) writeLoop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.pending) > 0 && !o.closed && !o.sessionWaits {
		o.writePendingLocked()
	}
	o.releaseWriterLocked()
}

// writePendingLocked writes pending, and unlocks meanwhile. The caller is the writer.
func (o *outbox) writePendingLocked() {
	if len(o.pending) == 0 || o.closed {
		return
	}
	chunk := o.pending
	o.pending, o.spare = o.spare, nil
	o.sending = len(chunk)
	o.mu.Unlock()
	o.write(chunk)
	o.mu.Lock()
	o.sending = 0
	if cap(chunk) <= maxSpare {
		o.spare = chunk[:0]
	}
	o.countLocked()
	o.drained.Broadcast()
}

// countLocked counts the current capacity of pending and spare.
func (o *outbox) countLocked() {
	now := cap(o.pending) + cap(o.spare)
	o.usage.add(now - o.counted)
	o.counted = now
}

// releaseWriterLocked ends the caller's role as the writer.
func (o *outbox) releaseWriterLocked() {
	if len(o.pending) == 0 && cap(o.pending) > maxSpare || o.closed {
		o.pending = nil
		o.countLocked()
	}
	o.writing = false
	o.changed.Signal()
}

// write writes b. What the kernel does not accept at once counts as memory of the session, with its
// unread queries.
func (o *outbox) write(b []byte) bool {
	rest := o.writeNonblocking(b)
	o.usage.addSent(len(b) - len(rest))
	if len(rest) == 0 {
		return true
	}
	blocked := cap(b) + kernelReceive
	o.usage.add(blocked)
	o.server.shedMemory()
	ok := o.writeAll(rest)
	o.usage.addSent(len(rest))
	o.usage.add(-blocked)
	return ok
}

// writeNonblocking writes as much of b as the kernel accepts without waiting, and returns the rest.
func (o *outbox) writeNonblocking(b []byte) []byte {
	if o.writeOnceFunc == nil {
		return b
	}
	o.writeBuf, o.written = b, 0
	_ = o.raw.Write(o.writeOnceFunc) // writeAll gets the error too
	o.writeBuf = nil
	return b[o.written:]
}

func (o *outbox) writeOnce(fd uintptr) bool {
	n, err := unix.Write(int(fd), o.writeBuf)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Write(int(fd), o.writeBuf)
	}
	o.written = max(0, n)
	return true
}

// writeAll writes b. It closes the session if the client reads nothing within a WriteTimeout.
func (o *outbox) writeAll(b []byte) bool {
	switch _, err := o.conn.Write(b); {
	case err == nil:
		return true
	case !errors.Is(err, syscall.ETIMEDOUT) && !errors.Is(err, os.ErrDeadlineExceeded): // TCP_USER_TIMEOUT may expire first
		o.fail()
	case o.abort():
		o.server.count(&o.server.stats.WriteTimeouts, 1)
	}
	return false
}

// A steadyConn is a connection whose writes go on as long as the peer reads some bytes within each timeout. TLS needs that below it: it
// cannot go on after a write that failed.
type steadyConn struct {
	net.Conn
	timeout time.Duration
}

// Write implements [net.Conn].
func (c steadyConn) Write(b []byte) (n int, err error) {
	defer func() { _ = c.SetWriteDeadline(time.Time{}) }() // writeNonblocking needs none
	for {
		_ = c.SetWriteDeadline(time.Now().Add(c.timeout)) // if it fails, Write fails too
		more, err := c.Conn.Write(b[n:])
		n += more
		if more == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
}

// awaitMissSlot waits until fewer than MaxPipeline misses are outstanding. It returns false if the
// session is closed.
func (o *outbox) awaitMissSlot() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.misses >= o.server.cfg.MaxPipeline {
		o.server.count(&o.server.stats.Stalls, 1)
		o.usage.add(kernelReceive)
		defer o.usage.add(-kernelReceive)
	}
	for o.misses >= o.server.cfg.MaxPipeline && !o.closed {
		o.changed.Wait()
	}
	return !o.closed
}

// awaitAnswers waits until every miss is answered and every answer is written. It returns false if
// the session was closed before.
func (o *outbox) awaitAnswers() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for (o.misses > 0 || o.writing) && !o.closed {
		o.changed.Wait()
	}
	return !o.closed
}

// close closes the connection and waits for the writer. Later resolved answers are discarded.
func (o *outbox) close() {
	o.fail()
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.writing {
		o.changed.Wait()
	}
}

// fail closes the connection, which ends its reader and its writer. It reports whether it was open.
// Any goroutine may call it.
func (o *outbox) fail() bool {
	o.mu.Lock()
	first := !o.closed
	o.closed = true
	o.changed.Signal()
	o.drained.Broadcast()
	o.mu.Unlock()
	if first {
		_ = o.socket.Close() // that of TLS might wait for the client
	}
	return first
}

// abort closes the connection as fail does, and makes the kernel discard unread answers.
func (o *outbox) abort() bool {
	if c, ok := o.socket.(interface{ SetLinger(seconds int) error }); ok {
		_ = c.SetLinger(0)
	}
	return o.fail()
}

// closeOrAbort closes the connection. It aborts if the client has unread answers, so that the
// kernel does not keep them: the client had time to read.
func (o *outbox) closeOrAbort() bool {
	if o.measureKernel() > 0 {
		return o.abort()
	}
	return o.fail()
}

// measureKernel replaces the estimate of the kernel's bytes by the kernel's own count, and returns
// it.
func (o *outbox) measureKernel() (kernel int64) {
	if o.raw != nil {
		kernel = int64(unsentBytes(o.raw))
	}
	o.usage.setKernel(kernel)
	return kernel
}

// heldBytes returns the memory of the session, with the kernel's own count; 0 once it is closed.
func (o *outbox) heldBytes() int64 {
	o.mu.Lock()
	closed := o.closed
	o.mu.Unlock()
	if closed {
		return 0
	}
	if o.usage.kernel.Load() > 0 {
		o.measureKernel()
	}
	return o.usage.bytes()
}

// state reports whether a miss is outstanding or answers are being written, and when a miss was last
// answered.
func (o *outbox) state() (busy bool, answered time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.misses > 0 || o.writing, o.answered
}
